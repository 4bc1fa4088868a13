"""Measures fused embedding calls on sampled table sets, one record each, until the budget is spent."""

from collections.abc import Callable

import numpy as np
from neuroshard_api.records import ComputeSample, ProfileRecord

from neuroshard_profiler.backends.base import Backend, Repeats
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.errors import OutOfDeviceMemoryError
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.sampling import SampleSpace, draw_compute_sample

_COMPUTE_STREAM = 0


def collect_compute(
    backend: Backend,
    space: SampleSpace,
    file: RecordsFile,
    *,
    budget: Budget,
    seed: int = 0,
    repeats: Repeats | None = None,
    on_record: Callable[[int], None] = lambda _: None,
) -> None:
    """Append records to the file until the budget is spent.

    The sample of each line follows from the seed and the line's number alone, so a run that goes on after a stop
    measures what one without a stop would have.

    Args:
        backend: times the samples.
        space: what they are drawn from.
        file: is appended to; it may hold records already.
        budget: of time and records; the file's earlier records count.
        seed: of the samples and of the rows they look up.
        repeats: of each call. None: the default.
        on_record: called after each record with how many there are.
    """
    while not budget.is_spent(len(file.records)):
        index = len(file.records)
        sample = draw_compute_sample(space, np.random.default_rng([seed, _COMPUTE_STREAM, index]))
        record = _measured(backend, sample, seed=index, repeats=repeats or Repeats())
        file.append(record.model_copy(update={"elapsed_seconds": budget.elapsed_seconds}))
        on_record(len(file.records))


def _measured(backend: Backend, sample: ComputeSample, *, seed: int, repeats: Repeats) -> ProfileRecord:
    try:
        times = backend.measure(sample, seed=seed, repeats=repeats)
    except OutOfDeviceMemoryError:
        return ProfileRecord(source=backend.source, compute=sample, out_of_memory=True, environment=backend.environment)
    return ProfileRecord(
        source=backend.source,
        compute=sample,
        forward_ms=times.forward_ms,
        backward_ms=times.backward_ms,
        spread=times.spread,
        num_repeats=times.num_repeats,
        environment=backend.environment,
    )
