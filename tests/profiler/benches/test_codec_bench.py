"""How codecs are measured, on a real core."""

from pathlib import Path

import pytest
import torch
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType
from neuroshard_api.documents.records import CodecSample
from neuroshard_costs.fitting.codecs import fitted_codecs
from neuroshard_profiler.backends.torch_native import TorchNativeBackend
from neuroshard_profiler.benches.codec import MAX_CPU_VALUES, CodecBackend, codec_samples, collect_codecs
from neuroshard_profiler.devices.cpu import CpuDevice
from neuroshard_profiler.errors import KernelError
from neuroshard_profiler.records import RecordsFile
from neuroshard_profiler.times import Repeats, Times
from support.profiler.profiler_builders import QUICK

pytestmark = [
    pytest.mark.torch,
    pytest.mark.torchrec,
    pytest.mark.filterwarnings("ignore"),  # FBGEMM's own warnings are not ours to mend; it is imported in the tests
]

ON_CPU = (WireType.FP16, WireType.INT8, WireType.MX4, WireType.TOP32, WireType.TOP16, WireType.TOP8)


def one_core(*, refused: WireType | None = None) -> CodecBackend:
    """Return a core that refuses a type."""
    from neuroshard_profiler.backends.fbgemm import FbgemmBackend

    class OneCore(FbgemmBackend):
        def measure_codec(self, sample: CodecSample, *, repeats: Repeats) -> Times:
            if sample.type is refused:
                raise KernelError("no such kernel")
            return super().measure_codec(sample, repeats=repeats)

    return OneCore(CpuDevice(core=0, repeats=QUICK))


def test_a_stopped_collection_resumes_and_its_records_give_the_times_of_each_type(tmp_path: Path) -> None:
    """Nothing is measured twice, and a type that the device refused keeps its reason and has no times."""
    samples = list(codec_samples(on_cpu=True))
    path = tmp_path / "codecs.jsonl"
    with RecordsFile(path, source=one_core().source) as file:
        collect_codecs(one_core(refused=WireType.FP16), file, on_cpu=True)
    *lines, _ = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines))
    with RecordsFile(path, source=one_core().source) as file:
        collect_codecs(one_core(), file, on_cpu=True)

    assert [record.codec for record in file.records] == samples
    refused = {record.codec.type for record in file.records if record.failure == "no such kernel" and record.codec}
    assert refused == {WireType.FP16}
    found = fitted_codecs(file.records)
    assert [times.type for times in found] == list(ON_CPU[1:])
    assert all(min(times.value_ms) > 0 for times in found)


def test_records_keep_the_conditions_that_they_were_measured_under(tmp_path: Path) -> None:
    """Clocks of a GPU, as records of tables have them, next to what is true of the whole device."""

    class Clocked:
        source, environment, repeats = "cpu:core", {"driver": "none"}, QUICK

        def measure_codec(self, sample: CodecSample, *, repeats: Repeats) -> Times:
            assert repeats is QUICK
            ms = float(sample.num_values)
            times = Times(forward_ms=ms, backward_ms=ms, spread=0.0, num_repeats=1)
            return times.under({"clock": f"{sample.batch_size} MHz"})

    with RecordsFile(tmp_path / "codecs.jsonl", source="cpu:core") as file:
        collect_codecs(Clocked(), file, on_cpu=True)

    assert len(file.records) == len(list(codec_samples(on_cpu=True)))
    for record in file.records:
        assert record.codec is not None
        assert record.environment == {"driver": "none", "clock": f"{record.codec.batch_size} MHz"}


def test_a_codec_that_cannot_be_compiled_is_a_sample_without_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton, in which FBGEMM has MX4 on GPUs, has errors of its own kinds."""
    from neuroshard_profiler.backends.codec_call import CodecCall

    def fail(_call: CodecCall, _number: int) -> torch.Tensor:
        raise NameError("name 'triton' is not defined")

    monkeypatch.setattr(CodecCall, "forward", fail)
    sample = CodecSample(type=WireType.MX4, batch_size=64, num_columns=64)
    with pytest.raises(KernelError, match="name 'triton' is not defined"):
        one_core().measure_codec(sample, repeats=QUICK)


def test_samples_are_of_the_types_that_the_device_has() -> None:
    """And on a core none is larger than takes a moment."""
    on_cpu, on_gpu = list(codec_samples(on_cpu=True)), list(codec_samples(on_cpu=False))

    assert {sample.type for sample in on_cpu} == set(ON_CPU)
    assert {sample.type for sample in on_gpu} == set(WireType) - {WireType.FP32}
    assert max(sample.num_values for sample in on_cpu) <= MAX_CPU_VALUES < max(sample.num_values for sample in on_gpu)


def test_a_backend_without_fbgemm_has_no_codecs() -> None:
    """Its profiles price them as memory traffic."""
    assert not isinstance(TorchNativeBackend(CpuDevice(core=0, repeats=QUICK)), CodecBackend)


@pytest.mark.parametrize("kind", ON_CPU)
def test_the_call_is_the_codec_of_the_trainer(kind: WireType) -> None:
    """It writes as many bytes as the type has on the wire, and decodes what it wrote."""
    from neuroshard_profiler.backends.codec_call import CodecCall

    sample = CodecSample(type=kind, batch_size=64, num_columns=64)
    call = CodecCall(sample, device=torch.device("cpu"))

    encoded = call.forward(0)

    assert encoded.nbytes == WIRE_FORMATS[kind].sent_bytes(64, 64, pads=False)
    call.backward(encoded, encoded)
