"""Codecs of the all-to-all of pooled embeddings: FBGEMM's and our own, switched on and off between steps.

    direction   what is encoded                              what is decoded
    forward     pooled embeddings of this rank's shards      pooled embeddings of this rank's samples
    backward    gradients of this rank's samples             gradients of this rank's shards

All ranks must switch at the same step, since ranks compute the sizes of what they receive. Sums of tables that are cut
by rows travel as they are: encoded values cannot be added up.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from fbgemm_gpu.quantize_comm import QuantizationContext
from fbgemm_gpu.quantize_comm import QuantizedCommCodec as FbgemmCodec
from fbgemm_gpu.split_embedding_configs import SparseType
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType, WireTypes
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.process.errors import InputError
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.types import CommOp, QuantizedCommCodecs

from neuroshard_trainer.communication.largest_values import Codec, LargestValues
from neuroshard_trainer.measure.step_marks import StepMarks
from neuroshard_trainer.ranks.clocks import Mark

ALL_TO_ALL = CommOp.POOLED_EMBEDDINGS_ALL_TO_ALL


@dataclass(slots=True)
class CodecWork:
    """What a codec did since its work was taken last."""

    sent_bytes: int = 0
    """Handed to the all-to-all by this rank, what it sends to itself included."""
    encodings: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Begin and end of each in the steps that are timed in parts."""
    decodings: list[tuple[Mark, Mark]] = field(default_factory=list)


class SwitchableCodec:
    """A codec of one direction that encodes only while it is on; off, values travel bit by bit as they are.

    TorchRec asks for a context at the begin of each exchange and hands it to all later calls: no context means that
    this exchange is exact.

    Args:
        codec: FBGEMM's, or that of largest values.
        scale: power of two that values are multiplied with before they are encoded, and divided by after they are
            decoded. FBGEMM's own loss scale divides before it widens, so that small values become 0 all the same.
    """

    def __init__(self, codec: Codec, *, scale: float = 1.0) -> None:
        self._codec = codec
        self._scale = scale
        self.marks: StepMarks | None = None
        """Of the steps whose parts are timed. None: nothing is timed."""
        self.is_on = True
        """Whether the next exchange is encoded."""
        self.measures_error = False
        """Whether the next encoding is decoded again, for `error`."""
        self.error: torch.Tensor | None = None
        """Norm of what the last measured encoding lost, over the norm of its values: a scalar. None: none was."""
        self.work = CodecWork()

    @property
    def wire_type(self) -> WireType:
        """The type that the codec writes, whatever it was asked for."""
        if isinstance(self._codec, FbgemmCodec):
            return WireType(self._codec._comm_precision.name)  # noqa: SLF001 - no public way
        assert isinstance(self._codec, LargestValues), "there are no others"
        return self._codec.wire_type

    @property
    def quantized_dtype(self) -> torch.dtype:
        """Type of the tensors that travel."""
        return self._codec.quantized_dtype if self.is_on else torch.float32

    def create_context(self) -> QuantizationContext | None:
        """Return the context of one exchange. None: it is exact."""
        return self._codec.create_context() if self.is_on else None

    def padded_size(
        self, input_tensor: torch.Tensor, dim_per_rank: list[int], my_rank: int, qcomm_ctx: QuantizationContext | None
    ) -> tuple[int, int]:
        """Return the columns of this rank with what fills up whole groups, and that filling."""
        if qcomm_ctx is None:
            return input_tensor.shape[-1], 0
        return self._codec.padded_size(input_tensor, dim_per_rank, my_rank, qcomm_ctx)

    def calc_quantized_size(self, input_len: int, ctx: QuantizationContext | None = None) -> int:
        """Return the number of elements that ``input_len`` values are encoded to."""
        return input_len if ctx is None else self._codec.calc_quantized_size(input_len, ctx)

    def encode(self, input_tensor: torch.Tensor, ctx: QuantizationContext | None = None) -> torch.Tensor:
        """Return the encoded tensor."""
        encoded = input_tensor
        if ctx is not None:
            with self._timed(self.work.encodings):
                encoded = self._codec.encode(self._scaled(input_tensor), ctx)
            if self.measures_error:
                self.measures_error = False
                decoded = self._codec.decode(encoded, ctx).view(-1) / self._scale
                values = input_tensor.reshape(-1)
                self.error = (decoded - values).norm() / values.norm().clamp(min=torch.finfo(values.dtype).tiny)
        self.work.sent_bytes += encoded.numel() * encoded.element_size()
        return encoded

    def decode(self, input_grad: torch.Tensor, ctx: QuantizationContext | None = None) -> torch.Tensor:
        """Return the values of what was received."""
        if ctx is None:
            return input_grad
        with self._timed(self.work.decodings):
            values = self._codec.decode(input_grad, ctx)
            return values if self._scale == 1 else values / self._scale

    def take_work(self) -> CodecWork:
        """Return the work since the last call."""
        taken, self.work = self.work, CodecWork()
        return taken

    @contextmanager
    def _timed(self, intervals: list[tuple[Mark, Mark]]) -> Iterator[None]:
        """Add an interval in a step that is timed in parts."""
        marks = self.marks
        if marks is None or not marks.in_parts:
            yield
            return
        begin = marks.mark()
        yield
        intervals.append((begin, marks.mark()))

    def _scaled(self, values: torch.Tensor) -> torch.Tensor:
        return values if self._scale == 1 else values * self._scale


