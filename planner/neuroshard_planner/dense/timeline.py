"""The memory of the dense part through a step, unit by unit, under one option for each.

    forward    gather a unit's weights, compute, and keep the activations
    backward   gather, recompute, compute; drop the activations; reduce the gradients to shares
    optimizer  update the shares

What torch's ``fully_shard`` allocates (release 2.14, ``_fsdp_param_group``), w and g bytes of weights and gradients of
a unit over S devices:

moment                allocated
a gather              w for the buffer, then w for the weights; the buffer is kept to the next gather in forward, and
                      until the weights are copied out of it in backward
zero3 in backward     the buffer of the next sharded unit of the same part of the model, while one computes
compute in backward   gradients of the unit's other tensors, while that of the largest one is computed
a reduction           g as computed and g as sent, then g / S; what was sent is kept to the next reduction of the same
                      part of the model, and for its last one to the end of the backward pass

Gradients of a sharded unit begin in its backward pass, and those of replicas are there from step to step. On a CPU,
gloo takes w more while it gathers, and g more while it reduces. What is alive besides the units' own tensors is taken
from the counted peak of replicas, which the walk therefore returns unchanged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from neuroshard_api.documents.dense_layout import DenseStrategy
from neuroshard_api.documents.dense_profile import DenseUnit

from neuroshard_planner.dense.options import UnitBytes, UnitOption


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The highest moment of the two passes, in bytes."""

    working_bytes: int
    """Activations and all that is allocated for the sharded units, without what lives from step to step."""
    collective_bytes: int
    """The part of it that is weights, gradients, and buffers of the sharded units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedUnit:
    """One module of a dense part. Sizes are in bytes."""

    part: str
    """First name of its path: sharded units of one part gather ahead for each other."""
    own: UnitBytes
    activation: int
    inputs: int
    output: int
    transient: int
    """Above the activations and the gradient of the output. The gradient of the largest tensor is in it."""
    computed_before: int = 0
    """Gradients of the other tensors, which a sharded unit has while that of the largest one is computed."""

    @classmethod
    def of(cls, unit: DenseUnit, module: str, own: UnitBytes) -> "TimedUnit":
        """Return one module of a counted unit."""
        others = unit.num_parameters - (unit.largest_tensor_parameters or unit.num_parameters)
        return cls(
            part=module.partition(".")[0],
            own=own,
            activation=unit.activation_bytes,
            inputs=unit.input_bytes,
            output=unit.output_bytes,
            transient=unit.transient_bytes,
            computed_before=others * own.gradients // unit.num_parameters if others else 0,
        )


class Timeline:
    """The passes of a dense part.

    Args:
        units: in the order of the forward pass.
        passes_bytes: highest memory of the two passes where all units are replicated, and nothing is checkpointed.
        copies_transfers: whether collectives take a copy of what they transfer, as gloo does.
    """

    def __init__(self, units: Sequence[TimedUnit], *, passes_bytes: int, copies_transfers: bool) -> None:
        self._units = units
        self._copies = int(copies_transfers)
        kept, highest = 0, 0
        for unit in units:
            kept += unit.activation
            highest = max(highest, kept + unit.output + unit.transient)
        self._elsewhere = passes_bytes - highest
        """Inputs that the model keeps itself, less what the sum of units counts twice."""

    def highest(self, options: Sequence[UnitOption]) -> Moment:
        """Return the highest moment of the passes under an option for each unit."""
        walk = _Walk(copies=self._copies, activations=self._elsewhere)
        pairs = list(zip(self._units, options, strict=True))
        for unit, option in pairs:
            walk.forward(unit, option)
        following: dict[str, TimedUnit] = {}
        ahead: list[TimedUnit | None] = []
        for unit, option in pairs:
            ahead.append(following.get(unit.part))
            if option.shared_by > 1:
                following.pop(unit.part, None)
                if option.strategy is DenseStrategy.ZERO3:
                    following[unit.part] = unit
        for (unit, option), following_unit in zip(reversed(pairs), reversed(ahead), strict=True):
            walk.backward(unit, option, following_unit)
        return Moment(working_bytes=max(walk.highest, 0), collective_bytes=walk.collectives_at_highest)


@dataclass(kw_only=True, slots=True)
class _Walk:
    """What is allocated as the passes go on, in bytes."""

    copies: int
    activations: int
    weights: int = 0
    """Gathered ones."""
    shares: int = 0
    """Reduced gradients."""
    part: str = ""
    held: int = 0
    """Buffer of the last gather in forward."""
    ahead: dict[str, int] = field(default_factory=dict)
    """Buffer of the next unit in backward, by part."""
    sent: dict[str, int] = field(default_factory=dict)
    """Gradients of the last reduction, by part."""
    highest: int = 0
    collectives_at_highest: int = 0

    def forward(self, unit: TimedUnit, option: UnitOption) -> None:
        """Compute a unit."""
        if unit.part != self.part:
            self.part, self.held = unit.part, 0
        size = unit.own.weights if option.shared_by > 1 else 0
        if size:
            self._see(size * (1 + self.copies))
            self.held = 0
            self._see(2 * size)
            self.weights, self.held = self.weights + size, size
        self._see(0, unit.activation)
        self.activations += unit.output if option.checkpointed else unit.activation
        if option.strategy is DenseStrategy.ZERO3:
            self.weights -= size

    def backward(self, unit: TimedUnit, option: UnitOption, following: TimedUnit | None) -> None:
        """Compute a unit's gradients; ``following`` is the one whose weights are gathered ahead."""
        self.held = 0
        is_sharded = option.shared_by > 1
        if is_sharded:
            size = unit.own.weights
            if option.strategy is DenseStrategy.ZERO3:
                if not self.ahead.pop(unit.part, 0):
                    self._see(size * (1 + self.copies), unit.output)
                self._see(2 * size, unit.output)
                self.weights += size
            if following is not None:
                self._see(following.own.weights * (1 + self.copies), unit.output)
                self.ahead[unit.part] = following.own.weights
        recomputed = unit.activation - unit.output if option.checkpointed else 0
        self._see(unit.computed_before if is_sharded else 0, recomputed + unit.output + unit.transient)
        self.activations -= unit.activation - recomputed
        if is_sharded:
            gradients = unit.own.gradients
            self.weights -= unit.own.weights
            self.sent.pop(unit.part, None)
            self._see(2 * gradients, unit.inputs)
            share = -(-gradients // option.shared_by)
            self._see(gradients * (1 + self.copies) + share, unit.inputs)
            self.sent[unit.part] = gradients
            self.shares += share

    def _see(self, collective: int, computed: int = 0) -> None:
        """Compare a moment with the highest one so far."""
        collective += self.weights + self.shares + self.held + sum(self.ahead.values()) + sum(self.sent.values())
        total = self.activations + computed + collective
        if total > self.highest:
            self.highest, self.collectives_at_highest = total, collective
