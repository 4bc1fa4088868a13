"""Types in which pooled embeddings and their gradients travel: how many bytes each takes, and which a plan chose.

A codec encodes FP32 values before an all-to-all and decodes them after it. Indices are integers and travel as they are;
so do the sums of tables that are cut by rows, since encoded values cannot be added up.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import gcd, lcm
from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from neuroshard_api.documents.counts import Milliseconds
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.tables import DIM_MULTIPLE


class WireType(StrEnum):
    """Types of encoded values; names as in TorchRec's CommType, where it has them."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    INT8 = "INT8"
    """Eight bits, with an FP32 scale and an FP32 bias for each 32 values."""
    FP8 = "FP8"
    """Eight bits, with an FP32 scale and padding for each 128 values."""
    MX4 = "MX4"
    """Four bits, with an exponent of eight bits for each 32 values."""
    TOP32 = "TOP32"
    """Of each 128 values the 32 largest, in BF16, with a byte of position each; the others arrive as 0."""
    TOP16 = "TOP16"
    """The 16 largest alone."""
    TOP8 = "TOP8"
    """The 8 largest alone."""

    @property
    def is_sparse(self) -> bool:
        """Whether only the largest values are sent. TorchRec has no such codecs: the trainer's own are meant."""
        return WIRE_FORMATS[self].kept_values is not None


def _encoded(kind: WireType) -> WireType:
    if kind is WireType.FP32:
        raise ValueError("FP32 travels as it is, without a codec")
    return kind


