"""Codecs of one rank: what is lost, what is not, and what is refused."""

from typing import Any

import pytest
import torch
from fbgemm_gpu.quantize_comm import QuantizedCommCodec as FbgemmCodec
from fbgemm_gpu.split_embedding_configs import SparseType
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.communication.codecs import SwitchableCodec, codecs_of, gradient_scale
from neuroshard_trainer.communication.largest_values import LargestValues
from support.trainer.trainer_builders import plan_of

CPU = torch.device("cpu")
INT8 = WireTypes(forward=WireType.INT8, backward=WireType.FP16)


def passed(codec: SwitchableCodec, values: torch.Tensor) -> torch.Tensor:
    """Return values after one exchange."""
    context = codec.create_context()
    return codec.decode(codec.encode(values, context), context)


def test_small_gradients_survive_fp16_by_their_scale() -> None:
    """FBGEMM's own scale divides what it decoded while that is FP16, and loses them; scaled around it, none is."""
    gradients = torch.linspace(1e-9, 2e-9, 64)
    own = FbgemmCodec(SparseType.FP16, loss_scale=gradient_scale(65536))

    assert passed(SwitchableCodec(FbgemmCodec(SparseType.FP16)), gradients).count_nonzero() == 0
    assert own.decode(own.encode(gradients)).count_nonzero() == 0
    found = passed(SwitchableCodec(FbgemmCodec(SparseType.FP16), scale=gradient_scale(65536)), gradients)
    torch.testing.assert_close(found, gradients, rtol=1e-3, atol=0)


def test_scales_are_powers_of_two_up_to_the_batch_size() -> None:
    """They change the exponent alone."""
    assert [gradient_scale(size) for size in (1, 2, 3, 1000, 65536)] == [1.0, 2.0, 2.0, 512.0, 65536.0]


def test_a_codec_that_is_off_passes_values_bit_by_bit() -> None:
    """Sizes too; on again, it encodes again."""
    codec = SwitchableCodec(FbgemmCodec(SparseType.INT8))
    values = torch.randn(64, generator=torch.Generator().manual_seed(0))
    codec.is_on = False

    assert torch.equal(passed(codec, values), values)
    assert codec.calc_quantized_size(64, codec.create_context()) == 64
    assert codec.padded_size(values.view(2, 32), [32, 32], 0, None) == (32, 0)
    assert codec.take_work().sent_bytes == 256
    codec.is_on = True
    assert not torch.equal(passed(codec, values), values)
    assert codec.take_work().sent_bytes == 80


def test_an_error_is_measured_when_it_is_asked_for() -> None:
    """Once, as the norm of what is lost over the norm of the values."""
    codec = SwitchableCodec(FbgemmCodec(SparseType.INT8))
    values = torch.randn(3200, generator=torch.Generator().manual_seed(0))
    passed(codec, values)
    assert codec.error is None
    codec.measures_error = True

    decoded = passed(codec, values)

    assert codec.error is not None
    assert float(codec.error) == pytest.approx(float((decoded - values).norm() / values.norm()))
    assert not codec.measures_error


def test_work_apart_is_no_work_of_a_step() -> None:
    """Evaluations and checks leave no trace in step reports."""
    codecs = codecs_of(plan_of(wire=INT8), CPU)
    assert codecs is not None
    values = torch.ones(64)
    passed(codecs.forward, values)
    with codecs.apart(on=False):
        assert torch.equal(passed(codecs.forward, values), values)
        assert not codecs.is_on

    assert codecs.is_on
    assert codecs.forward.take_work().sent_bytes == 80


def test_types_that_torchrec_would_replace_are_refused() -> None:
    """It falls back to FP16 on CPUs and only logs; the plan would be a lie."""
    with pytest.raises(
        InputError, match="sends INT8 forward, BF16 backward, and on cpu TorchRec falls back to INT8 forward, FP16"
    ):
        codecs_of(plan_of(wire=WireTypes(forward=WireType.INT8, backward=WireType.BF16)), CPU)


@pytest.mark.parametrize(("kind", "kept"), [(WireType.TOP32, 32), (WireType.TOP16, 16), (WireType.TOP8, 8)])
def test_the_largest_values_of_each_group_arrive_and_the_others_as_0(kind: WireType, kept: int) -> None:
    """Whatever their sign, rounded to BF16."""
    groups = torch.randn((50, 128), generator=torch.Generator().manual_seed(0))
    codec = SwitchableCodec(LargestValues(kind))

    found = passed(codec, groups.view(-1)).view_as(groups)

    sent = found != 0
    assert sent.sum(dim=1).tolist() == [kept] * 50
    assert torch.equal(found[sent], groups[sent].to(torch.bfloat16).float())
    assert (groups.abs().where(sent, torch.inf).amin(dim=1) >= groups.abs().where(~sent, 0.0).amax(dim=1)).all()
    assert codec.take_work().sent_bytes == 50 * 3 * kept


def test_a_value_that_is_no_number_is_sent() -> None:
    """All ranks must see it."""
    values = torch.ones(128)
    values[3], values[77] = torch.nan, -torch.inf

    found = passed(SwitchableCodec(LargestValues(WireType.TOP8)), values)

    assert found[3].isnan()
    assert found[77] == -torch.inf


def test_each_direction_has_a_codec_of_its_own_kind() -> None:
    """FBGEMM's, our own, or none, in any pair."""
    pairs = [("TOP16", "FP16"), ("INT8", "TOP8"), ("TOP32", "TOP32"), ("TOP8", "FP32")]
    for forward, backward in pairs:
        types = WireTypes(forward=WireType(forward), backward=WireType(backward))
        codecs = codecs_of(plan_of(wire=types, batch_size_per_device=32), CPU)
        assert codecs is not None
        assert codecs.types == types


@pytest.mark.parametrize("fields", [{}, {"wire": WireTypes()}])
def test_a_plan_without_narrow_types_has_no_codecs(fields: dict[str, Any]) -> None:
    """TorchRec then exchanges as it did before there were codecs."""
    assert codecs_of(plan_of(**fields), CPU) is None
