"""The memory of the dense part through a step, unit by unit, under one option for each, for many choices at once.

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

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.dense_layout import DenseStrategy
from neuroshard_api.documents.dense_profile import DenseUnit
from numpy.typing import NDArray

from neuroshard_planner.dense.options import UnitBytes, UnitOption

Amounts = NDArray[np.int64]
"""[choices] in bytes."""
Flags = NDArray[np.bool_]
"""[choices]"""


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

    def highest(self, choices: Sequence[Sequence[UnitOption]]) -> list[Moment]:
        """Return the highest moment of the passes under each choice of an option for each unit."""
        walk = _Walk(
            {unit.part for unit in self._units},
            copies=self._copies,
            activations=self._elsewhere,
            num_choices=len(choices),
        )
        pairs = [
            (unit, _Kept.of(options)) for unit, options in zip(self._units, zip(*choices, strict=True), strict=True)
        ]
        for unit, kept in pairs:
            walk.forward(unit, kept)
        nothing = np.full(len(choices), _NOTHING)
        next_ones = dict.fromkeys((unit.part for unit in self._units), nothing)
        ahead: list[Amounts] = []
        for unit, kept in pairs:
            ahead.append(next_ones[unit.part])
            gathers = np.where(kept.is_zero3, unit.own.weights, _NOTHING)
            next_ones[unit.part] = np.where(kept.is_sharded, gathers, next_ones[unit.part])
        for (unit, kept), next_weights in zip(reversed(pairs), reversed(ahead), strict=True):
            walk.backward(unit, kept, next_weights)
        return [
            Moment(working_bytes=working, collective_bytes=collective)
            for working, collective in zip(walk.highest.tolist(), walk.collectives_at_highest.tolist(), strict=True)
        ]


_NOTHING = -1
"""In place of the weights of a unit that is gathered ahead: there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """How one unit is kept, by choice."""

    shared_by: NDArray[np.int64]
    is_sharded: Flags
    is_zero3: Flags
    checkpointed: Flags

    @classmethod
    def of(cls, options: Sequence[UnitOption]) -> "_Kept":
        shared_by = np.array([each.shared_by for each in options], dtype=np.int64)
        is_zero3 = np.array([each.strategy is DenseStrategy.ZERO3 for each in options], dtype=np.bool_)
        return cls(
            shared_by=shared_by,
            is_sharded=shared_by > 1,
            is_zero3=is_zero3 & (shared_by > 1),
            checkpointed=np.array([each.checkpointed for each in options], dtype=np.bool_),
        )


class _Buffers:
    """What each part of the model has in a buffer of one kind, by choice."""

    def __init__(self, parts: Iterable[str], num_choices: int) -> None:
        self._of_parts = {part: np.zeros(num_choices, dtype=np.int64) for part in parts}
        self.total: Amounts = np.zeros(num_choices, dtype=np.int64)

    def of(self, part: str) -> Amounts:
        """Return the bytes of one part."""
        return self._of_parts[part]

    def set(self, part: str, size: Amounts | int, where: Flags) -> None:
        """Replace the buffer of a part in some choices."""
        replaced = np.where(where, size, self._of_parts[part])
        self.total = self.total + replaced - self._of_parts[part]
        self._of_parts[part] = replaced


class _Walk:
    """What is allocated as the passes go on, in bytes."""

    def __init__(self, parts: Collection[str], *, copies: int, activations: int, num_choices: int) -> None:
        nothing = np.zeros(num_choices, dtype=np.int64)
        self._copies = copies
        self._activations = nothing + activations
        self._weights = nothing
        """Gathered ones."""
        self._shares = nothing
        """Reduced gradients."""
        self._part = ""
        self._held = nothing
        """Buffer of the last gather in forward."""
        self._ahead = _Buffers(parts, num_choices)
        """Of the next unit in backward."""
        self._sent = _Buffers(parts, num_choices)
        """Gradients of the last reduction."""
        self._always = np.ones(num_choices, dtype=np.bool_)
        self.highest, self.collectives_at_highest = nothing, nothing

    def forward(self, unit: TimedUnit, kept: _Kept) -> None:
        """Compute a unit."""
        if unit.part != self._part:
            self._part, self._held = unit.part, np.zeros_like(self._held)
        size = unit.own.weights
        if size:
            gathers = kept.is_sharded
            self._see(size * (1 + self._copies), 0, gathers)
            self._held = np.where(gathers, 0, self._held)
            self._see(2 * size, 0, gathers)
            self._weights = self._weights + size * gathers
            self._held = np.where(gathers, size, self._held)
        self._see(0, unit.activation, self._always)
        self._activations = self._activations + np.where(kept.checkpointed, unit.output, unit.activation)
        self._weights = self._weights - size * kept.is_zero3

    def backward(self, unit: TimedUnit, kept: _Kept, next_weights: Amounts) -> None:
        """Compute a unit's gradients; ``next_weights`` are those of the unit that is gathered ahead, or _NOTHING."""
        size, gradients = unit.own.weights, unit.own.gradients
        self._held = np.zeros_like(self._held)
        is_sharded, is_zero3 = kept.is_sharded, kept.is_zero3
        self._see(size * (1 + self._copies), unit.output, is_zero3 & (self._ahead.of(unit.part) == 0))
        self._ahead.set(unit.part, 0, is_zero3)
        self._see(2 * size, unit.output, is_zero3)
        self._weights = self._weights + size * is_zero3
        gathers_ahead = is_sharded & (next_weights != _NOTHING)
        self._see(next_weights * (1 + self._copies), unit.output, gathers_ahead)
        self._ahead.set(unit.part, next_weights, gathers_ahead)
        recomputed = (unit.activation - unit.output) * kept.checkpointed
        self._see(unit.computed_before * is_sharded, recomputed + unit.output + unit.transient, self._always)
        self._activations = self._activations - (unit.activation - recomputed)
        self._weights = self._weights - size * is_sharded
        self._sent.set(unit.part, 0, is_sharded)
        self._see(2 * gradients, unit.inputs, is_sharded)
        share = -(-gradients // kept.shared_by)
        self._see(gradients * (1 + self._copies) + share, unit.inputs, is_sharded)
        self._sent.set(unit.part, gradients, is_sharded)
        self._shares = self._shares + share * is_sharded

    def _see(self, collective: Amounts | int, computed: Amounts | int, where: Flags) -> None:
        """Compare a moment, in the choices that have it, with the highest one so far."""
        collective = collective + self._weights + self._shares + self._held + self._ahead.total + self._sent.total
        total = self._activations + computed + collective
        is_higher = where & (total > self.highest)
        self.highest = np.where(is_higher, total, self.highest)
        self.collectives_at_highest = np.where(is_higher, collective, self.collectives_at_highest)
