"""How the dense part is kept: what a layout must say, and what a job's words become."""

from typing import Any

import pytest
from neuroshard_api.documents.dense_layout import (
    CheckpointingChoice,
    DenseChoices,
    DenseGroup,
    DensePolicy,
    DenseStrategy,
    GroupChoice,
    PlannedUnit,
    SplittingChoice,
    UnitChoice,
)
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.job.plan_request import plan_request
from pydantic import ValidationError
from support import builders


@pytest.mark.parametrize(
    "fields", [{"strategy": DenseStrategy.ZERO3}, {"group": DenseGroup.NODE}], ids=["no group", "a group of replicas"]
)
def test_shares_need_a_group_and_replicas_have_none(fields: dict[str, Any]) -> None:
    """The sentence says what was found."""
    with pytest.raises(ValidationError, match=r"group: zero2 and zero3 need"):
        PlannedUnit(module="over_arch", **fields)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"strategy": DenseStrategy.ZERO2, "group": DenseGroup.NODE}, r"split: only zero3 .*found zero2; hint: set"),
        ({}, r"split: only zero3 .*found replicate; hint: set"),
        (
            {"strategy": DenseStrategy.ZERO3, "group": DenseGroup.NODE, "checkpointed": True},
            r"split: a checkpointed unit .*found both; hint: leave out",
        ),
    ],
    ids=["gathered once", "replicated", "checkpointed"],
)
def test_only_zero3_without_checkpointing_is_split(fields: dict[str, Any], sentence: str) -> None:
    """The sentence says what was found, and what to change."""
    with pytest.raises(ValidationError, match=sentence):
        PlannedUnit(module="over_arch", split=True, **fields)


def test_units_of_earlier_plans_are_not_split() -> None:
    """The field may be missing."""
    unit = PlannedUnit.model_validate_json('{"module": "over_arch", "strategy": "zero3", "group": "node"}')

    assert not unit.split


def test_all_units_are_checkpointed_or_split() -> None:
    """In a request and in a job: each excludes the other."""
    with pytest.raises(ValidationError, match=r"exclude each other: .*hint: set one of them to auto"):
        DenseChoices(checkpointing=CheckpointingChoice.ALWAYS, splitting=SplittingChoice.ALWAYS)
    both = {"activationCheckpointing": "Always", "operatorSplitting": "Always"}
    with pytest.raises(DocumentError, match=r"exclude each other: .*hint: set one of them to Auto"):
        builders.job(experimental={"denseParallelism": both})


def test_the_longest_path_decides_a_units_strategy() -> None:
    """A path covers what is below it, and no other name that begins alike."""
    zero2, zero3 = DenseStrategy.ZERO2, DenseStrategy.ZERO3
    choices = DenseChoices(
        units=(
            UnitChoice(module="interaction", strategy=zero3),
            UnitChoice(module="interaction.layers.1", strategy=zero2),
        )
    )

    assert choices.strategy_of("interaction.layers.0") is zero3
    assert choices.strategy_of("interaction.layers.1") is zero2
    assert choices.strategy_of("interaction.layers.10") is zero3
    assert choices.strategy_of("interactions") is None


def request_of(**spec: Any) -> PlanRequest:
    """Return the request of a job with these parts of its spec."""
    job = builders.job(**spec)
    tables = job.spec.model.inline_tables("job")
    assert tables is not None
    return plan_request(job, tables=tables, topology=builders.topology())


def test_a_jobs_words_become_the_requests() -> None:
    """Every field, and the units."""
    units = {
        "group": "World",
        "activationCheckpointing": "Never",
        "operatorSplitting": "Always",
        "units": [{"module": "interaction", "strategy": "ZeRO3"}],
    }

    assert request_of(
        training={"denseParallelism": {"policy": "Shard"}}, experimental={"denseParallelism": units}
    ).dense_choices == DenseChoices(
        policy=DensePolicy.SHARD,
        group=GroupChoice.WORLD,
        checkpointing=CheckpointingChoice.NEVER,
        splitting=SplittingChoice.ALWAYS,
        units=(UnitChoice(module="interaction", strategy=DenseStrategy.ZERO3),),
    )


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"training": {"denseParallelism": {"policy": "Auto"}}},
        {
            "training": {"denseParallelism": {"policy": "Replicate"}},
            "experimental": {"planner": {"denseMemoryPerDevice": "1Gi"}},
        },
        {"training": {"denseParallelism": {"policy": "Shard"}}, "trainer": {"command": ["train"]}},
    ],
    ids=["nothing said", "the defaults said", "the size is given", "a trainer of one's own"],
)
def test_requests_of_earlier_jobs_stay_as_they_are(spec: dict[str, Any]) -> None:
    """Nothing is added where nothing is asked of a counted dense part."""
    assert "dense_choices" not in request_of(**spec).to_json()


def test_sharding_a_dense_part_of_given_size_is_refused() -> None:
    """Its units are not known."""
    with pytest.raises(DocumentError, match="denseMemoryPerDevice takes its place"):
        builders.job(
            training={"denseParallelism": {"policy": "Shard"}},
            experimental={"planner": {"denseMemoryPerDevice": "1Gi"}},
        )


def test_a_plan_of_an_earlier_release_has_no_layout() -> None:
    """Its bytes are those of before."""
    text = builders.plan().to_json()

    assert '"dense"' not in text
    assert GivenPlan.from_data(builders.data_with(builders.plan(), "gap", 0.25)).dense is None
    assert Plan.model_validate_json(text).to_json() == text
