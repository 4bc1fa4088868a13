"""How the dense part is kept on the devices: what a plan may choose from, and what it chose for each unit.

strategy    on every device                                         collectives of a step
replicate   weights, gradients, and optimizer state, whole          all-reduce of the gradients
zero2       one share of each; the weights whole from forward to    all-gather of the weights, reduce-scatter of the
            backward                                                gradients
zero3       one share of each; one unit's weights whole at a time   a second all-gather, in backward
split       the same, with one operator's weights whole at a time   those of zero3, once for each operator

A share is one over the devices of a group: those of a node, whose shares the other nodes hold too and average, or all.
Operators are the highest modules below a unit that own parameters, such as its linear layers; small ones, such as
norms, are gathered with the unit. A checkpointed unit keeps its output alone and computes forward once more in
backward; its input is kept by the unit before it.
"""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.counts import MAX_MEMORY_BYTES, Count, Milliseconds, PositiveCount
from neuroshard_api.documents.document import Value

ModulePath = Annotated[str, Field(min_length=1, max_length=512)]
MAX_UNITS = 4096
"""Modules of a layout."""
_Bytes = Annotated[int, Field(ge=0, le=MAX_MEMORY_BYTES)]


class DenseStrategy(StrEnum):
    """How the weights, gradients, and optimizer state of a unit are kept."""

    REPLICATE = "replicate"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


class DenseGroup(StrEnum):
    """The devices that share a unit."""

    NODE = "node"
    """Those of a node; equal shares of all nodes are averaged."""
    WORLD = "world"
    """All devices."""


class DensePolicy(StrEnum):
    """Which strategies a plan may choose."""

    AUTO = "auto"
    """Replicate what fits; otherwise checkpoint or shard the units that free enough memory for the least time."""
    REPLICATE = "replicate"
    SHARD = "shard"
    """Every unit is zero2 or zero3."""


class GroupChoice(StrEnum):
    """Which groups a plan may choose."""

    AUTO = "auto"
    """Nodes; all devices where nothing else fits."""
    NODE = "node"
    WORLD = "world"


class CheckpointingChoice(StrEnum):
    """Which units a plan may checkpoint."""

    AUTO = "auto"
    """Units whose kept activations are larger than their weights, where memory does not suffice."""
    NEVER = "never"
    ALWAYS = "always"
    """Every unit that keeps more than its output."""


class SplittingChoice(StrEnum):
    """Which zero3 units a plan may split: gather operator by operator."""

    AUTO = "auto"
    """Units whose gathers take more than 2 % of a device's memory."""
    NEVER = "never"
    ALWAYS = "always"
    """Every zero3 unit with two operators or more."""


class UnitChoice(Value):
    """The strategy of some units, whatever the policy."""

    module: ModulePath
    """Path of a module; units at it or below it are meant."""
    strategy: DenseStrategy

    def covers(self, path: str) -> bool:
        """Return whether the choice is for a unit at the path."""
        return path == self.module or path.startswith(f"{self.module}.")


class DenseChoices(Value):
    """What a plan may choose for the dense part."""

    policy: DensePolicy = DensePolicy.AUTO
    group: GroupChoice = GroupChoice.AUTO
    checkpointing: CheckpointingChoice = CheckpointingChoice.AUTO
    splitting: SplittingChoice = SplittingChoice.AUTO
    units: Annotated[tuple[UnitChoice, ...], Field(min_length=1, max_length=64)] | None = None
    """Units with a strategy of their own; of several entries for a unit the longest path counts. If unset: none."""

    def strategy_of(self, path: str) -> DenseStrategy | None:
        """Return the strategy that is named for a unit. None: none is."""
        named = [each for each in self.units or () if each.covers(path)]
        return max(named, key=lambda each: len(each.module)).strategy if named else None

    @property
    def asks_for_shards(self) -> bool:
        """Whether some unit is to be sharded in any case."""
        return self.policy is DensePolicy.SHARD or any(
            each.strategy is not DenseStrategy.REPLICATE for each in self.units or ()
        )

    @property
    def excludes_replicas(self) -> bool:
        """Whether they exclude a dense part that is replicated as a whole, and not checkpointed."""
        return self.asks_for_shards or self.checkpointing is CheckpointingChoice.ALWAYS

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if self.checkpointing is CheckpointingChoice.ALWAYS and self.splitting is SplittingChoice.ALWAYS:
            raise ValueError(
                "checkpointing always and splitting always exclude each other: a checkpointed unit computes its "
                "forward pass once more in its backward pass, and would gather each operator once more; hint: set one "
                "of them to auto"
            )
        return self


class DenseMemory(Value):
    """Memory of the dense part on every device under a layout, in bytes."""

    weights_bytes: _Bytes
    """Shares and whole weights that live from step to step."""
    gradient_bytes: _Bytes
    optimizer_state_bytes: _Bytes
    activation_bytes: _Bytes
    """Activations and temporary tensors at the highest moment of a step."""
    transient_bytes: _Bytes
    """Gathered weights, gradients, and buffers of sharded units at that moment, beyond the shares of gradients."""

    @property
    def working_bytes(self) -> int:
        """What is allocated during a step only."""
        return self.activation_bytes + self.transient_bytes

    @property
    def total_bytes(self) -> int:
        """All of it, at the highest moment of a step."""
        return self.weights_bytes + self.gradient_bytes + self.optimizer_state_bytes + self.working_bytes


