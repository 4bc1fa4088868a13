"""Training under several plans in turns, from a script of the user's own."""

from pathlib import Path

import pytest
from neuroshard_api.documents.training_comparison import TrainingComparison
from neuroshard_torchrec import DropInError, show_comparison
from support.trainer.rank_server import RankServer
from support.trainer.training_builders import training_comparison

FOLDER = Path(__file__).parent


@pytest.mark.processes
@pytest.mark.slow
def test_a_script_compares_plans_from_equal_weights_on_equal_batches(tmp_path: Path, ranks: RankServer) -> None:
    """Losses of a cut table, and of one with copies, are those of the whole one; every round has its times.

    What differs between ranks, or fails on one of them, is the error of all. A script's own updates of copies are
    nowhere seen, so that the embedding part of such a plan is not timed.
    """
    result = tmp_path / "found.json"
    ranks.succeed(f"{FOLDER / 'comparison_worker.py'}:main", result, folder=tmp_path, count=2)
    found = TrainingComparison.read(result)
    ours, cut, copied = (found.plans[name] for name in ("ours", "cut", "copied"))

    assert (found.world_size, found.rounds, found.steps_per_round, found.device) == (2, 3, 2, "cpu")
    assert [len(each.step_ms) for each in (ours, cut)] == [3, 3]
    assert cut.largest_loss_difference < 1e-6
    assert copied.largest_loss_difference < 1e-6
    assert copied.embedding_ms is None
    assert ours.largest_loss_difference == 0
    assert ours.final_loss == pytest.approx(cut.final_loss, abs=1e-6)
    for each in (ours, cut):
        assert each.embedding_ms is not None
        assert all(0 < part < whole for part, whole in zip(each.embedding_ms, each.step_ms, strict=True))
        assert each.interval[0] <= each.steps_per_second <= each.interval[1]
    assert ours.speedup == 1
    assert cut.speedup_interval[0] <= cut.speedup <= cut.speedup_interval[1]


def test_a_plot_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After the table, which is not lost."""
    with pytest.raises(DropInError, match=r"plot: .*nowhere.* cannot be written: No such file or directory"):
        show_comparison(training_comparison(), plot=tmp_path / "nowhere" / "rounds.svg")

    assert "steps/s" in capsys.readouterr().out
