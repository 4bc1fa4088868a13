"""Measures codecs of pooled embeddings: values that are encoded to each type on the wire, and decoded. Draws none."""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from neuroshard_api.documents.communication import WIRE_FORMATS, WireType
from neuroshard_api.documents.records import CodecSample

from neuroshard_profiler.backends.base import LabelledBackend
from neuroshard_profiler.benches.timed_samples import collect_timed
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.times import Repeats, Times

BATCH_SIZES = (64, 1024, 16384, 131072)
"""The largest keep a GPU busy for longer than the host takes to launch a pass."""
COLUMNS = (64, 256)
MAX_CPU_VALUES = 2**18
"""Of a sample on a core, which takes milliseconds for them."""


@runtime_checkable
class CodecBackend(LabelledBackend, Protocol):
    """Times codecs on one device; backends without FBGEMM have none."""

    def measure_codec(self, sample: CodecSample, *, repeats: Repeats) -> Times:
        """Time the sample's encoding, as forward, and its decoding, as backward. Raises UnusableSampleError."""
        ...


def codec_samples(*, on_cpu: bool) -> Iterator[CodecSample]:
    """Yield the samples of each type that there is a codec for."""
    for kind in WireType:
        if kind is WireType.FP32 or (on_cpu and not WIRE_FORMATS[kind].on_cpu):
            continue
        for batch_size in BATCH_SIZES:
            for columns in COLUMNS:
                if not on_cpu or batch_size * columns <= MAX_CPU_VALUES:
                    yield CodecSample(type=kind, batch_size=batch_size, num_columns=columns)


def collect_codecs(backend: CodecBackend, file: RecordsFile, *, on_cpu: bool) -> None:
    """Append a record of each sample that the file lacks; one that a device refuses gets its reason."""
    collect_timed(backend, file, codec_samples(on_cpu=on_cpu), kind="codec", measure=backend.measure_codec)
