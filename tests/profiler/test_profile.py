"""Specification of the stage's parts that fail; test_main.py has whole runs."""

import sys
from pathlib import Path

import pytest
from neuroshard_api.tables import Optimizer
from neuroshard_profiler.backends import select
from neuroshard_profiler.budget import Budget, BudgetBar
from neuroshard_profiler.errors import MeasureError, MissingPackageError, SettingsError
from neuroshard_profiler.profile import checked_backend, run_ranks
from neuroshard_profiler.settings import ProfileSettings
from rich.progress import Progress


class SpentBudget(Budget):
    """A budget whose grace is over, too."""

    @property
    def elapsed_seconds(self) -> float:
        """Far more than any."""
        return 1e9


@pytest.mark.parametrize(
    ("kind", "message"),
    [(Budget, "ended with 3;.*rank 1 lost its memory"), (SpentBudget, "did not end in time")],
    ids=["failed", "too slow"],
)
def test_ranks_that_fail_are_told_with_the_end_of_their_log(tmp_path: Path, kind: type[Budget], message: str) -> None:
    """The log stays where the message says."""
    budget = kind(seconds=60)
    code = "import sys; print('rank 1 lost its memory', flush=True); sys.exit(3)"
    bar = BudgetBar(Progress(disable=True), "all-to-all", budget)

    with pytest.raises(MeasureError, match=f"(?s){message}"):
        run_ranks([sys.executable, "-c", code], tmp_path / "communication.jsonl", budget, bar)
    assert (tmp_path / "communication.log").exists()


def test_an_optimizer_without_a_kernel_is_refused_before_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    """With those that there are."""
    settings = ProfileSettings(
        out=Path(), backend="torch_native", device_kind="cpu", optimizer=Optimizer.ROWWISE_ADAGRAD
    )

    with pytest.raises(SettingsError, match=r"rowwise_adagrad has no kernel .* choose one of sgd, adagrad, adam"):
        checked_backend(settings)
    monkeypatch.setattr(select, "find_spec", lambda _: None)
    with pytest.raises(MissingPackageError, match="backend torch_native: needs the package torch"):
        checked_backend(settings)
