"""Collects records of samples that are the same in every profile, each timed forward and backward. Draws none."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from neuroshard_api.documents.document import Value
from neuroshard_api.documents.records import ProfileRecord

from neuroshard_profiler.backends.base import LabelledBackend, Repeats, Times
from neuroshard_profiler.records import RecordsFile

Sample = TypeVar("Sample", bound=Value)


def collect_timed(
    backend: LabelledBackend,
    file: RecordsFile,
    samples: Iterable[Sample],
    *,
    record: Callable[[Sample], ProfileRecord],
    measure: Callable[[Sample, Repeats], Times],
) -> None:
    """Append a record of each sample that the file lacks; one that a device refuses gets its reason.

    Args:
        backend: whose records they are.
        file: takes them up in the order of the samples.
        samples: all of them.
        record: of a sample, without times.
        measure: times a sample. Raises UnusableSampleError.
    """
    for sample in list(samples)[len(file.records) :]:
        with file.appended(record(sample)) as measured:
            measured.update(measure(sample, backend.repeats).fields)
