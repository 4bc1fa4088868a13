"""What a unit of the dense part may be, with the memory and the time of each option.

With w, g, s bytes of weights, gradients, and optimizer state of a unit, shared by S devices:

strategy    from step to step     at the highest moment       for a moment: the largest unit counts
replicate   w + g + s
zero2       (w + g + s) / S       w, gathered                 w + 2 g: gather buffer; gradients, and as they are sent
zero3       (w + g + s) / S                                   2 w + 2 g: also the weights of the unit, or of the next
split       (w + g + s) / S                                   2 w + 2 g of its largest operator, and of what is in none

A checkpointed unit keeps its output, and inputs that nothing else keeps, instead of all that its forward pass leaves,
and has the rest for a moment in its backward pass. Weights of its neighbors may be gathered, and their gradients be on
their way, at that moment: so the largest recomputed activations count next to the largest transient of collectives,
also of another unit. Both are upper bounds, by which the frontier is found; what a layout needs is what its `Timeline`
needs. Time is compute, plus what collectives take beyond the share of the unit's own compute that hides them: neighbors
in a dense part are mostly equal. The copies into and out of the collectives' buffers come on top. A split unit has this
sum for each operator and for the rest, since each is gathered in a collective of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.dense_layout import (
    CheckpointingChoice,
    DenseChoices,
    DenseGroup,
    DensePolicy,
    DenseStrategy,
    GroupChoice,
    PlannedUnit,
    SplittingChoice,
)
from neuroshard_api.documents.dense_profile import DensePass, DenseProfile, DenseUnit
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.exchanges import Reduction, TransferModel
from neuroshard_costs.shards import BYTES_PER_ELEMENT
from neuroshard_costs.simulator.dense import hidden_ms
from neuroshard_costs.simulator.gradients import BUCKET_BYTES

from neuroshard_dense.choice import PricedOption

NUM_GATHERS = {DenseStrategy.REPLICATE: 0, DenseStrategy.ZERO2: 1, DenseStrategy.ZERO3: 2}
"""Of a sharded module's weights in a step."""
COPIES_OF_GATHER, COPIES_OF_REDUCTION = 2, 1
"""Kernels next to each collective of a sharded module, as torch's `fully_shard` has them (_fsdp_collectives.py)."""
LEAST_SPLIT = 0.02
"""Share of a device's memory that the gathers of a unit take, buffer and weights, below which it is split on request
only."""
LEAST_SHARDED = 100_000_000
"""Parameters below which the policy auto shards nothing: less than 1.6 GB of a device, for more collectives."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitOption:
    """One way to keep one module of a unit."""

    strategy: DenseStrategy
    group: DenseGroup | None
    checkpointed: bool
    split: bool = False
    shared_by: int
    """Devices that have a share each; 1: it is whole on every device."""
    gathered_bytes: int
    """Whole weights from forward to backward, in addition to the share."""
    activation_bytes: int
    """What a forward pass leaves for the backward pass less than the unit as it was counted, as a negative number."""
    transient_bytes: int
    """Gathered weights and unreduced gradients."""
    recomputed_bytes: int
    """Activations that the backward pass computes again."""
    compute_ms: float
    exposed_ms: float
    copies_ms: float = 0.0
    """Of the buffers of its collectives."""

    @property
    def ms(self) -> float:
        """Compute, exposed collectives, and copies."""
        return self.compute_ms + self.exposed_ms + self.copies_ms

    def planned(self, module: str) -> PlannedUnit:
        """Return a module of the unit under this option."""
        return PlannedUnit(
            module=module, strategy=self.strategy, group=self.group, checkpointed=self.checkpointed, split=self.split
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitBytes:
    """Bytes of one module of a unit that live from step to step where it is replicated."""

    weights: int
    gradients: int
    optimizer_state: int

    @classmethod
    def of(cls, unit: DenseUnit, profile: DenseProfile) -> "UnitBytes":
        """Return a unit's part of the profile: all is proportional to the bytes of weights."""
        return cls.of_parameters(unit.num_parameters, unit, profile)

    @classmethod
    def of_parameters(cls, num_parameters: int, unit: DenseUnit, profile: DenseProfile) -> "UnitBytes":
        """Return the part of the profile of some of a unit's parameters."""
        weights = num_parameters * BYTES_PER_ELEMENT[unit.data_type]
        share = weights / profile.weights_bytes if profile.weights_bytes else 0.0
        return cls(
            weights=weights,
            gradients=round(share * profile.gradient_bytes),
            optimizer_state=round(share * profile.optimizer_state_bytes),
        )

    @property
    def total(self) -> int:
        """All of it."""
        return self.weights + self.gradients + self.optimizer_state

    def choice(self, option: UnitOption) -> PricedOption:
        """Return an option as the frontier sees it: bytes more or less than the unit as it was counted."""
        kept = -(self.total - -(-self.total // option.shared_by)) + option.gathered_bytes + option.activation_bytes
        return PricedOption(
            kept_bytes=kept,
            transient_bytes=option.transient_bytes,
            recomputed_bytes=option.recomputed_bytes,
            ms=option.ms,
        )


class UnitOptions:
    """The options of units, for devices, prices, and choices.

    Args:
        profile: the units.
        topology: the devices.
        costs: prices collectives.
        choices: what is permitted.
        groups: devices that may share a unit, if it is sharded.
    """

    def __init__(
        self,
        profile: DenseProfile,
        topology: Topology,
        *,
        costs: TransferModel,
        choices: DenseChoices,
        groups: Sequence[DenseGroup],
    ) -> None:
        self._profile = profile
        self._topology = topology.by_domains()
        self._costs = costs
        self._choices = choices
        self._groups = [group for group in groups if group_size(group, topology) > 1]
        self._may_shard = may_shard(choices, profile)
        self._reductions: dict[tuple[float, int, int, Family], tuple[float, float]] = {}
        """By bytes, nodes, devices in a node, and family."""

    def of(self, unit: DenseUnit) -> tuple[UnitOption, ...]:
        """Return the options of one module of a unit; of equals the plainest first."""
        return tuple(
            self.option(unit, strategy, group, checkpointed=checkpointed, split=split)
            for strategy, group in self._layouts(unit)
            for checkpointed, split in self._ways(unit, strategy)
        )

    def replicated(self, unit: DenseUnit) -> UnitOption:
        """Return the unit as it was counted."""
        return self.option(unit, DenseStrategy.REPLICATE, None, checkpointed=False)

    def _layouts(self, unit: DenseUnit) -> Iterator[tuple[DenseStrategy, DenseGroup | None]]:
        named = self._choices.strategy_of(unit.module)
        sharded = (DenseStrategy.ZERO2, DenseStrategy.ZERO3)
        if not unit.num_parameters or not self._groups:
            strategies: Sequence[DenseStrategy] = (DenseStrategy.REPLICATE,)
        elif named is not None:
            strategies = (named,)
        elif self._choices.policy is DensePolicy.SHARD:
            strategies = sharded
        else:
            strategies = (DenseStrategy.REPLICATE, *(sharded if self._may_shard else ()))
        for strategy in strategies:
            if strategy is DenseStrategy.REPLICATE:
                yield strategy, None
            else:
                yield from ((strategy, group) for group in self._groups)

    def _ways(self, unit: DenseUnit, strategy: DenseStrategy) -> Iterator[tuple[bool, bool]]:
        """Yield whether the unit is checkpointed, and whether it is split: never both."""
        checkpointing, choice = self._checkpointing(unit), self._choices.splitting
        may_split = strategy is DenseStrategy.ZERO3 and unit.operators is not None and False in checkpointing
        if may_split and choice is SplittingChoice.ALWAYS:
            yield False, True
            return
        yield from ((checkpointed, False) for checkpointed in checkpointing)
        gathered = 2 * UnitBytes.of(unit, self._profile).weights
        if may_split and choice is SplittingChoice.AUTO and gathered > LEAST_SPLIT * self._topology.device.memory_bytes:
            yield False, True

    def _checkpointing(self, unit: DenseUnit) -> tuple[bool, ...]:
        saves = unit.activation_bytes > _kept_where_checkpointed(unit)
        if not saves or self._choices.checkpointing is CheckpointingChoice.NEVER:
            return (False,)
        if self._choices.checkpointing is CheckpointingChoice.ALWAYS:
            return (True,)
        weights = UnitBytes.of(unit, self._profile).weights
        return (False, True) if unit.activation_bytes > weights else (False,)

    def option(
        self,
        unit: DenseUnit,
        strategy: DenseStrategy,
        group: DenseGroup | None,
        *,
        checkpointed: bool,
        split: bool = False,
    ) -> UnitOption:
        """Return one way to keep a module of a unit, permitted or not. Only a unit with operators can be split."""
        own = UnitBytes.of(unit, self._profile)
        forward_ms, backward_ms = self._costs.matrices_ms(unit.forward_flops, unit.backward_flops)
        backward_ms += forward_ms if checkpointed else 0.0
        saved = unit.activation_bytes - _kept_where_checkpointed(unit) if checkpointed else 0
        if split:
            transient, exposed_ms, copies_ms = self._one_after_the_other(unit, strategy, group)
        else:
            transient = _transient_bytes(own, strategy, group)
            exposed_ms = self._exposed_ms(own, strategy, group, forward_ms=forward_ms, backward_ms=backward_ms)
            copies_ms = self._copies_ms(own, strategy, group)
        return UnitOption(
            strategy=strategy,
            group=group,
            checkpointed=checkpointed,
            split=split,
            shared_by=1 if group is None else group_size(group, self._topology),
            gathered_bytes=own.weights if strategy is DenseStrategy.ZERO2 else 0,
            activation_bytes=-saved,
            transient_bytes=transient,
            recomputed_bytes=unit.activation_bytes - unit.output_bytes if checkpointed else 0,
            compute_ms=forward_ms + backward_ms,
            exposed_ms=exposed_ms,
            copies_ms=copies_ms,
        )

    def _one_after_the_other(
        self, unit: DenseUnit, strategy: DenseStrategy, group: DenseGroup | None
    ) -> tuple[int, float, float]:
        """Return the transient bytes of a split unit, and the times of its exposed collectives and copies."""
        transients, exposed_ms, copies_ms = [0], 0.0, 0.0
        for part in _parts(unit):
            gathered = UnitBytes.of_parameters(part.num_parameters, unit, self._profile)
            transients.append(_transient_bytes(gathered, strategy, group))
            forward_ms, backward_ms = self._costs.matrices_ms(part.forward_flops, part.backward_flops)
            exposed_ms += self._exposed_ms(gathered, strategy, group, forward_ms=forward_ms, backward_ms=backward_ms)
            copies_ms += self._copies_ms(gathered, strategy, group)
        of_own = transients.pop(1) if unit.own_parameters else 0
        return of_own + max(transients), exposed_ms, copies_ms

    def _copies_ms(self, own: UnitBytes, strategy: DenseStrategy, group: DenseGroup | None) -> float:
        """Return the time of the copies of a module's collectives, which nothing hides.

        A gather copies the share into its buffer, and the buffer into the weights; a reduction copies the gradients
        into its buffer.
        """
        if group is None:
            return 0.0
        gathers, shared_by = NUM_GATHERS[strategy], group_size(group, self._topology)
        moved = gathers * 2 * (own.weights + own.weights // shared_by) + 2 * own.gradients
        operations = gathers * COPIES_OF_GATHER + COPIES_OF_REDUCTION
        return self._costs.dense_traffic_ms(DensePass(operations=operations, products=0, moved_bytes=moved))

    def _exposed_ms(
        self,
        gathered: UnitBytes,
        strategy: DenseStrategy,
        group: DenseGroup | None,
        *,
        forward_ms: float,
        backward_ms: float,
    ) -> float:
        """Return the time of collectives of both passes that compute of the same pass does not hide."""
        in_forward, in_backward = self._collectives_ms(gathered, strategy, group)
        if group is not None and self._costs.waits_for_shards:
            return in_forward + in_backward
        return _exposed_ms(in_forward, forward_ms) + _exposed_ms(in_backward, backward_ms)

    def _collectives_ms(self, own: UnitBytes, strategy: DenseStrategy, group: DenseGroup | None) -> tuple[float, float]:
        """Return the collectives of a module in the forward and in the backward pass."""
        if strategy is DenseStrategy.REPLICATE or group is None:
            return 0.0, self._part_of_buckets_ms(own.gradients)
        node = self._topology.with_nodes(1)
        inside = node if group is DenseGroup.NODE else self._topology
        # As of tables by rows: what is added up forward is a reduce-scatter, its gradient an all-gather.
        gather = self._reduction_ms(own.weights, inside, Family.ROWS)[1]
        scatter = self._reduction_ms(own.gradients, inside, Family.ROWS)[0]
        if group is DenseGroup.NODE:
            across = self._topology.model_copy(update={"devices_per_node": 1})
            scatter += self._reduction_ms(own.gradients / inside.num_devices, across, Family.REPLICATED)[1]
        return gather, scatter + (gather if strategy is DenseStrategy.ZERO3 else 0.0)

    def _part_of_buckets_ms(self, num_bytes: int) -> float:
        """Return the part of replicated gradients in the all-reduce of a bucket of DistributedDataParallel's."""
        bucket = max(num_bytes, min(self._profile.gradient_bytes, BUCKET_BYTES))
        if not bucket:
            return 0.0
        return num_bytes / bucket * self._reduction_ms(bucket, self._topology, Family.REPLICATED)[1]

    def _reduction_ms(self, num_bytes: float, topology: Topology, family: Family) -> tuple[float, float]:
        key = num_bytes, topology.num_domains, topology.devices_per_domain, family
        if key not in self._reductions:
            forward, backward = self._costs.reduction_ms(
                np.array(float(num_bytes)), Reduction(topology=topology, family=family)
            ).tolist()
            self._reductions[key] = float(forward), float(backward)
        return self._reductions[key]


class _GatheredPart(NamedTuple):
    """Parameters that are gathered together, and the work that hides it."""

    num_parameters: int
    forward_flops: int
    backward_flops: int


def _parts(unit: DenseUnit) -> tuple[_GatheredPart, ...]:
    """Return the parts that a split unit gathers one after the other: own parameters, if any, then each operator."""
    operators = unit.operators
    assert operators is not None, "only a unit with operators is split"
    # A module whose input others use too has their work in its own: operators may have more than their unit together.
    own = _GatheredPart(
        unit.own_parameters,
        max(unit.forward_flops - sum(each.forward_flops for each in operators), 0),
        max(unit.backward_flops - sum(each.backward_flops for each in operators), 0),
    )
    parts = (_GatheredPart(each.num_parameters, each.forward_flops, each.backward_flops) for each in operators)
    return (own, *parts) if own.num_parameters else tuple(parts)


def num_gathered(unit: DenseUnit, *, is_split: bool) -> int:
    """Return the number of parts of a unit that are gathered, each in a collective of its own."""
    return len(_parts(unit)) if is_split else 1


def _kept_where_checkpointed(unit: DenseUnit) -> int:
    """Return the bytes of the output, and of inputs that nothing else keeps."""
    return unit.output_bytes + (unit.unkept_input_bytes or 0)


def _transient_bytes(gathered: UnitBytes, strategy: DenseStrategy, group: DenseGroup | None) -> int:
    if group is None:
        return 0
    again = gathered.weights if strategy is DenseStrategy.ZERO3 else 0
    return gathered.weights + 2 * gathered.gradients + again


def _exposed_ms(collectives_ms: float, compute_ms: float) -> float:
    """Return the time of collectives that compute of the same pass does not hide."""
    return max(0.0, collectives_ms - hidden_ms(compute_ms))


def may_shard(choices: DenseChoices, profile: DenseProfile) -> bool:
    """Return whether the policy shards units that have no strategy of their own."""
    is_large = profile.num_parameters >= LEAST_SHARDED
    return choices.policy is DensePolicy.SHARD or (choices.policy is DensePolicy.AUTO and is_large)


def group_size(group: DenseGroup, topology: Topology) -> int:
    """Return the devices of a group."""
    return topology.devices_per_domain if group is DenseGroup.NODE else topology.num_devices


def groups_of(choice: GroupChoice, topology: Topology) -> tuple[tuple[DenseGroup, ...], ...]:
    """Return the groups that are tried one after the other: those of nodes before all devices."""
    if topology.num_domains == 1:
        return ((DenseGroup.NODE,),)
    match choice:
        case GroupChoice.NODE:
            return ((DenseGroup.NODE,),)
        case GroupChoice.WORLD:
            return ((DenseGroup.WORLD,),)
        case GroupChoice.AUTO:
            return ((DenseGroup.NODE,), (DenseGroup.NODE, DenseGroup.WORLD))
