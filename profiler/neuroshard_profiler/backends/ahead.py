"""Rows of the next samples, drawn by other processes while the device times one. Draws the same rows as one process.

Drawing takes a core seconds where a GPU is done in a quarter of one, so a GPU that waits for it is idle most of a
profile, and its clocks fall. Rows pass through temporary files that are mapped into memory, 200 MB for a sample on
average, since a pipe would copy them in the process that launches the calls.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

import numpy as np
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.process.parent import end_with_parent

from neuroshard_profiler.backends.lookups import NUM_BATCHES, Batches, TableLookups, draw_batches

MAX_PROCESSES = 12
"""More than one GPU's samples need: drawing one takes a core 1.75 s on average, timing it a GPU a quarter of one."""
_SPARE = 2
"""Samples that are drawn in addition to one for each process, so that none waits for the device."""

logger = logging.getLogger(__name__)


class Drawing(Protocol):
    """Makes the batches that a sample's calls look up in turn."""

    def __call__(self, sample: ComputeSample, *, seed: int) -> Batches:
        """Return the batches of a sample; they follow from sample and seed alone."""
        ...


class DrawsRows(Protocol):
    """A backend that looks rows up."""

    draw: Drawing


def drawing_processes(*, num_cores: int, num_devices: int) -> int:
    """Return the processes that draw for one of a node's devices: its share of the cores but the one that launches."""
    return max(0, min(MAX_PROCESSES, num_cores // num_devices - 1))


def _processes(count: int) -> Executor:
    # Programs of their own: a process that drives a GPU must not fork.
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=end_with_parent)


@contextmanager
def drawing_ahead(
    backend: DrawsRows,
    upcoming: Iterable[tuple[ComputeSample, int]],
    *,
    num_processes: int,
    start: Callable[[int], Executor] = _processes,
) -> Iterator[None]:
    """Let a backend take rows that are drawn ahead, while the context lasts.

    Args:
        backend: whose rows they are.
        upcoming: samples and seeds in the order in which they will be asked for; others are drawn when they are.
        num_processes: that draw. 0: everything is drawn when it is asked for.
        start: starts that many.
    """
    if num_processes == 0:
        yield
        return
    before = backend.draw
    with tempfile.TemporaryDirectory(prefix="neuroshard-rows-") as folder:
        pool = start(num_processes)
        backend.draw = _Ahead(iter(upcoming), pool, Path(folder), count=num_processes + _SPARE)
        try:
            yield
        finally:
            backend.draw = before
            pool.shutdown(wait=True, cancel_futures=True)


class _Ahead:
    def __init__(
        self, upcoming: Iterator[tuple[ComputeSample, int]], pool: Executor, folder: Path, *, count: int
    ) -> None:
        self._upcoming = upcoming
        self._pool = pool
        self._folder = folder
        self._count = count
        self._num_drawn = 0
        self._ready: dict[tuple[str, int], Future[Path]] = {}
        """In the order in which they will be asked for."""
        self._fill()

    def __call__(self, sample: ComputeSample, *, seed: int) -> Batches:
        key = (sample.model_dump_json(), seed)
        if key not in self._ready:
            return draw_batches(sample, seed=seed)
        while next(iter(self._ready)) != key:  # samples that nobody asked for
            self._ready.pop(next(iter(self._ready))).add_done_callback(_remove)
        future = self._ready.pop(key)
        self._fill()
        try:
            file = future.result()
        except Exception as error:  # noqa: BLE001 - a full disk, a killed process: then the rows are drawn here
            logger.warning("rows were not drawn ahead (%s: %s)", type(error).__name__, error)
            return draw_batches(sample, seed=seed)
        found = _read(file, sample)
        file.unlink()  # the mapping keeps the rows
        return found

    def _fill(self) -> None:
        while len(self._ready) < self._count:
            following = next(self._upcoming, None)
            if following is None:
                return
            sample, seed = following
            self._num_drawn += 1
            file = self._folder / f"{self._num_drawn}.npy"
            try:
                self._ready[sample.model_dump_json(), seed] = self._pool.submit(_draw_to, file, sample, seed)
            except RuntimeError as error:  # the pool is broken: a process was killed
                logger.warning("rows are drawn one sample after the other from now on (%s)", error)
                self._upcoming = iter(())


def _draw_to(file: Path, sample: ComputeSample, seed: int) -> Path:
    """Write the lengths and the rows of each batch and table, one after the other."""
    batches = draw_batches(sample, seed=seed)
    np.save(file, np.concatenate([part for batch in batches for each in batch for part in (each.lengths, each.rows)]))
    return file


def _read(file: Path, sample: ComputeSample) -> Batches:
    values = np.load(file, mmap_mode="c")  # torch warns of arrays that cannot be written
    at = 0

    def lookups() -> TableLookups:
        nonlocal at
        lengths = values[at : at + sample.batch_size]
        at += sample.batch_size + int(lengths.sum())
        return TableLookups(lengths=lengths, rows=values[at - int(lengths.sum()) : at])

    return tuple(tuple(lookups() for _ in sample.tables) for _ in range(NUM_BATCHES))


def _remove(drawn: Future[Path]) -> None:
    if not drawn.cancelled() and drawn.exception() is None:
        drawn.result().unlink(missing_ok=True)
