"""Named ranges around the phases of a step, for torch.profiler and NVIDIA's tools, and a trace of some steps.

    neuroshard/wait for data | neuroshard/forward | neuroshard/backward | neuroshard/optimizer
    neuroshard/evaluation    | neuroshard/copy of the state | neuroshard/write of a checkpoint

A range costs about a microsecond where nobody records. TorchRec's pipeline has ranges of its own around its stages.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from neuroshard_trainer.errors import InputError
from neuroshard_trainer.files import storage_error

PREFIX = "neuroshard/"
_LONGEST_STEPS = 40
"""Characters of two numbers below 2**63 and a colon; Python refuses to read numbers of thousands of digits."""


@contextmanager
def traced(phase: str) -> Iterator[None]:
    """Give a phase its range in torch.profiler's traces and, where this process uses CUDA, in NVTX."""
    name = PREFIX + phase
    has_nvtx = _uses_cuda()
    with record_function(name):
        if has_nvtx:
            torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call] # torch's
        try:
            yield
        finally:
            if has_nvtx:
                torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call] # torch's


@dataclass(frozen=True, slots=True)
class TracedSteps:
    """Steps that are traced: from ``first`` up to, and without, ``end``; counted from the start of the training."""

    first: int
    end: int

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Return the steps of ``100:105``. Raises InputError."""
        first, _, end = text.partition(":")
        is_short = len(text) <= _LONGEST_STEPS
        if not (is_short and first.isdecimal() and end.isdecimal() and int(first) < int(end)):
            raise InputError(
                f"--trace-steps: {text[:_LONGEST_STEPS]!r} is not FIRST:END with FIRST below END; try 100:105"
            )
        return cls(int(first), int(end))


class Trace:
    """A trace of some steps of one rank, in Chrome's format.

    Args:
        steps: which. None: nothing is traced.
        file: is written after the last of them.
    """

    def __init__(self, steps: TracedSteps | None, file: Path) -> None:
        self._steps = steps
        self._file = file
        self._profile: profile | None = None

    def begin_step(self, step: int) -> None:
        """Begin or end the trace where the step is the first, or the one after the last. Raises StorageError."""
        if self._steps is None:
            return
        if self._profile is None and self._steps.first <= step < self._steps.end:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if _uses_cuda() else [])]
            self._profile = profile(activities=activities)
            self._profile.start()
        elif step >= self._steps.end:
            self._write()

    def __enter__(self) -> Self:
        """Return the trace."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write what was traced, however the training ends."""
        self._write()

    def _write(self) -> None:
        recorded, self._profile = self._profile, None
        if recorded is None:
            return
        recorded.stop()
        try:
            recorded.export_chrome_trace(str(self._file))
        except (OSError, RuntimeError) as error:
            raise storage_error(self._file, OSError(str(error))) from error


def _uses_cuda() -> bool:
    """Whether this process has a context on a GPU."""
    found: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch's
    return found