class PlannedUnit(Value):
    """One module of the dense part, and how it is kept."""

    module: ModulePath
    """Path in the model."""
    strategy: DenseStrategy = DenseStrategy.REPLICATE
    group: DenseGroup | None = None
    """The devices that share it. If unset: it is replicated."""
    checkpointed: bool = False
    split: bool = False
    """Whether its operators are gathered one after the other; in a plan of an earlier release no unit's are."""

    @model_validator(mode="after")
    def _shared_by_a_group(self) -> Self:
        if (self.group is None) != (self.strategy is DenseStrategy.REPLICATE):
            raise ValueError(
                "group: zero2 and zero3 need the devices that share the unit, and replicate has none; "
                f"found {self.strategy.value} with {'no group' if self.group is None else self.group.value}"
            )
        return self

    @model_validator(mode="after")
    def _split_where_gathered_twice(self) -> Self:
        if self.split and self.strategy is not DenseStrategy.ZERO3:
            raise ValueError(
                "split: only zero3 gathers operators one after the other, the others keep all weights between the "
                f"passes; found {self.strategy.value}; hint: set the strategy to zero3, or leave split out"
            )
        if self.split and self.checkpointed:
            raise ValueError(
                "split: a checkpointed unit computes its forward pass once more in its backward pass, and would gather "
                "each operator once more; found both; hint: leave out split or checkpointed"
            )
        return self


class DensePoint(Value):
    """One point of the frontier: no layout needs less memory and less time than it."""

    memory_bytes: Count
    """Of the dense part on every device."""
    dense_ms: Milliseconds
    """Compute and exposed collectives of the dense part in a step."""


class DenseCost(Value):
    """Predicted time of the dense part in a step."""

    compute_ms: Milliseconds
    """Matrix products, recomputed ones included."""
    exposed_ms: Milliseconds
    """Collectives that do not overlap with compute."""
    copies_ms: Milliseconds | None = None
    """Copies into and out of the buffers of sharded units' collectives. If unset: nothing is sharded, or the plan is of
    an earlier release."""
    other_ms: Milliseconds | None = None
    """What products take besides their operations, and the traffic of all else: norms, activations, copies. If unset:
    the profile or the plan is of an earlier release, and it is not known."""
    optimizer_ms: Milliseconds | None = None
    """Traffic of the optimizer. If unset: the plan is of an earlier release."""
    source: str
    """Where the times come from, such as ``simulated:h100-80gb``; their overlap is assumed, and their rate of matrix
    products where no profile measured it."""

    @property
    def passes_ms(self) -> float:
        """Forward and backward, with the collectives that they wait for."""
        return self.compute_ms + (self.other_ms or 0.0) + self.exposed_ms + (self.copies_ms or 0.0)

    @property
    def total_ms(self) -> float:
        """All of it."""
        return self.passes_ms + (self.optimizer_ms or 0.0)


class DenseLayout(Value):
    """The dense part of a plan whose units are not all replicated."""

    units: Annotated[tuple[PlannedUnit, ...], Field(min_length=1, max_length=MAX_UNITS)]
    """In the order of the forward pass."""
    num_parameters: PositiveCount
    memory: DenseMemory
    """Of the dense part on every device."""
    replicated_bytes: Count
    """Memory of the dense part on every device if all of it were replicated, and nothing checkpointed."""
    compute_ms: Milliseconds
    """Matrix products of a step, recomputed ones included."""
    exposed_ms: Milliseconds
    """Collectives that do not overlap with compute."""
    copies_ms: Milliseconds | None = None
    """As of a `DenseCost`."""
    other_ms: Milliseconds | None = None
    """As of a `DenseCost`; the frontier and replicated_ms are without it."""
    optimizer_ms: Milliseconds | None = None
    """As of a `DenseCost`; the frontier and replicated_ms are without it."""
    replicated_ms: Milliseconds
    """Compute and exposed collectives if all of it were replicated."""
    source: str
    """Where the times come from, such as ``simulated:h100-80gb``; their overlap is assumed, and their rate of matrix
    products where no profile measured it."""
    frontier: Annotated[tuple[DensePoint, ...], Field(max_length=256)] = ()
    """Layouts that were chosen from, by memory."""

    @property
    def dense_ms(self) -> float:
        """Compute, exposed collectives, and copies."""
        return self.compute_ms + self.exposed_ms + (self.copies_ms or 0.0)

    @property
    def cost(self) -> DenseCost:
        """The predicted time of the layout."""
        return DenseCost(
            compute_ms=self.compute_ms,
            exposed_ms=self.exposed_ms,
            copies_ms=self.copies_ms,
            other_ms=self.other_ms,
            optimizer_ms=self.optimizer_ms,
            source=self.source,
        )

    @property
    def added_ms(self) -> float:
        """What the layout costs more than one that is replicated as a whole; negative: less."""
        return self.dense_ms - self.replicated_ms

    @model_validator(mode="after")
    def _units_once(self) -> Self:
        seen: set[str] = set()
        for index, unit in enumerate(self.units):
            if unit.module in seen:
                raise ValueError(
                    f"units[{index}].module: {unit.module!r} is there already; hint: name each module once"
                )
            seen.add(unit.module)
        return self
