"""What codecs cost, from records of them."""

import numpy as np
import pytest
from neuroshard_api.documents.bundle import CodecTimes
from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.records import CodecSample, ProfileRecord
from neuroshard_api.documents.topology import DeviceType
from neuroshard_costs.codec_passes import codec_ms
from neuroshard_costs.fitting.codecs import MIN_RECORDS, fitted_codecs
from support import builders
from support.profiler.record_builders import compute_record

SIZES = ((64, 64), (64, 512), (1024, 64), (1024, 512))
"""Samples and columns."""


def codec_record(
    size: tuple[int, int], *, kind: WireType = WireType.INT8, pass_ms: float = 0.02, value_ms: float = 1e-6
) -> ProfileRecord:
    """Return a record of a codec that takes these times, and three times as long to decode."""
    sample = CodecSample(type=kind, batch_size=size[0], num_columns=size[1])
    times_ms = pass_ms + sample.num_values * value_ms
    return ProfileRecord(source="cpu:some", codec=sample, forward_ms=times_ms, backward_ms=3 * times_ms)


@pytest.mark.parametrize(("pass_ms", "value_ms"), [(0.02, 1e-6), (0.0, 1e-6), (0.02, 0.0)])
def test_times_of_passes_and_values_are_told_apart_for_each_type(pass_ms: float, value_ms: float) -> None:
    """Whether both cost time or one of them; encoding and decoding have their own."""
    records = [codec_record(size, pass_ms=pass_ms, value_ms=value_ms) for size in SIZES]
    others = [codec_record(size, kind=WireType.FP16, pass_ms=0.5, value_ms=0.0) for size in SIZES]

    fp16, int8 = fitted_codecs([*records, *others, compute_record()])

    assert (fp16.type, int8.type) == (WireType.FP16, WireType.INT8)
    assert fp16.pass_ms == pytest.approx((0.5, 1.5))
    assert int8.pass_ms == pytest.approx((pass_ms, 3 * pass_ms), abs=1e-9)
    assert int8.value_ms == pytest.approx((value_ms, 3 * value_ms), abs=1e-12)


def test_few_records_of_a_type_are_not_fitted() -> None:
    """Nor are those of codecs that failed."""
    records = [codec_record(size) for size in SIZES[: MIN_RECORDS - 1]]
    failed = ProfileRecord(source="cpu:some", codec=records[0].codec, failure="no memory")

    assert fitted_codecs([*records, failed]) == ()


@pytest.fixture
def device() -> DeviceType:
    """Return a device."""
    return builders.topology(1).device


def test_measured_types_have_their_times_and_others_those_of_memory_traffic(device: DeviceType) -> None:
    """A measured codec that is ten times slower than memory would be is priced so."""
    encoded, decoded = np.array([1e6, 0.0]), np.array([2e6, 0.0])
    measured = CodecTimes(type=WireType.INT8, pass_ms=(0.1, 0.2), value_ms=(1e-6, 2e-6))

    own = codec_ms(WireType.INT8, encoded, decoded, device=device, measured=(measured,))
    other = codec_ms(WireType.FP16, encoded, decoded, device=device, measured=(measured,))

    assert own == pytest.approx([0.3 + 1.0 + 4.0, 0.3])
    assert other.tolist() == codec_ms(WireType.FP16, encoded, decoded, device=device, measured=()).tolist()
    assert other[1] == pytest.approx(2 * 0.005)
