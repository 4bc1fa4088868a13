"""Specification of rows that other processes draw."""

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from neuroshard_api.documents.records import ComputeSample
from neuroshard_profiler.backends import ahead
from neuroshard_profiler.backends.ahead import Drawing, drawing_ahead, drawing_processes
from neuroshard_profiler.backends.lookups import Batches, draw_batches
from support.builders import table
from support.profiler.profiler_builders import compute_sample

SAMPLES = [
    (compute_sample(table(f"t{number}", num_embeddings=500 + number, pooling_factor=1.0 + number)), number)
    for number in range(8)
]


class Backend:
    """Looks rows up."""

    draw: Drawing = staticmethod(draw_batches)


def threads(count: int) -> Executor:
    """Start threads, which share this process."""
    return ThreadPoolExecutor(count)


def same(found: Batches, sample: ComputeSample, seed: int) -> bool:
    """Return whether batches are those that this process draws."""
    return all(
        np.array_equal(ours.rows, theirs.rows) and np.array_equal(ours.lengths, theirs.lengths)
        for batch, other in zip(found, draw_batches(sample, seed=seed), strict=True)
        for ours, theirs in zip(batch, other, strict=True)
    )


def test_other_processes_draw_the_rows_that_this_one_would() -> None:
    """Lengths and rows of every batch, through real processes."""
    backend = Backend()
    two_tables = (compute_sample(), 5)
    with drawing_ahead(backend, [*SAMPLES[:2], two_tables], num_processes=1):
        found = [(backend.draw(sample, seed=seed), sample, seed) for sample, seed in (*SAMPLES[:2], two_tables)]

    assert all(same(*each) for each in found)
    assert backend.draw is draw_batches


def test_rows_are_drawn_before_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many samples as there are processes, and two more; each that is taken makes room for the next."""
    given: list[int] = []

    def upcoming() -> Iterator[tuple[ComputeSample, int]]:
        for sample, seed in SAMPLES:
            given.append(seed)
            yield sample, seed

    backend = Backend()
    with drawing_ahead(backend, upcoming(), num_processes=2, start=threads):
        assert given == [0, 1, 2, 3]
        monkeypatch.setattr(ahead, "draw_batches", None)  # nothing is drawn here
        rows = backend.draw(SAMPLES[0][0], seed=0)
        assert given == [0, 1, 2, 3, 4]
        monkeypatch.undo()

    assert same(rows, *SAMPLES[0])


def test_what_was_not_foreseen_is_drawn_when_it_is_asked_for() -> None:
    """Launches have samples of their own, and a sample that was passed over is drawn no more."""
    backend = Backend()
    with drawing_ahead(backend, SAMPLES, num_processes=1, start=threads):
        other = backend.draw(compute_sample(), seed=99)
        later = backend.draw(SAMPLES[2][0], seed=2)
        earlier = backend.draw(SAMPLES[0][0], seed=0)

    assert same(other, compute_sample(), 99)
    assert same(later, *SAMPLES[2])
    assert same(earlier, *SAMPLES[0])


def test_a_sample_that_no_process_could_draw_is_drawn_here(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk costs time and no record."""

    def full(file: Path, sample: ComputeSample, seed: int) -> Path:  # noqa: ARG001 - its signature
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ahead, "_draw_to", full)
    backend = Backend()
    with drawing_ahead(backend, SAMPLES, num_processes=1, start=threads):
        rows = backend.draw(SAMPLES[0][0], seed=0)

    assert same(rows, *SAMPLES[0])
    assert "No space left on device" in caplog.text


def test_without_processes_nothing_is_drawn_ahead() -> None:
    """Cores that are timed themselves are left alone."""
    backend = Backend()
    with drawing_ahead(backend, SAMPLES, num_processes=0, start=threads):
        assert backend.draw is draw_batches


@pytest.mark.parametrize(
    ("num_cores", "num_devices", "expected"), [(16, 1, 12), (96, 8, 11), (8, 8, 0), (2, 1, 1), (4, 8, 0)]
)
def test_each_gpu_has_its_share_of_the_cores(num_cores: int, num_devices: int, expected: int) -> None:
    """But for the one that launches its calls."""
    assert drawing_processes(num_cores=num_cores, num_devices=num_devices) == expected
