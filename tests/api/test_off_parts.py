"""The sentences about parts of a step that took another time than expected."""

from typing import Any

import pytest
from neuroshard_api.documents.step_report import HostBoundShares, StepReport
from neuroshard_api.job.off_parts import off_parts
from neuroshard_api.job.status import PredictedCost
from support import builders

SOURCE = "cpu:test"
TIMES: dict[str, Any] = {
    "input_communication_ms": 0.0,
    "forward_compute_ms": 1.0,
    "backward_compute_ms": 1.0,
    "forward_communication_ms": 1.0,
    "backward_communication_ms": 1.0,
    "dense_forward_ms": 2.0,
    "dense_backward_ms": 2.0,
    "dense_collectives_ms": 0.0,
    "core_loop_ms": 0.3,
    "compute_processor_ms": 2.0,
    "dense_processor_ms": 4.0,
    "processor_wait_share": 0.0,
}
PREDICTED = PredictedCost(
    total_microseconds=4000,
    compute_microseconds=2000,
    forward_communication_microseconds=1000,
    backward_communication_microseconds=1000,
    dense_microseconds=4000,
    source=SOURCE,
)


def report(*, source: str = SOURCE, world_size: int = 2, **fields: Any) -> StepReport:
    """Return a report of ranks that take as long as predicted, the last one but for these fields."""
    last = world_size - 1
    ranks = [builders.rank_times(rank, **(TIMES | (fields if rank == last else {}))) for rank in range(world_size)]
    return builders.step_report(ranks=tuple(ranks)).model_copy(update={"source": source})


def test_a_step_as_expected_needs_no_sentence() -> None:
    """Neither do parts that are off by less than the aims of a prediction."""
    assert off_parts(PREDICTED, report()) == ()
    assert off_parts(PREDICTED, report(forward_communication_ms=1.3)) == ()


@pytest.mark.parametrize(
    ("fields", "begin", "cause"),
    [
        (
            {"backward_compute_ms": 2.5},
            "Rank 1's lookups and updates: 3.500 ms, 2.000 predicted, +75 %.",
            "it waited for a processor for 1.500 ms of it",
        ),
        (
            {"backward_compute_ms": 2.5, "compute_processor_ms": 3.5, "core_loop_ms": 0.45},
            "Rank 1's lookups and updates",
            "its core became slower, and took 1.50 times as long",
        ),
        (
            {"backward_compute_ms": 2.5, "compute_processor_ms": 3.5},
            "Rank 1's lookups and updates",
            "the cost models, which are of calls that are timed alone",
        ),
        (
            {"forward_communication_ms": 1.7, "processor_wait_share": 0.4},
            "Rank 1's forward exchange: 1.700 ms, 1.000 predicted, +70 %.",
            "a process waited for a processor for 40 % of the time",
        ),
        (
            {"dense_backward_ms": 4.0, "dense_processor_ms": 4.0},
            "Rank 1's dense part: 6.000 ms, 4.000 predicted, +50 %.",
            "it waited for a processor for 2.000 ms of it",
        ),
    ],
    ids=["waits", "slow core", "cost models", "exchange", "dense"],
)
def test_a_part_that_is_off_is_named_with_rank_and_cause(fields: dict[str, Any], begin: str, cause: str) -> None:
    """The cause is what accounts for half of the excess."""
    (sentence,) = off_parts(PREDICTED, report(**fields), core_loop_ms=0.3)

    assert sentence.startswith(begin)
    assert f"Most likely cause: {cause}" in sentence


def test_the_largest_part_is_named_where_the_total_is_off_by_many_small_ones() -> None:
    """Each part is within its limit, and all together are not."""
    (sentence,) = off_parts(
        PREDICTED, report(forward_communication_ms=1.35, backward_communication_ms=1.35, backward_compute_ms=1.5)
    )

    assert sentence.startswith("Rank 1's lookups and updates")


def test_exchanges_of_a_rank_alone_are_work_that_no_plan_prices() -> None:
    """TorchRec passes through its collectives, though nothing is sent."""
    alone = PREDICTED.model_copy(update={"forward_communication_microseconds": 0, "total_microseconds": 3000})

    (sentence,) = off_parts(alone, report(world_size=1))

    assert "forward exchange: 1.000 ms, 0.000 predicted." in sentence
    assert "collectives that exchange nothing" in sentence


def test_times_of_a_trial_are_what_is_expected() -> None:
    """It had the conditions of the training, so that only what changed since is a cause."""
    slow: dict[str, Any] = {"forward_communication_ms": 1.7, "processor_wait_share": 0.4}

    assert off_parts(PREDICTED, report(**slow), trial=report(**slow)) == ()
    (more,) = off_parts(PREDICTED, report(**slow), trial=report())
    (less,) = off_parts(PREDICTED, report(), trial=report(**slow))
    assert "1.700 ms, 1.000 in the trial, +70 %" in more
    assert "waited for a processor for 40 %" in more
    assert "40 % of the time in which it could run in the trial" in less


def test_what_cannot_be_compared_has_no_sentence() -> None:
    """Other devices, simulated predictions, and parts whose kernels the host launched late."""
    slow: dict[str, Any] = {"backward_compute_ms": 9.0}

    assert off_parts(PREDICTED, report(source="cpu:another", **slow)) == ()
    assert off_parts(PREDICTED.model_copy(update={"source": "simulated:test"}), report(**slow)) == ()
    bound = HostBoundShares(forward_compute=1.0, backward_compute=1.0)
    assert off_parts(PREDICTED, report(host_bound=bound, **slow)) == ()
