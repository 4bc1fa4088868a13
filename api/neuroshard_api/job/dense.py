"""How a DLRMTrainingJob keeps its dense part on the devices: ``spec.training.denseParallelism``."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from neuroshard_api.documents.dense_layout import (
    CheckpointingChoice,
    DenseChoices,
    DensePolicy,
    DenseStrategy,
    GroupChoice,
    ModulePath,
    UnitChoice,
)
from neuroshard_api.job.resource import Part, Unique


class ParallelismPolicy(StrEnum):
    """Which strategies the plan may choose, in the words of the resource."""

    AUTO = "Auto"
    REPLICATE = "Replicate"
    SHARD = "Shard"


class ParallelismGroup(StrEnum):
    """Which devices share a unit, in the words of the resource."""

    AUTO = "Auto"
    NODE = "Node"
    WORLD = "World"


class ActivationCheckpointing(StrEnum):
    """Which units are checkpointed, in the words of the resource."""

    AUTO = "Auto"
    NEVER = "Never"
    ALWAYS = "Always"


class UnitStrategy(StrEnum):
    """How a unit is kept, in the words of the resource."""

    REPLICATE = "Replicate"
    ZERO2 = "ZeRO2"
    ZERO3 = "ZeRO3"


class DenseUnitStrategy(Part):
    """The strategy of some units."""

    module: ModulePath
    """Path of a module of the model, such as interaction; all units at it or below it are meant."""
    strategy: UnitStrategy
    """Replicate keeps it whole on every device, ZeRO2 shards it and gathers its weights once in a step, ZeRO3 twice."""


class DenseParallelism(Part):
    """How the dense part is replicated or sharded, and which activations are recomputed."""

    policy: ParallelismPolicy = ParallelismPolicy.AUTO
    """Auto replicates what fits next to the tables; otherwise it checkpoints or shards what frees enough memory for the
    least time. Replicate shards only the units named in units; Shard shards every unit."""
    group: ParallelismGroup = ParallelismGroup.AUTO
    """Devices that share a unit: those of a node, or all. Auto takes nodes, and all devices where nothing else fits."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.AUTO
    """Whether activations are computed again in the backward pass: Auto where memory does not suffice otherwise."""
    units: Annotated[tuple[DenseUnitStrategy, ...], Field(max_length=64), Unique(key="module")] = ()
    """Units with a strategy of their own, by the path of a module; the longest path counts."""

    @property
    def choices(self) -> DenseChoices | None:
        """The same in the words of the other documents. None: all defaults."""
        if self == DenseParallelism():
            return None
        units = tuple(UnitChoice(module=each.module, strategy=DenseStrategy[each.strategy.name]) for each in self.units)
        return DenseChoices(
            policy=DensePolicy[self.policy.name],
            group=GroupChoice[self.group.name],
            checkpointing=CheckpointingChoice[self.activation_checkpointing.name],
            units=units or None,
        )
