"""Processes that measure: starts them at once, waits for their end, and starts one again that lost its device.

Processes may take as long as they need while they record or print something. On a busy machine the start alone takes
minutes, so a limit of the whole time would end profiles that make progress. Processes that hang are found by their
silence.
"""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from neuroshard_api.process.errors import PeerLostError
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_profiler.errors import MeasureError

SILENT_SECONDS = 600.0
"""Maximum time without a record or a line of output. The longest silence is the start: importing torch and FBGEMM took
42 s on two cores with a load of 25."""
KILL_AFTER_SECONDS = 45.0
"""Torchrun itself kills its processes 30 s after SIGTERM."""
_POLL_SECONDS = 0.2
_LOG_TAIL_LINES = 15


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurer:
    """A process that appends records to a file."""

    command: Sequence[str]
    records: Path
    log: Path
    """What it prints."""
    resumes: bool = False
    """Whether it is started again when it fails after it recorded something; the records then hold the failure."""

    @property
    def num_records(self) -> int:
        """Lines of its file."""
        return self.records.read_bytes().count(b"\n") if self.records.exists() else 0


@dataclass(kw_only=True, slots=True)
class _Silence:
    """Time since a file in the folders of some processes grew."""

    folders: Sequence[Path]
    clock: Callable[[], float]
    newest: str = ""
    """Name of the file that grew last; empty before one does."""
    _sizes: Mapping[Path, int] = field(init=False)
    _grown_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._sizes, self._grown_at = self._found(), self.clock()

    def seconds(self) -> float:
        """Return the seconds since the last growth that was seen."""
        now, sizes = self.clock(), self._found()
        grown = [path.name for path, size in sizes.items() if size != self._sizes.get(path)]
        if grown:
            self._sizes, self._grown_at, self.newest = sizes, now, grown[-1]
        return now - self._grown_at

    def _found(self) -> Mapping[Path, int]:
        found = {}
        for path in (path for folder in self.folders for path in sorted(folder.iterdir())):
            with contextlib.suppress(FileNotFoundError):  # renamed or removed since it was listed
                found[path] = path.stat().st_size
        return found


@dataclass(kw_only=True, slots=True)
class _Running:
    measurer: Measurer
    process: subprocess.Popen[bytes]
    num_records: int = field(init=False)
    """When the process was started."""

    def __post_init__(self) -> None:
        self.num_records = self.measurer.num_records


def run_measurers(
    measurers: Sequence[Measurer],
    *,
    on_poll: Callable[[int], None],
    silent_seconds: float = SILENT_SECONDS,
    kill_after_seconds: float = KILL_AFTER_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Run all at once and wait for their end.

    Args:
        measurers: run side by side; each ends by itself when its budget is spent.
        on_poll: called every 0.2 s with the number of records.
        silent_seconds: maximum time in which no file next to their records and logs grows; then they are terminated.
        kill_after_seconds: from SIGTERM on; a stopped process does not end by it.
        clock: seconds.

    Raises:
        PeerLostError: one ended since the other node did not come, or went.
        MeasureError: one failed or hangs; with the end of its log. The others are terminated.
    """
    running = [_start(each) for each in measurers]
    folders = list(dict.fromkeys(path.parent for each in measurers for path in (each.records, each.log)))
    silence = _Silence(folders=folders, clock=clock)
    try:
        while running:
            running = [left for each in running if (left := _left(each)) is not None]
            if running and silence.seconds() >= silent_seconds:
                since = silence.newest or "its start"
                raise _failure(running[0].measurer, f"has written nothing for {silent_seconds:.0f} s since {since}")
            on_poll(sum(each.num_records for each in measurers))
            time.sleep(_POLL_SECONDS if running else 0.0)
    finally:
        _end([each.process for each in running], kill_after_seconds)


def _left(running: _Running) -> _Running | None:
    """Return the process that goes on. None: it has ended with success. Raises MeasureError."""
    code, measurer = running.process.poll(), running.measurer
    if code is None:
        return running
    if code == 0:
        return None
    if measurer.resumes and measurer.num_records > running.num_records:
        return _start(measurer)
    raise _failure(measurer, f"ended with {code}", PeerLostError if code == ExitCode.PEER_LOST else MeasureError)


def _start(measurer: Measurer) -> _Running:
    measurer.log.parent.mkdir(parents=True, exist_ok=True)
    with measurer.log.open("ab") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            measurer.command, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    return _Running(measurer=measurer, process=process)


def _end(processes: Sequence[subprocess.Popen[bytes]], kill_after_seconds: float) -> None:
    """Terminate processes, and kill those that do not end by it."""
    for each in processes:
        each.terminate()
    until = time.monotonic() + kill_after_seconds
    for each in processes:
        try:
            each.wait(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
            each.wait()


def _failure(
    measurer: Measurer, ended: str, error: type[MeasureError | PeerLostError] = MeasureError
) -> MeasureError | PeerLostError:
    tail = measurer.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    if not tail:
        return error(
            f"a process that measures {ended}, and {measurer.log} is empty"
            "; hint: free memory and cores that other work takes; the same command then resumes"
        )
    return error(
        f"a process that measures {ended}; {measurer.log} ends with:\n"
        + "\n".join(tail)
        + "; hint: remove the cause that the log names; the same command then resumes"
    )
