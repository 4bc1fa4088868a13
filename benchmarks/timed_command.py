"""Processor time and time by the clock of a command."""

import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Times:
    """One run of a command, with the processes that it started and waited for."""

    processor_s: float
    """User and system."""
    clock_s: float


def run_timed(command: Sequence[str], **options: Any) -> tuple["subprocess.CompletedProcess[str]", Times]:  # noqa: ANN401 - as subprocess.run takes them
    """Run a command with the options of ``subprocess.run``; return how it ended, and its times."""
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(command, **options)  # noqa: PLW1510, S603 - the caller chooses; the project's own commands
    clock_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    return ended, Times(processor_s=processor_s, clock_s=clock_s)
