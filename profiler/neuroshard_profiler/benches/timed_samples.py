"""Collects records of samples that are the same in every profile, each timed forward and backward. Draws none."""

from collections.abc import Iterable
from typing import Any, Literal, Protocol, TypeVar

from neuroshard_api.documents.document import Value
from neuroshard_api.documents.records import ProfileRecord

from neuroshard_profiler.backends.base import LabelledBackend
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.times import Repeats, Times

Sample = TypeVar("Sample", bound=Value)
_Timed_contra = TypeVar("_Timed_contra", contravariant=True)


class Measure(Protocol[_Timed_contra]):
    """Times a sample."""

    def __call__(self, sample: _Timed_contra, /, *, repeats: Repeats) -> Times:
        """Return the times. Raises UnusableSampleError."""
        ...


def collect_timed(
    backend: LabelledBackend,
    file: RecordsFile,
    samples: Iterable[Sample],
    *,
    kind: Literal["expansion", "codec", "matrix"],
    measure: Measure[Sample],
) -> None:
    """Append a record of each sample that the file lacks; one that a device refuses gets its reason.

    Args:
        backend: whose records they are.
        file: takes them up in the order of the samples.
        samples: all of them.
        kind: field of a record that has the sample.
        measure: times a sample.
    """
    for sample in list(samples)[len(file.records) :]:
        of_kind: dict[str, Any] = {kind: sample}
        record = ProfileRecord(source=backend.source, environment=backend.environment, **of_kind)
        with file.appended(record) as measured:
            times = measure(sample, repeats=backend.repeats)
            measured.update(times.fields, environment={**backend.environment, **times.conditions})
