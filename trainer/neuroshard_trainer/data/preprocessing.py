"""The preprocessing that readers of training data state and apply; ``predict.py`` has its formulas."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from neuroshard_api.documents.preprocessing import (
    DensePreprocessing,
    IdForm,
    LookupPreprocessing,
    Missing,
    Preprocessing,
)
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.job.id_rules import id_rule_of
from neuroshard_api.job.training import DataFormat
from numpy.typing import NDArray

from neuroshard_trainer.data.id_rules import rows_of_integers
from neuroshard_trainer.data.samples import Feature, FloatArray, IndexArray
from neuroshard_trainer.predict import transformed


def lookups_of(
    features: Sequence[Feature],
    data_format: DataFormat,
    *,
    id_form: IdForm = IdForm.INTEGER,
    numbered_by: str | None = None,
    texts: Collection[str] = (),
) -> tuple[LookupPreprocessing, ...]:
    """Return the rule of each feature, as its table or the format has it.

    Args:
        features: of the model.
        data_format: of the data.
        id_form: of ids that are not hashed texts.
        numbered_by: files whose values are numbered to be ids.
        texts: features whose ids are texts, in Parquet files.
    """

    def form(feature: Feature, rule: IdRule) -> IdForm:
        if rule is IdRule.HASH and data_format is DataFormat.CSV:
            return IdForm.CELL
        return IdForm.TEXT if feature.name in texts else id_form

    rules = [id_rule_of(feature.table, data_format) for feature in features]
    return tuple(
        LookupPreprocessing(
            feature=feature.name,
            table=feature.table.name,
            num_rows=feature.table.num_embeddings,
            id_rule=rule,
            id_form=form(feature, rule),
            numbered_by=numbered_by,
        )
        for feature, rule in zip(features, rules, strict=True)
    )


def as_stored(
    features: Sequence[Feature],
    data_format: DataFormat,
    dense: Sequence[str],
    *,
    missing: Missing = Missing.ERROR,
    means: Mapping[str, float] | None = None,
    texts: Collection[str] = (),
) -> Preprocessing:
    """Return the preprocessing of a format that stores ids and dense features themselves.

    Args:
        features: of the model.
        data_format: of the data.
        dense: names of the dense features.
        missing: what takes the place of missing numbers.
        means: by dense feature, where they do. None: no number does, or it is 0.
        texts: features whose ids are texts.
    """
    assert missing is not Missing.MEAN or means is not None, "the caller has them"
    fill = means if missing is Missing.MEAN else dict.fromkeys(dense, 0.0) if missing is Missing.ZERO else None
    return Preprocessing(
        dense=tuple(
            DensePreprocessing(name=name, missing=missing, fill=None if fill is None else fill[name]) for name in dense
        ),
        lookups=lookups_of(features, data_format, texts=texts),
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
