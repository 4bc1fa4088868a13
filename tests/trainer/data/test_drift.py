"""Made-up samples whose lookups change in mid-training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.job.training import SyntheticDrift
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.data.collation import BatchMaker, HostBatch
from neuroshard_trainer.data.drift import drifted_sources, with_statistics
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.synthetic import SyntheticSource
from support import builders

TABLES = (
    builders.table("user", num_embeddings=100_000, pooling_factor=4.0, feature_names=("viewer", "owner")),
    builders.table("item", num_embeddings=100_000, pooling_factor=3.0),
)
FEATURES = features_of(TABLES)
BATCH, RANKS = 2048, 2
AT = 2 * RANKS * BATCH


def maker(*drift: Mapping[str, Any], rank: int = 0) -> BatchMaker:
    """Return the maker of a rank's batches under changes of the lookups."""
    source = SyntheticSource(builders.table_set(*TABLES), FEATURES, num_dense=2, num_samples=20_000, seed=0)
    changes = [validated(SyntheticDrift, each, where="syntheticDrift") for each in drift]
    order = SampleOrder(source.block_sizes, validation_percent=10, seed=0, shuffle=True)
    drifted = drifted_sources(changes, FEATURES, source)
    return BatchMaker(source, order, FEATURES, rank=rank, world_size=RANKS, batch_size=BATCH, drifted=drifted)


def lookups(batch: HostBatch) -> dict[str, float]:
    """Return the lookups per sample by feature."""
    counts = zip(FEATURES, batch.values_per_feature, strict=True)
    return {feature.name: count / BATCH for feature, count in counts}


def distinct(batch: HostBatch) -> dict[str, int]:
    """Return the distinct rows by feature."""
    parts = np.split(batch.values.numpy(), np.cumsum(batch.values_per_feature)[:-1])
    return {feature.name: len(np.unique(part)) for feature, part in zip(FEATURES, parts, strict=True)}


def test_lookups_change_from_a_training_sample_on() -> None:
    """On all ranks in the same step, in this and all later epochs, for the named feature alone."""
    change = {"atSample": AT, "feature": "item", "poolingFactorTimes": 5}
    step = RANKS * BATCH
    for rank in range(RANKS):
        found = [lookups(maker(change, rank=rank).training(position)) for position in (AT - step, AT, AT + 9 * step)]

        assert [each["item"] for each in found] == [3.0, 15.0, 15.0]
        assert all(each["viewer"] == each["owner"] == 2.0 for each in found)


def test_samples_before_the_change_are_those_without_one() -> None:
    """So that a job with a change is its own control."""
    change = {"atSample": AT, "feature": "item", "poolingFactorTimes": 5}

    before, usual = maker(change).training(0), maker().training(0)

    assert before.values.equal(usual.values)
    assert before.labels.equal(usual.labels)


def test_the_skew_of_one_feature_of_a_table_changes() -> None:
    """The table's other feature keeps its own."""
    usual, skewed = maker().training(AT), maker({"atSample": 0, "feature": "owner", "zipfExponent": "1.3"}).training(AT)

    assert distinct(skewed)["owner"] < 0.7 * distinct(usual)["owner"]
    assert distinct(skewed)["viewer"] == pytest.approx(distinct(usual)["viewer"], rel=0.05)


def test_the_newest_change_of_a_feature_counts_alone() -> None:
    """Factors are of the table's own lookups; a factor of 1 goes back to them."""
    made = maker(
        {"atSample": AT, "feature": "item", "poolingFactorTimes": 1},
        {"atSample": 0, "feature": "item", "poolingFactorTimes": 2},
    )

    assert [lookups(made.training(position))["item"] for position in (0, AT)] == [6.0, 3.0]


def test_held_out_samples_stay_as_they_are() -> None:
    """Evaluations before and after a change are of the same samples."""
    change = {"atSample": 0, "feature": "item", "poolingFactorTimes": 5}

    assert maker(change).validation(0).values.equal(maker().validation(0).values)


def test_a_change_of_an_unknown_feature_is_refused() -> None:
    """With its place and the features that there are: a table with named features has none of its own name."""
    with pytest.raises(InputError) as caught:
        maker(
            {"atSample": 0, "feature": "item", "poolingFactorTimes": 2},
            {"atSample": 0, "feature": "user", "poolingFactorTimes": 2},
        )

    assert "spec.experimental.syntheticDrift[1].feature" in str(caught.value)
    assert "there are item, owner, viewer" in str(caught.value)


def test_made_up_samples_follow_the_job_and_not_the_plan() -> None:
    """A plan for other statistics leaves the data as it is; names, rows, and order are the plan's."""
    planned = builders.table_set(*(table.model_copy(update={"pooling_factor": 9.0}) for table in reversed(TABLES)))

    found = with_statistics(planned, builders.table_set(*TABLES))

    assert [(table.name, table.pooling_factor) for table in found.tables] == [("item", 3.0), ("user", 4.0)]
    assert with_statistics(planned, None) == planned


def test_ids_follow_the_rules_of_the_job_and_not_of_the_plan() -> None:
    """A rule that is changed after planning is the one of the checkpoint's signature, too."""
    hashed = [table.model_copy(update={"id_rule": IdRule.HASH}) for table in TABLES]

    found = with_statistics(builders.table_set(*TABLES), builders.table_set(*hashed))

    assert [table.id_rule for table in found.tables] == [IdRule.HASH] * 2
