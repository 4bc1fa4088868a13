"""How many processors other programs use next to a run."""

import os
from pathlib import Path

import pytest
from neuroshard_cli.local.other_work import OtherWork

TICKS = os.sysconf("SC_CLK_TCK")


def written(file: Path, *, user: float, idle: float, stolen: float = 0.0) -> None:
    """Write the seconds that the processors spent, of which a guest's are a part of the user's."""
    seconds = (user, 0, 1, idle, 5, 0, 0, stolen, user, 0)
    file.write_text(f"cpu  {' '.join(str(round(TICKS * each)) for each in seconds)}\ncpu0 1 2 3\n")


def test_others_use_what_the_machine_did_besides_the_run(tmp_path: Path) -> None:
    """In 10 s the machine computed for 18 s, 3 s of which its host took, and the run for 12 s."""
    clock, own = iter([100.0, 110.0]), iter([2.0, 14.0])
    written(tmp_path / "stat", user=50, idle=7)
    others = OtherWork(tmp_path / "stat", own=lambda: next(own), clock=lambda: next(clock))
    written(tmp_path / "stat", user=65, idle=9, stolen=3)

    assert others.processors() == pytest.approx(0.6)


@pytest.mark.parametrize(("is_there", "seconds"), [(False, 10.0), (True, 0.2)], ids=["no file", "no time"])
def test_what_the_system_does_not_count_is_not_known(tmp_path: Path, seconds: float, *, is_there: bool) -> None:
    """Another system has no such file; a training that is reused takes no time."""
    clock = iter([0.0, seconds])
    if is_there:
        written(tmp_path / "stat", user=1, idle=1)

    assert OtherWork(tmp_path / "stat", own=lambda: 0.0, clock=lambda: next(clock)).processors() is None
