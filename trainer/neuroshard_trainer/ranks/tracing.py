"""Named ranges around the phases of a step, for torch.profiler and NVIDIA's tools, and a trace of some steps.

    neuroshard/wait for data | neuroshard/forward | neuroshard/backward | neuroshard/optimizer
    neuroshard/evaluation    | neuroshard/copy of the state | neuroshard/write of a checkpoint

A range costs about a microsecond where nobody records. TorchRec's pipeline has ranges of its own around its stages.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from neuroshard_api.process.errors import InputError
from torch.profiler import ProfilerActivity, profile, record_function

PREFIX = "neuroshard/"
_LONGEST_STEPS = 40
"""Characters of two numbers below 2**63 and a colon; Python refuses to read numbers of thousands of digits."""

logger = logging.getLogger(__name__)


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
                f"--trace-steps: {text[:_LONGEST_STEPS]!r} is not FIRST:END with FIRST below END; hint: try 100:105"
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
        self._has_begun = False

    def begin_step(self, step: int) -> None:
        """Begin or end the trace where the step is the first, or the one after the last."""
        if self._steps is None:
            return
        if self._profile is None and self._steps.first <= step < self._steps.end:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if _uses_cuda() else [])]
            self._profile = profile(activities=activities)
            self._profile.start()
            self._has_begun = True
        elif step >= self._steps.end:
            self._write()

    def __enter__(self) -> Self:
        """Return the trace."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write the trace, however the training ends; a trace that cannot be written is a warning."""
        self._write()
        if kind is None and self._steps is not None and not self._has_begun:
            logger.warning(
                "steps %d to %d, of which a trace was asked for, lie before the first step or after the last",
                self._steps.first,
                self._steps.end - 1,
            )

    def _write(self) -> None:
        recorded, self._profile = self._profile, None
        if recorded is None:
            return
        part = self._file.with_name(f".{self._file.name}.part")
        try:
            recorded.stop()
            recorded.export_chrome_trace(str(part))
            part.replace(self._file)  # fails where the profiler, which raises nothing, has not written
        except (OSError, RuntimeError) as error:
            logger.warning("%s: the trace cannot be written (%s); the training is not affected", self._file, error)


def _uses_cuda() -> bool:
    """Whether this process has a context on a GPU."""
    found: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call] # torch's
    return found
