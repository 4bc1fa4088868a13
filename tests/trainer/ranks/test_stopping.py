"""Votes of all ranks: in steps that all agree on, and rare where steps are short."""

import json
from pathlib import Path

import pytest
from neuroshard_trainer.ranks.stopping import MAX_STEPS, PERIOD_SECONDS
from support.trainer.rank_server import RankServer

WORKER = Path(__file__).with_name("stopping_worker.py")
ASKED_STEP = 500


@pytest.mark.processes
@pytest.mark.parametrize(
    ("step_ms", "steps_between"),
    [((9.0, 9.0), 27), ((9.0, 30.0), 8), ((2000.0, 9.0), 1), ((0.1, 0.1), MAX_STEPS), ((0.0, 0.0), MAX_STEPS)],
    ids=["alike", "one slower", "slow", "fast", "no time"],
)
def test_ranks_vote_about_once_in_a_period(
    tmp_path: Path, ranks: RankServer, step_ms: tuple[float, float], steps_between: int
) -> None:
    """In the same steps, by the slowest rank's time; a wish to stop is one of all ranks two votes later."""
    ranks.succeed(f"{WORKER}:main", tmp_path, step_ms, 1, ASKED_STEP, folder=tmp_path, count=2)

    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["voted"][:2] == [1, 2]
    gaps = [after - before for before, after in zip(first["voted"][3:], first["voted"][4:], strict=False)]
    assert set(gaps) == {steps_between}
    delay = first["stopped"] - ASKED_STEP
    assert 0 < delay <= 2 * steps_between
    assert steps_between == 1 or delay * max(step_ms) / 1000 <= 2 * PERIOD_SECONDS
