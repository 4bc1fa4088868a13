"""The sentence about ranks that come late to exchanges."""

from typing import Any

import pytest
from neuroshard_api.documents.step_report import MeasuredCollective, RankTimes, StepReport
from neuroshard_api.job.late_ranks import late_ranks_note
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from support import builders


def times(rank: int, wait_ms: float, **fields: Any) -> RankTimes:
    """Return a rank that waits for so long in the all-to-all of gradients."""
    collective = MeasuredCollective(
        kind=CollectiveKind.ALL_TO_ALL,
        family=Family.COLUMNS,
        backward_ms=1.0 + wait_ms,
        forward_wait_ms=0.0,
        backward_wait_ms=wait_ms,
    )
    return builders.rank_times(rank, backward_communication_ms=1.0 + wait_ms, collectives=(collective,), **fields)


def report(*ranks: RankTimes) -> StepReport:
    """Return a report of these ranks."""
    return builders.step_report(ranks=ranks)


@pytest.mark.parametrize(
    ("fields", "cause"),
    [
        (
            {"dense_forward_ms": 3.0, "dense_backward_ms": 3.0},
            "its time for the dense part is 3.000 ms longer than that of the others",
        ),
        ({"data_wait_ms": 5.0}, "its wait for data is 4.000 ms longer than that of the others"),
        ({"backward_compute_ms": 4.0}, "its time for lookups and updates is 3.000 ms longer than that of the others"),
        ({"processor_wait_share": 0.4}, "a worker waited for one for 40 % of the time"),
        ({}, "the cause is not known"),
    ],
    ids=["dense part", "data", "lookups", "processor", "unknown"],
)
def test_the_rank_that_comes_last_is_named_with_what_takes_it_longer(fields: dict[str, float], cause: str) -> None:
    """The part by which it is behind the others, or the processor that it had to wait for."""
    usual = {"dense_forward_ms": 1.5, "dense_backward_ms": 1.5}

    note = late_ranks_note(report(times(0, 4.0, **usual), times(1, 0.0, **{**usual, **fields})))

    assert note is not None
    assert "up to 4.000 ms" in note
    assert f"Rank 1 comes last: {cause}" in note.replace("processes share the cores, and ", "")


def test_ranks_that_wait_for_one_another_come_last_in_turns() -> None:
    """No rank is the late one; where they had to wait for processors, that is the cause."""
    note = late_ranks_note(report(times(0, 3.0, processor_wait_share=0.5), times(1, 2.5)))

    assert note is not None
    assert "in turns: processes share the cores" in note


@pytest.mark.parametrize("ranks", [(times(0, 0.1), times(1, 0.0)), (builders.rank_times(0), builders.rank_times(1))])
def test_little_waiting_is_not_worth_a_sentence(ranks: tuple[RankTimes, ...]) -> None:
    """Nor is what the trainer does not tell."""
    assert late_ranks_note(report(*ranks)) is None
