"""The preprocessing that readers of training data state and apply; ``predict.py`` has its formulas."""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.preprocessing import (
    DensePreprocessing,
    IdForm,
    LookupPreprocessing,
    Missing,
    Preprocessing,
)
from neuroshard_api.job.training import DataFormat
from numpy.typing import NDArray

from neuroshard_trainer.data.id_rules import id_rule_of, rows_of_integers
from neuroshard_trainer.data.samples import Feature, FloatArray, IndexArray
from neuroshard_trainer.predict import transformed


def lookups_of(
    features: Sequence[Feature],
    data_format: DataFormat,
    *,
    id_form: IdForm = IdForm.INTEGER,
    numbered_by: str | None = None,
) -> tuple[LookupPreprocessing, ...]:
    """Return the rule of each feature, as its table or the format has it."""
    return tuple(
        LookupPreprocessing(
            feature=feature.name,
            table=feature.table.name,
            num_rows=feature.table.num_embeddings,
            id_rule=id_rule_of(feature.table, data_format),
            id_form=id_form,
            numbered_by=numbered_by,
        )
        for feature in features
    )


def as_stored(features: Sequence[Feature], data_format: DataFormat, dense: Sequence[str]) -> Preprocessing:
    """Return the preprocessing of a format that stores ids and dense features themselves.

    Args:
        features: of the model.
        data_format: of the data.
        dense: names of the dense features.
    """
    return Preprocessing(
        dense=tuple(DensePreprocessing(name=name, missing=Missing.ERROR) for name in dense),
        lookups=lookups_of(features, data_format),
    )


def numbered(num_dense: int) -> tuple[str, ...]:
    """Return names of dense features that the data does not name."""
    return tuple(f"dense_{position}" for position in range(num_dense))


def dense_features(numbers: NDArray[np.floating], rules: Sequence[DensePreprocessing]) -> FloatArray:
    """Return [samples, dense features] of numbers, the missing ones filled in.

    Args:
        numbers: [samples, dense features]
        rules: of each dense feature.
    """
    kinds = {(rule.transformation, rule.offset, rule.divisor) for rule in rules}
    if len(kinds) == 1:  # all at once
        ((transformation, offset, divisor),) = kinds
        return transformed(numbers, transformation, offset=offset, divisor=divisor)
    columns = [
        transformed(column, rule.transformation, offset=rule.offset, divisor=rule.divisor)
        for column, rule in zip(numbers.T, rules, strict=True)
    ]
    return np.stack(columns, axis=1) if columns else numbers.astype(np.float32)


def rows_of(ids: NDArray[np.integer], rule: LookupPreprocessing) -> IndexArray:
    """Return the table row of each id."""
    return rows_of_integers(ids, rule.id_rule, rule.num_rows)
