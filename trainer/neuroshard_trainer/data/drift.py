"""Made-up samples whose lookups change in mid-training, as ``spec.experimental.syntheticDrift`` says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.training import SyntheticDrift
from neuroshard_api.process.errors import InputError

from neuroshard_trainer.data.samples import Feature
from neuroshard_trainer.data.synthetic import SyntheticSource


def drifted_sources(
    changes: Sequence[SyntheticDrift], features: Sequence[Feature], source: SyntheticSource
) -> tuple[tuple[int, SyntheticSource], ...]:
    """Return the training samples at which lookups change, ascending, each with the samples from there on.

    Blocks, dense features, and hidden scores are those of the usual samples.

    Args:
        changes: of a job.
        features: of all tables.
        source: the usual samples.

    Raises:
        InputError: a change is of a feature that no table looks up.
    """
    names = {feature.name for feature in features}
    for index, change in enumerate(changes):
        if change.feature not in names:
            raise InputError(
                f"spec.experimental.syntheticDrift[{index}].feature: no table looks up {change.feature!r}; "
                f"there are {', '.join(sorted(names))}"
            )
    newest: dict[str, SyntheticDrift] = {}
    sources: dict[int, SyntheticSource] = {}
    for change in sorted(changes, key=lambda change: change.at_sample):
        newest[change.feature] = change
        sources[change.at_sample] = source.with_features(_drifted(features, newest))
    return tuple(sources.items())


def with_statistics(tables: TableSet, own: TableSet | None) -> TableSet:
    """Return tables with the lookups per sample, the skew, and the id rules that a job gives them.

    A plan keeps those that it was made for. Samples follow the job's, so that another plan means no other data.

    Args:
        tables: of a plan.
        own: of the job. None: they are in a ConfigMap, and the plan's are taken. A table that is not there stays as it
            is: the caller refuses a plan for another model.
    """
    if own is None:
        return tables
    by_name = {table.name: table for table in own.tables}
    return tables.model_copy(
        update={
            "zipf_exponent": own.zipf_exponent,
            "tables": tuple(
                table.model_copy(
                    update={
                        "pooling_factor": by_name[table.name].pooling_factor,
                        "zipf_exponent": by_name[table.name].zipf_exponent,
                        "id_rule": by_name[table.name].id_rule,
                    }
                )
                if table.name in by_name
                else table
                for table in tables.tables
            ),
        }
    )


def _drifted(features: Sequence[Feature], changes: Mapping[str, SyntheticDrift]) -> tuple[Feature, ...]:
    return tuple(
        _changed(feature, changes[feature.name]) if feature.name in changes else feature for feature in features
    )


def _changed(feature: Feature, change: SyntheticDrift) -> Feature:
    """Return a feature with the change's statistics in a table of its own, whose other features keep theirs."""
    table, exponent = feature.table, change.zipf_exponent
    return replace(
        feature,
        table=table.model_copy(
            update={
                "pooling_factor": table.pooling_factor * float(change.pooling_factor_times or 1),
                "zipf_exponent": table.zipf_exponent if exponent is None else float(exponent),
            }
        ),
    )
