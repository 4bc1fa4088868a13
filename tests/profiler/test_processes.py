"""Specification of processes that measure, with real processes."""

import os
import sys
from itertools import count
from pathlib import Path

import pytest
from neuroshard_profiler.errors import MeasureError
from neuroshard_profiler.processes import Measurer, run_measurers

FAILS_TWICE = """
import pathlib, sys
path = pathlib.Path(sys.argv[1])
lines = path.read_text().splitlines() if path.exists() else []
path.write_text("".join(line + "\\n" for line in [*lines, "record"]))
sys.exit(3 if len(lines) < 2 else 0)
"""
RECORDS_SLOWLY = """
import pathlib, sys, time
for _ in range(6):
    with pathlib.Path(sys.argv[1]).open("a") as records:
        records.write("record\\n")
    time.sleep(0.25)
"""
"""A record in about each poll."""


def measurer(folder: Path, code: str, *, name: str = "a", resumes: bool = False) -> Measurer:
    """Return a process that runs this code, with its records file as the argument."""
    records = folder / f"{name}.jsonl"
    return Measurer(
        command=[sys.executable, "-c", code, str(records)],
        records=records,
        log=folder / f"{name}.log",
        resumes=resumes,
    )


def test_a_process_that_fails_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    """The log stays where the message says."""
    failing = measurer(tmp_path, "import sys; print('rank 1 lost its memory', flush=True); sys.exit(3)")

    with pytest.raises(MeasureError, match=r"(?s)ended with 3;.*rank 1 lost its memory"):
        run_measurers([failing], on_poll=lambda _: None)
    assert failing.log.exists()


def test_a_process_that_records_may_take_any_time(tmp_path: Path) -> None:
    """Six records with 100 s between them outlive a limit of 150 s without a record."""
    slow = measurer(tmp_path, RECORDS_SLOWLY)

    run_measurers([slow], on_poll=lambda _: None, silent_seconds=150.0, clock=lambda: 100.0 * slow.num_records)

    assert slow.num_records == 6


def test_a_process_that_is_silent_too_long_is_reported_with_what_it_wrote_last(tmp_path: Path) -> None:
    """The hint names the log where it holds a line, and the machine where it is empty."""
    hangs = measurer(tmp_path, "import signal; print('measuring matrices', flush=True); signal.pause()")
    silent = measurer(tmp_path, "import signal; signal.pause()", name="b")
    seconds = count(step=400)

    def clock() -> float:
        """Return 0 until the log has its line."""
        return float(next(seconds)) if hangs.log.exists() and hangs.log.stat().st_size else 0.0

    written = r"(?s)has written nothing for 600 s since a\.log; .* ends with:\nmeasuring matrices; hint: remove"
    with pytest.raises(MeasureError, match=written):
        run_measurers([hangs], on_poll=lambda _: None, clock=clock)
    nothing = r"has written nothing for 600 s since its start, and .*b\.log is empty; hint: free memory and cores"
    with pytest.raises(MeasureError, match=nothing):
        run_measurers([silent], on_poll=lambda _: None, clock=clock)


def test_a_process_that_fails_without_a_word_has_a_hint_of_its_own(tmp_path: Path) -> None:
    """Its log names no cause; one that is killed, or too slow, writes none."""
    with pytest.raises(MeasureError, match=r"ended with 3, and .*a\.log is empty; hint: free memory and cores"):
        run_measurers([measurer(tmp_path, "import sys; sys.exit(3)")], on_poll=lambda _: None)


def test_a_process_that_recorded_its_failure_is_started_again(tmp_path: Path) -> None:
    """A lost device costs one sample and a start; the other processes go on."""
    seen: list[int] = []
    both = [
        measurer(tmp_path, FAILS_TWICE, resumes=True),
        measurer(tmp_path, "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text('record\\n')", name="b"),
    ]

    run_measurers(both, on_poll=seen.append)

    assert [each.num_records for each in both] == [3, 1]
    assert seen[-1] == 4


def test_a_process_that_fails_before_it_records_is_not_started_again(tmp_path: Path) -> None:
    """It would fail in the same way for ever."""
    with pytest.raises(MeasureError, match="ended with 3"):
        run_measurers([measurer(tmp_path, "import sys; sys.exit(3)", resumes=True)], on_poll=lambda _: None)


def test_the_others_end_when_one_fails(tmp_path: Path) -> None:
    """Nothing is left running on the node."""
    pid_file = tmp_path / "pid"
    endless = f"""
import os, pathlib, signal
pid = pathlib.Path({str(pid_file)!r})
pid.with_name("whole").write_text(str(os.getpid()))
pid.with_name("whole").replace(pid)
signal.pause()
"""
    waits = f"import os, sys, time\nwhile not os.path.exists({str(pid_file)!r}): time.sleep(0.01)\nsys.exit(3)"

    with pytest.raises(MeasureError):
        run_measurers(
            [measurer(tmp_path, waits), measurer(tmp_path, endless, name="b")],
            on_poll=lambda _: None,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_a_stopped_process_is_killed_when_another_fails(tmp_path: Path) -> None:
    """SIGTERM waits for a process that does not run; the profile does not."""
    pid_file = tmp_path / "pid"
    stops = f"""
import os, pathlib, signal
pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
os.kill(os.getpid(), signal.SIGSTOP)
"""
    fails = f"""
import pathlib, sys, time
import psutil
pid = pathlib.Path({str(pid_file)!r})
while not (pid.exists() and pid.read_text() and psutil.Process(int(pid.read_text())).status() == psutil.STATUS_STOPPED):
    time.sleep(0.01)
sys.exit(3)
"""

    with pytest.raises(MeasureError, match="ended with 3"):
        run_measurers(
            [measurer(tmp_path, fails), measurer(tmp_path, stops, name="b")],
            on_poll=lambda _: None,
            kill_after_seconds=0.5,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
