"""What a trainer measured of its steps under a plan."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.communication import WireTypes
from neuroshard_api.documents.counts import Count, Milliseconds, PositiveCount
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.gradient_exchange import GradientType
from neuroshard_api.documents.run_document import RunDocument
from neuroshard_api.sharding.collectives import CollectiveKind, CollectiveTime

MOST_STEPS: Final = 0.5
"""Share of steps from which on a median is that of a step which the host bound."""
Share = Annotated[float, Field(ge=0, le=1)]


class HostBoundShares(Value):
    """Shares of the steps in which the device can have waited for the host in a part for a tenth of its time or more.

    Then the host launches kernels later than the device could run them, and the measured time is in part the host's.
    """

    input_communication: Share = 0.0
    forward_compute: Share = 0.0
    forward_communication: Share = 0.0
    backward_communication: Share = 0.0
    backward_compute: Share = 0.0
    expansion: Share = 0.0
    dense_forward: Share = 0.0
    dense_backward: Share = 0.0
    dense_collectives: Share = 0.0

    @classmethod
    def of(cls, steps: Sequence[Collection[str]]) -> Self:
        """Return the shares of steps by the times that the host bound in each, such as ``forward_compute_ms``."""
        counts = Counter(name.removesuffix("_ms") for parts in steps for name in parts)
        return cls(**{name: count / len(steps) for name, count in counts.items()})

    def binds(self, *parts: str) -> bool:
        """Return whether the host bound one of these parts, such as ``forward_compute``, in most steps."""
        return any(getattr(self, part) > MOST_STEPS for part in parts)


class MeasuredCollective(CollectiveTime):
    """What one collective added to a step of a rank, and the part of it that was waiting.

    The rank that comes last to a collective waits for nobody, so the least time of all ranks is the exchange itself;
    what another rank takes longer is its wait.
    """

    forward_wait_ms: Milliseconds | None = None
    """Part of ``forward_ms``: waiting for ranks that came later. If unset: the trainer did not tell."""
    backward_wait_ms: Milliseconds | None = None
    """Part of ``backward_ms``, likewise."""


class RankTimes(Value):
    """Rolling medians of one rank, in milliseconds per step."""

    rank: Count
    input_communication_ms: Milliseconds = 0.0
    """What the exchange of indices adds to the step; 0 where a pipeline hides it."""
    forward_compute_ms: Milliseconds
    """Lookup kernels."""
    backward_compute_ms: Milliseconds
    """Gradient and fused optimizer, and the optimizer of data_parallel tables."""
    forward_communication_ms: Milliseconds
    """From the end of this rank's lookups to all pooled embeddings there: the wait for slower ranks is part of it."""
    backward_communication_ms: Milliseconds
    """From this rank's gradients of the pooled embeddings to all of them at the shards, and what the step waits for the
    all-reduce of data_parallel tables' gradients after its backward pass."""
    collectives: tuple[MeasuredCollective, ...] = ()
    """Parts of the three communication times by kind and family, as a plan's `DeviceCost` has them. A moment at which
    several were under way counts for the one that ended first. Empty: the trainer did not tell."""
    expansion_ms: Milliseconds = 0.0
    """Copies of pooled embeddings to the samples that repeat a list, and the sums of their gradients; 0 where no
    repeats are left out."""
    server_ms: Milliseconds | None = None
    """Waits for embedding servers in the forward pass: to send ids, and for pooled embeddings. If unset: there are no
    servers."""
    server_hidden_ms: Milliseconds | None = None
    """With lookahead: the part of the exchanges with servers that the step did not wait for, their look-ups and updates
    included. If unset: nothing is looked up ahead."""
    dense_ms: Milliseconds
    """The rest of the step: dense layers, their gradients' all-reduce and optimizer."""
    dense_forward_ms: Milliseconds | None = None
    """Forward pass of the dense part, without the lookups within it. If unset: the trainer did not tell."""
    dense_backward_ms: Milliseconds | None = None
    """Its backward pass, likewise."""
    dense_collectives_ms: Milliseconds | None = None
    """What both passes wait for collectives of dense weights and gradients; none of it is in the two times above."""
    dense_peer_wait_ms: Milliseconds | None = None
    """Part of ``dense_collectives_ms``: waiting for ranks that came later. If unset: the trainer did not tell."""
    data_wait_ms: Milliseconds
    """From asking for a batch to having it."""
    step_ms: Milliseconds
    host_bound: HostBoundShares | None = None
    """How often the host bound the parts. If unset: a CPU, where the host computes, or the trainer did not tell."""
    processor_wait_share: Annotated[float, Field(ge=0, le=1)] | None = None
    """Of the time since the report before in which the process's threads could run: the part in which they waited for
    a processor. If unset: the system does not count it, or the trainer did not tell."""
    core_loop_ms: Milliseconds | None = None
    """Processor time of a fixed loop (`process.core_speed`) between steps: how fast the core is. If unset: a GPU, or
    the trainer did not tell."""
    compute_processor_ms: Milliseconds | None = None
    """Processor time within forward and backward compute: the rest of these is waiting for a processor. If unset:
    likewise."""
    dense_processor_ms: Milliseconds | None = None
    """The same within the dense part's passes, without their collectives. If unset: likewise."""
    peak_memory_bytes: Count | None = None
    """Most memory since the start: of the device, as torch's allocator counts it; on a CPU of the process. If unset:
    the trainer did not tell."""
    peak_reserved_bytes: Count | None = None
    """Most memory of the device that torch's allocator held since the start: the above, and fragments between tensors.
    If unset: a CPU, or the trainer did not tell."""
    device_used_bytes: Count | None = None
    """Memory of the device in use at the report: of the allocator, and besides it of the CUDA context, of NCCL, and of
    other processes. If unset: likewise."""

    @property
    def dense_passes_ms(self) -> float | None:
        """Forward and backward pass of the dense part with their collectives, without waits for ranks that come later.

        None: not known.
        """
        parts = (self.dense_forward_ms, self.dense_backward_ms, self.dense_collectives_ms)
        known = [part for part in parts if part is not None]
        return sum(known) - (self.dense_peer_wait_ms or 0.0) if len(known) == len(parts) else None

    @property
    def input_peer_wait_ms(self) -> float:
        """Waiting for ranks that come later, within the exchange of indices; 0 where it is not known."""
        return sum(each.forward_wait_ms or 0.0 for each in self.collectives if each.kind is CollectiveKind.INDICES)

    @property
    def forward_peer_wait_ms(self) -> float:
        """The same within forward communication."""
        return sum(each.forward_wait_ms or 0.0 for each in self.collectives if each.kind is not CollectiveKind.INDICES)

    @property
    def backward_peer_wait_ms(self) -> float:
        """The same within backward communication."""
        return sum(each.backward_wait_ms or 0.0 for each in self.collectives)


