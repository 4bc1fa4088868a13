"""The sentence on the difference between a run's prediction and its measurement."""

import pytest
from neuroshard_report.html.run_page import PARTS, RankParts, difference_text

PREDICTED = dict.fromkeys(PARTS, 1.0)


@pytest.mark.parametrize(
    ("share", "cause"),
    [(0.6, "Most likely cause: its process waited for a processor for 60.0 % of the time"), (0.01, ""), (None, "")],
    ids=["busy", "idle", "not known"],
)
def test_the_part_that_is_off_most_is_named_with_its_cause(share: float | None, cause: str) -> None:
    """With the rank, and nothing where the cause is not known."""
    rank = RankParts(
        rank=3,
        predicted=PREDICTED,
        measured={**PREDICTED, "backward exchange": 4.0, "forward compute": 1.5},
        host_bound=(),
        step_ms=20.0,
        processor_wait_share=share,
    )

    text = difference_text(rank)

    assert text.startswith(
        "Rank 3 measured 3.50 ms more than predicted; most of it is backward exchange: 3.00 ms more."
    )
    assert cause in text
    assert ("Most likely cause" in text) is bool(cause)


def test_exchanges_of_a_rank_alone_are_work_that_no_plan_predicts() -> None:
    """TorchRec passes through its collectives, though nothing is sent."""
    rank = RankParts(
        rank=0,
        predicted={**PREDICTED, "index exchange": 0.0},
        measured={**PREDICTED, "index exchange": 0.4},
        host_bound=(),
        step_ms=20.0,
    )

    assert "collectives that exchange nothing" in difference_text(rank)