@dataclass(frozen=True, kw_only=True, slots=True)
class Codecs:
    """The codecs of one model on this rank."""

    forward: SwitchableCodec
    backward: SwitchableCodec

    @property
    def types(self) -> WireTypes:
        """Types that are written while the codecs are on."""
        return WireTypes(forward=self.forward.wire_type, backward=self.backward.wire_type)

    @property
    def registry(self) -> dict[str, QuantizedCommCodecs]:
        """The codecs as TorchRec's sharders take them."""
        return {ALL_TO_ALL.name: QuantizedCommCodecs(forward=self.forward, backward=self.backward)}

    @property
    def is_on(self) -> bool:
        """Whether the next exchange is encoded."""
        return self.forward.is_on

    def switch(self, *, on: bool) -> None:
        """Encode from the next exchange on, or no longer. All ranks must call this between the same two steps."""
        self.forward.is_on = self.backward.is_on = on

    @contextmanager
    def apart(self, *, on: bool) -> Iterator[None]:
        """Encode, or do not, within, and count none of it as work of a step.

        All ranks must enter and leave between the same exchanges.
        """
        was_on, before = self.is_on, (self.forward.work, self.backward.work)
        self.forward.work, self.backward.work = CodecWork(), CodecWork()
        self.switch(on=on)
        try:
            yield
        finally:
            self.switch(on=was_on)
            self.forward.work, self.backward.work = before

    def use_marks(self, marks: StepMarks) -> None:
        """Time the work in the steps that these marks time in parts."""
        self.forward.marks = self.backward.marks = marks

    def measure_errors(self) -> None:
        """Compute the errors of both directions in the next step."""
        self.forward.measures_error = self.backward.measures_error = True


def codecs_of(plan: GivenPlan, device: torch.device) -> Codecs | None:
    """Return the codecs of a plan's types. None: it encodes nothing.

    Raises:
        InputError: TorchRec would write other types than the plan's on this device.
    """
    types = plan.resolved.wire
    if types is None or types.is_exact:
        return None
    forward, backward = wire_codecs(types, device)
    codecs = Codecs(
        forward=SwitchableCodec(forward),
        backward=SwitchableCodec(
            backward,
            scale=gradient_scale(plan.request.batch_size_per_device) if types.backward is WireType.FP16 else 1.0,
        ),
    )
    if codecs.types != types:
        raise InputError(
            f"the plan sends {types.text}, and on {device.type} TorchRec falls back to {codecs.types.text}; "
            "hint: plan again for this kind of device, or set spec.experimental.communication.embeddings to types of it"
        )
    return codecs


def wire_codecs(types: WireTypes, device: torch.device) -> tuple[Codec, Codec]:
    """Return the codecs of both directions: of types, or of those that TorchRec takes instead of them on a device."""
    group = WIRE_FORMATS[WireType.FP8].group_values
    both = (types.forward, types.backward)
    forward, backward = (CommType.FP32 if kind.is_sparse else CommType[kind] for kind in both)
    registry = get_qcomm_codecs_registry(
        QCommsConfig(
            forward_precision=forward,
            backward_precision=backward,
            fp8_quantize_dim=group if forward is CommType.FP8 else None,
            fp8_quantize_dim_bwd=group if backward is CommType.FP8 else None,
        ),
        comm_ops=[ALL_TO_ALL],
        device=device,
    )
    exact = FbgemmCodec(SparseType.FP32)
    made = registry[ALL_TO_ALL.name] if registry else QuantizedCommCodecs(forward=exact, backward=exact)
    first, second = (
        LargestValues(kind) if kind.is_sparse else codec
        for kind, codec in zip(both, (made.forward, made.backward), strict=True)
    )
    return first, second


def gradient_scale(batch_size: int) -> float:
    """Return the power of two that lifts gradients of a mean over this many samples to those of a sample.

    Values below 6e-8 are 0 in FP16, and a mean over 65,536 samples divides by as much. Powers of two round nothing.
    """
    return 2.0 ** (batch_size.bit_length() - 1)


def live_codecs(model: nn.Module) -> Codecs | None:
    """Return the codecs that a sharded model exchanges with, as its collections have them. None: it encodes nothing."""
    for module in model.modules():
        if isinstance(module, ShardedEmbeddingBagCollection):
            registry: Mapping[str, QuantizedCommCodecs] = module.qcomm_codecs_registry or {}
            found = registry.get(ALL_TO_ALL.name)
            if found is not None and isinstance(found.forward, SwitchableCodec):
                return Codecs(forward=found.forward, backward=found.backward)
    return None