class MeasuredDuplication(Value):
    """How much a duplication group repeated in the batches."""

    group: Annotated[str, Field(min_length=1, max_length=128)]
    factor: Annotated[float, Field(ge=1)]
    """Samples over distinct ones, of all ranks since the report before."""


class MeasuredCommunication(WireTypes):
    """What codecs of pooled embeddings did since the report before, and what they lost; per step."""

    is_encoded: bool
    """Whether the last step was encoded; otherwise the guard has suspended the types."""
    forward_bytes: Annotated[float, Field(ge=0)]
    """Pooled embeddings that all ranks hand to the all-to-all, what they send to themselves included."""
    backward_bytes: Annotated[float, Field(ge=0)]
    """Gradients, likewise."""
    encode_ms: Milliseconds
    """Of the rank that takes longest, both directions."""
    decode_ms: Milliseconds
    forward_error: Annotated[float, Field(ge=0)] | None = None
    """Norm of what the codec lost over the norm of the values, of the rank where that is largest, in a step after the
    last check of the guard. If unset: there was none yet."""
    backward_error: Annotated[float, Field(ge=0)] | None = None
    """The same of gradients."""


class MeasuredGradients(Value):
    """What the hook of the dense part's gradients did since the report before; per step."""

    type: GradientType
    is_encoded: bool
    """Whether the next step is encoded. Threshold sends the first steps whole; and the guard may have suspended the
    type."""
    sent_bytes: Annotated[float, Field(ge=0)]
    """Handed to collectives by all ranks."""
    kept_percent: Annotated[float, Field(ge=0, le=100)] | None = None
    """Threshold: share of the entries that were sent, in percent. If unset: none were by it."""


class StepReport(RunDocument):
    """Measured steps, to be held next to the plan's prediction."""

    schema_name: ClassVar[str] = "step-report/v1"

    schema_version: Literal["step-report/v1"] = "step-report/v1"
    first_step: Count
    num_steps: PositiveCount
    num_timed_steps: PositiveCount | None = None
    """Those of them that were timed in parts; medians of parts are over these. If unset: all, or the trainer did not
    tell."""
    samples_per_second: Annotated[float, Field(ge=0)] | None = None
    """Samples of all ranks, by the slowest rank's median step. If unset: the trainer did not tell its batch size."""
    ranks: Annotated[tuple[RankTimes, ...], Field(min_length=1)]
    duplication: tuple[MeasuredDuplication, ...] | None = None
    """Of the groups whose repeats the plan leaves out. If unset: there are none."""
    gradients: MeasuredGradients | None = None
    """Of the replicated dense part. If unset: they travel as they are."""
    communication: MeasuredCommunication | None = None
    """Narrow types of pooled embeddings. If unset: everything travels as it is."""

    @model_validator(mode="after")
    def _counted_last_step(self) -> Self:
        if self.first_step + self.num_steps >= 2**63:
            raise ValueError(f"num_steps: first_step + num_steps must be below 2^63, found {self.num_steps}")
        return self

    @model_validator(mode="after")
    def _each_rank_once(self) -> Self:
        ranks = [times.rank for times in self.ranks]
        if len(set(ranks)) != len(ranks):
            raise ValueError(f"ranks[].rank: each rank must be there once, found {ranks}")
        return self
