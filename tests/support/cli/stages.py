"""Stages of ``neuroshard run`` without their processes: planner and profiler are called where the test runs."""

from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from neuroshard_cli.local.stage_process import StageProcess, StageTimeoutError
from neuroshard_planner.__main__ import main as planner
from neuroshard_profiler.__main__ import main as profiler

PLACE = "neuroshard_cli.local.stage_runner.StageProcess"
"""What `CalledStages` replaces."""
TIMES_OUT = "times out"
PROGRAMS: dict[str, Callable[[Sequence[str]], int]] = {"neuroshard_planner": planner, "neuroshard_profiler": profiler}


class EndedStage:
    """A stage that ended when it was started."""

    def __init__(self, outcome: int | str) -> None:
        self._outcome = outcome

    def poll(self) -> int:
        """Return the exit status."""
        if self._outcome == TIMES_OUT:
            raise StageTimeoutError
        return int(self._outcome)

    def stop(self) -> None:
        """Stop nothing."""


class CalledStages:
    """Calls the program of a stage, with its output in the stage's log; trainers and the like are started as ever.

    Args:
        first_planner: how the first planner ends, instead of planning: its exit code, or TIMES_OUT.
    """

    def __init__(self, first_planner: int | str | None = None) -> None:
        self._first_planner = first_planner

    def __call__(self, command: Sequence[str], *, log: Path, **options: Any) -> StageProcess | EndedStage:
        """Return the process of a stage."""
        program = PROGRAMS.get(command[2]) if command[1:2] == ["-m"] else None
        if program is None:
            return StageProcess(command, log=log, **options)
        outcome, self._first_planner = (self._first_planner, None) if program is planner else (None, None)
        with log.open("w", encoding="utf-8") as output, redirect_stdout(output), redirect_stderr(output):
            return EndedStage(program(command[3:]) if outcome is None else outcome)
