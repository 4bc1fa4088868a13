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
compute in backward   gradients of the unit's tensors from where they are computed, as they were counted; of an older
                      profile those of the other tensors, while that of the largest one is computed
a reduction           g as computed and g as sent, then g / S; what was sent is kept to the next reduction of the same
                      part of the model, and for its last one to the end of the backward pass

A split unit gathers its own parameters for both of its passes, and each operator when that is called: in the order of
the passes all of them follow one another as units do, its own after its operators in forward, before them in backward.
Its own gradients are there as soon as one of its operators computes. Between operators the highest moment of the whole
unit is assumed, with the gradient of its largest tensor.

Gradients of a sharded unit begin in its backward pass, and those of replicas are there from step to step. On a CPU,
gloo takes w more while it gathers, and g more while it reduces. What is alive besides the units' own tensors is taken
from the counted peak of replicas, which the walk therefore returns unchanged.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.dense_layout import DenseStrategy
from neuroshard_api.documents.dense_profile import DenseOperator, DenseProfile, DenseUnit
from numpy.typing import NDArray

from neuroshard_dense.options import UnitBytes, UnitOption

Amounts = NDArray[np.int64]
"""[choices] in bytes."""
Flags = NDArray[np.bool_]
"""[choices]"""
_NOTHING = -1
"""In place of the weights of a unit that is gathered ahead: there is none."""
_NO_BYTES = UnitBytes(weights=0, gradients=0, optimizer_state=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Moment:
    """The highest moment of the two passes, in bytes."""

    working_bytes: int
    """Activations and all that is allocated for the sharded units, without what lives from step to step."""
    collective_bytes: int
    """The part of it that is weights, gradients, and buffers of the sharded units."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedOperator:
    """One operator of a unit. Sizes are in bytes; memory is above that where the unit's forward pass begins."""

    own: UnitBytes
    forward: int
    """At the highest moment of its forward pass."""
    backward: int
    """Where its backward pass begins."""
    transient: int
    """Above that, with the gradient of its largest tensor."""
    left: int
    """Where its backward pass ends."""
    gradients_kept: int
    """Above all that, as its gradients stay allocated once they are computed."""

    @classmethod
    def of(cls, operator: DenseOperator, own: UnitBytes) -> "TimedOperator":
        """Return one operator as it was counted."""
        return cls(
            own=own,
            forward=operator.forward_bytes,
            backward=operator.backward_bytes,
            transient=operator.transient_bytes,
            left=operator.left_bytes,
            gradients_kept=_gradients_kept(operator, own, operator.largest_tensor_parameters),
        )


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
    gradients_kept: int = 0
    """Above all that, as gradients of a sharded unit stay allocated once they are computed; negative where the backward
    pass was counted higher together with others."""
    unkept_inputs: int = 0
    """What a checkpointed unit keeps of its inputs, and nothing else does."""
    operators: tuple[TimedOperator, ...] = ()
    """In the order of the forward pass; none where it cannot be split."""
    rest: UnitBytes = _NO_BYTES
    """What is in no operator."""

    @property
    def last_gathered(self) -> int:
        """Weights that a split unit gathers last in the order of the forward pass, and so first in backward."""
        return self.rest.weights or self.operators[-1].own.weights if self.operators else _NOTHING

    @classmethod
    def of(cls, unit: DenseUnit, module: str, profile: DenseProfile) -> "TimedUnit":
        """Return one module of a counted unit."""
        own = UnitBytes.of(unit, profile)
        largest = unit.largest_tensor_parameters or unit.num_parameters
        return cls(
            part=module.partition(".")[0],
            own=own,
            activation=unit.activation_bytes,
            inputs=unit.input_bytes,
            output=unit.output_bytes,
            transient=unit.transient_bytes,
            gradients_kept=_gradients_kept(unit, own, largest),
            unkept_inputs=unit.unkept_input_bytes or 0,
            operators=tuple(
                TimedOperator.of(each, UnitBytes.of_parameters(each.num_parameters, unit, profile))
                for each in unit.operators or ()
            ),
            rest=UnitBytes.of_parameters(unit.own_parameters, unit, profile),
        )


def _highest_of(part: TimedUnit | TimedOperator) -> tuple[int, int]:
    """Return the highest moment of a sharded part: its activations and temporary tensors, and gradients beyond them."""
    return part.transient + min(part.gradients_kept, 0), max(part.gradients_kept, 0)


def _gradients_kept(counted: DenseUnit | DenseOperator, own: UnitBytes, largest: int) -> int:
    """Return the memory of the highest moment above that of a replica, whose gradients are there from step to step.

    An older profile does not say where gradients are computed: then all but that of the largest tensor are there.
    """
    if counted.sharded_transient_bytes is not None:
        return counted.sharded_transient_bytes - counted.transient_bytes
    others = counted.num_parameters - largest
    return others * own.gradients // counted.num_parameters if others else 0


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
            gathers = np.where(kept.is_zero3, np.where(kept.split, unit.last_gathered, unit.own.weights), _NOTHING)
            next_ones[unit.part] = np.where(kept.is_sharded, gathers, next_ones[unit.part])
        for (unit, kept), next_weights in zip(reversed(pairs), reversed(ahead), strict=True):
            walk.backward(unit, kept, next_weights)
        return [
            Moment(working_bytes=working, collective_bytes=collective)
            for working, collective in zip(walk.highest.tolist(), walk.collectives_at_highest.tolist(), strict=True)
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    """How one unit is kept, by choice."""

    shared_by: NDArray[np.int64]
    is_sharded: Flags
    is_zero3: Flags
    checkpointed: Flags
    split: Flags

    @classmethod
    def of(cls, options: Sequence[UnitOption]) -> "_Kept":
        shared_by = np.array([each.shared_by for each in options], dtype=np.int64)
        is_zero3 = np.array([each.strategy is DenseStrategy.ZERO3 for each in options], dtype=np.bool_)
        return cls(
            shared_by=shared_by,
            is_sharded=shared_by > 1,
            is_zero3=is_zero3 & (shared_by > 1),
            checkpointed=np.array([each.checkpointed for each in options], dtype=np.bool_),
            split=np.array([each.split for each in options], dtype=np.bool_) & (shared_by > 1),
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
        split = kept.split
        self._gather_forward(unit.own.weights, 0, kept.is_sharded & ~split)
        if split.any():
            self._gather_forward(unit.rest.weights, 0, split)
            for operator in unit.operators:
                self._gather_forward(operator.own.weights, operator.forward, split)
                self._see(0, operator.forward, split)
                self._weights = self._weights - operator.own.weights * split
        self._see(0, unit.activation, self._always)
        self._activations = self._activations + np.where(
            kept.checkpointed, unit.output + unit.unkept_inputs, unit.activation
        )
        self._weights = self._weights - np.where(split, unit.rest.weights, unit.own.weights) * kept.is_zero3

    def backward(self, unit: TimedUnit, kept: _Kept, next_weights: Amounts) -> None:
        """Compute a unit's gradients; ``next_weights`` are those of the unit that is gathered ahead, or _NOTHING."""
        size, split = unit.own.weights, kept.split
        self._held = np.zeros_like(self._held)
        if split.any():
            self._backward_split(unit, kept, next_weights)
        is_sharded = kept.is_sharded & ~split
        self._gather_backward(unit.part, size, unit.output, kept.is_zero3 & ~split)
        self._gather_ahead(unit.part, next_weights, unit.output, is_sharded)
        recomputed = (unit.activation - unit.output) * kept.checkpointed
        computed, collective = _highest_of(unit)
        self._see(0, recomputed + unit.output + unit.transient, ~split & ~is_sharded)
        self._see(collective, recomputed + unit.output + computed, is_sharded)
        self._activations = self._activations - (unit.activation - recomputed) - unit.unkept_inputs * kept.checkpointed
        self._weights = self._weights - np.where(split, unit.rest.weights, size) * kept.is_sharded
        self._reduce(unit.part, unit.own.gradients, unit.inputs, is_sharded, kept.shared_by)
        if unit.rest.gradients:
            self._reduce(unit.part, unit.rest.gradients, unit.inputs, split, kept.shared_by)

    def _backward_split(self, unit: TimedUnit, kept: _Kept, next_weights: Amounts) -> None:
        """Compute the gradients of a unit's operators; its own weights stay gathered, and its own gradients there."""
        split, part, between = kept.split, unit.part, unit.output + unit.transient
        *first_ones, last = [np.full_like(next_weights, each.own.weights) for each in unit.operators]
        if unit.rest.weights:
            self._gather_backward(part, unit.rest.weights, unit.output, split)
            self._gather_ahead(part, last, unit.output, split)
        own = unit.rest.gradients
        self._see(own, between, split)
        for operator, ahead in zip(reversed(unit.operators), (*reversed(first_ones), next_weights), strict=True):
            # Sizes of operators are above the unit's beginning: its activations are in them.
            before, left = operator.backward - unit.activation, operator.left - unit.activation
            self._gather_backward(part, operator.own.weights, before, split)
            self._gather_ahead(part, ahead, before, split)
            computed, collective = _highest_of(operator)
            self._see(own + collective, before + computed, split)
            self._weights = self._weights - operator.own.weights * split
            self._reduce(part, operator.own.gradients, left, split, kept.shared_by, besides=own)
            self._see(own, between, split)

    def _gather_forward(self, size: int, computed: int, where: Flags) -> None:
        """Gather weights in forward, whose buffer is held to the next gather."""
        if not size:
            return
        self._see(size * (1 + self._copies), computed, where)
        self._held = np.where(where, 0, self._held)
        self._see(2 * size, computed, where)
        self._weights = self._weights + size * where
        self._held = np.where(where, size, self._held)

    def _gather_backward(self, part: str, size: int, computed: int, where: Flags) -> None:
        """Copy weights out of the buffer that was gathered ahead, or gather them."""
        self._see(size * (1 + self._copies), computed, where & (self._ahead.of(part) == 0))
        self._ahead.set(part, 0, where)
        self._see(2 * size, computed, where)
        self._weights = self._weights + size * where

    def _gather_ahead(self, part: str, size: Amounts, computed: int, where: Flags) -> None:
        """Gather the next weights of a part into a buffer, if there are any."""
        where = where & (size != _NOTHING)
        self._see(size * (1 + self._copies), computed, where)
        self._ahead.set(part, size, where)

    def _reduce(
        self, part: str, gradients: int, computed: int, where: Flags, shared_by: Amounts, *, besides: int = 0
    ) -> None:
        """Reduce gradients to shares, while there are others besides."""
        self._sent.set(part, 0, where)
        self._see(besides + 2 * gradients, computed, where)
        share = -(-gradients // shared_by)
        self._see(besides + gradients * (1 + self._copies) + share, computed, where)
        self._sent.set(part, gradients, where)
        self._shares = self._shares + share * where

    def _see(self, collective: Amounts | int, computed: Amounts | int, where: Flags) -> None:
        """Compare a moment, in the choices that have it, with the highest one so far."""
        collective = collective + self._weights + self._shares + self._held + self._ahead.total + self._sent.total
        total = self._activations + computed + collective
        is_higher = where & (total > self.highest)
        self.highest = np.where(is_higher, total, self.highest)
        self.collectives_at_highest = np.where(is_higher, collective, self.collectives_at_highest)