EncodedType = Annotated[WireType, AfterValidator(_encoded)]
"""A type that a codec writes: all but FP32."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WireFormat:
    """Groups of values as FBGEMM's codecs write them."""

    group_values: int
    """Values that are encoded together."""
    group_bytes: int
    """Bytes of a group, scales included."""
    pads_columns: bool = False
    """Whether a device's columns are filled up to whole groups, forward."""
    on_cpu: bool
    """Whether there is a codec for processes on a CPU."""
    kept_values: int | None = None
    """Values of a group that are sent. None: all are."""

    @property
    def bytes_per_value(self) -> float:
        """Bytes of a value, its share of the group's scales included."""
        return self.group_bytes / self.group_values

    @property
    def least_samples(self) -> int:
        """Number of which the samples of a device must be a multiple, for groups to be whole at any table width."""
        return self.group_values // gcd(self.group_values, DIM_MULTIPLE)

    def sent_bytes(self, num_columns: int, num_samples: int, *, pads: bool) -> int:
        """Return the bytes of a device's columns of all samples.

        ``pads``: whether columns are filled up where the format does so, as TorchRec does forward alone.
        """
        padded = num_columns
        if pads and self.pads_columns:
            padded = -(-num_columns // self.group_values) * self.group_values
        return padded * num_samples * self.group_bytes // self.group_values


_SPARSE_VALUE_BYTES = 3
"""Of a value that is sent, and its position."""
WIRE_FORMATS: Mapping[WireType, WireFormat] = {
    WireType.FP32: WireFormat(group_values=1, group_bytes=4, on_cpu=True),
    WireType.FP16: WireFormat(group_values=1, group_bytes=2, on_cpu=True),
    WireType.BF16: WireFormat(group_values=1, group_bytes=2, on_cpu=False),
    WireType.INT8: WireFormat(group_values=32, group_bytes=40, on_cpu=True),
    WireType.FP8: WireFormat(group_values=128, group_bytes=136, on_cpu=False),
    WireType.MX4: WireFormat(group_values=32, group_bytes=17, pads_columns=True, on_cpu=True),
    **{
        kind: WireFormat(group_values=128, group_bytes=_SPARSE_VALUE_BYTES * kept, on_cpu=True, kept_values=kept)
        for kind, kept in ((WireType.TOP32, 32), (WireType.TOP16, 16), (WireType.TOP8, 8))
    },
}
"""Source: calc_quantized_size of FBGEMM 1.9's quantize_comm, get_qcomm_codecs_registry of TorchRec 1.9, and the
trainer's codec of largest values."""


class WireTypes(Value):
    """Types of both directions."""

    forward: WireType = WireType.FP32
    """Of pooled embeddings."""
    backward: WireType = WireType.FP32
    """Of their gradients."""

    @property
    def is_exact(self) -> bool:
        """Whether nothing is encoded."""
        return self.forward is WireType.FP32 and self.backward is WireType.FP32

    @property
    def text(self) -> str:
        """Both types in words, such as ``INT8 forward, FP16 backward``."""
        return f"{self.forward} forward, {self.backward} backward"

    @property
    def least_samples(self) -> int:
        """Number of which the samples, or lists, of a device must be a multiple in both directions."""
        return lcm(*(WIRE_FORMATS[kind].least_samples for kind in (self.forward, self.backward)))

    def problem(self, *, batch_size_per_device: int, on_cpu: bool) -> str | None:
        """Return the reason that these types cannot be trained. None: they can be.

        Args:
            batch_size_per_device: samples of a device in a step.
            on_cpu: whether the processes run on a CPU.
        """
        for direction, kind in (("forward", self.forward), ("backward", self.backward)):
            form = WIRE_FORMATS[kind]
            if on_cpu and not form.on_cpu:
                known = ", ".join(each for each in WireType if WIRE_FORMATS[each].on_cpu)
                return f"{direction}: TorchRec has no {kind} codec for CPUs; hint: use one of {known}"
            if batch_size_per_device % form.least_samples:
                return (
                    f"{direction}: {kind} encodes groups of {form.group_values} values, which "
                    f"{batch_size_per_device} samples do not fill at every table width"
                    f"; hint: make the batch size a multiple "
                    f"of {form.least_samples}"
                )
        return None


class CommunicationChoices(Value):
    """Types that a plan may choose from. Exact exchange, FP32 both ways, is always among them."""

    forward: tuple[WireType, ...] = ()
    """Of pooled embeddings."""
    backward: tuple[WireType, ...] = ()
    """Of their gradients."""
    least_gain_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    """Share of the predicted step that a pair of types must save to be chosen. If unset: 2, or the error of the
    cost models if that is more."""

    @property
    def pairs(self) -> tuple[WireTypes, ...]:
        """All permitted pairs but the exact one, each once."""
        both = (dict.fromkeys((WireType.FP32, *types)) for types in (self.forward, self.backward))
        forward, backward = (tuple(each) for each in both)
        found = (WireTypes(forward=one, backward=other) for one in forward for other in backward)
        return tuple(each for each in found if not each.is_exact)


class WireAlternative(WireTypes):
    """What a pair of types makes of the best plan with exact exchange, or of another that is cheaper with them."""

    exchange_ms: Milliseconds | None = None
    """Both all-to-alls, codec passes included. If unset: the types cannot be trained."""
    codec_ms: Milliseconds | None = None
    """Encoding and decoding alone."""
    saved_ms: float | None = None
    """Predicted cost of the step with exact exchange, less that with these types; below 0 it would take longer."""
    refusal: str | None = None
    """Why the types were not chosen. If unset: they were."""

    @property
    def types(self) -> WireTypes:
        """The pair alone."""
        return WireTypes(forward=self.forward, backward=self.backward)


class CommunicationPlan(Value):
    """What a plan sends in narrow types, and what it decided against.

    Accuracy is not predicted: the trainer's guard measures it.
    """

    chosen: WireTypes
    """FP32 both ways: nothing is encoded."""
    exact_ms: Milliseconds | None = None
    """Predicted cost of the best plan with exact exchange. If unset: the plan has no price."""
    exact_exchange_ms: Milliseconds | None = None
    """Both all-to-alls of that plan."""
    alternatives: tuple[WireAlternative, ...] = ()
    """All permitted pairs, in the order of the request."""
    reason: str | None = None
    """Why nothing is encoded. If unset: something is."""

    def step_ms(self, alternative: WireAlternative) -> float | None:
        """Return the predicted cost of a step with a pair of types. None: it has no price."""
        has_price = self.exact_ms is not None and alternative.saved_ms is not None
        return (self.exact_ms or 0.0) - (alternative.saved_ms or 0.0) if has_price else None

    @model_validator(mode="after")
    def _reasoned(self) -> Self:
        if self.chosen.is_exact == (self.reason is None):
            found = "is missing" if self.reason is None else "is for plans that encode nothing"
            raise ValueError(f"reason: {found}; chosen has {self.chosen.text}")
        return self
