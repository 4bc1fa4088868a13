"""Names of a training's columns, and what its readers put in the place of missing numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
from neuroshard_api.job.feature_columns import DEFAULT_LABEL_COLUMN
from neuroshard_api.job.training import Data

from neuroshard_trainer.data.formats import preprocessing_of
from neuroshard_trainer.data.missing import kept_means
from neuroshard_trainer.data.preprocessing import dense_features
from neuroshard_trainer.data.samples import Feature

NO_FILL: Final = math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class DataColumns:
    """Label and dense columns."""

    label: str = DEFAULT_LABEL_COLUMN
    dense: tuple[str, ...] = ()
    fills: tuple[float, ...] = ()
    """Of each dense column, as in batches, what takes the place of a missing number; NO_FILL where that is refused."""

    @classmethod
    def of(cls, data: Data, features: Sequence[Feature], *, num_dense: int, folder: Path | None = None) -> Self:
        """Return the columns of a job's data.

        Args:
            data: of the job.
            features: of the model.
            num_dense: dense features of the model.
            folder: has the means that missing numbers are filled with, if any are.
        """
        means = None if folder is None else kept_means(folder)
        rules = preprocessing_of(data, features, num_dense=num_dense, means=means).dense
        fills = np.array([NO_FILL if rule.fill is None else rule.fill for rule in rules])
        in_batches = dense_features(np.nan_to_num(fills)[None], rules)[0]
        return cls(
            label=data.label_column or DEFAULT_LABEL_COLUMN,
            dense=tuple(rule.name for rule in rules),
            fills=tuple(np.where(np.isnan(fills), NO_FILL, in_batches).tolist()),
        )
