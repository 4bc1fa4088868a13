"""How a DLRMTrainingJob keeps its dense part on the devices: ``spec.training.denseParallelism``."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from neuroshard_api.documents.dense_layout import (
    CheckpointingChoice,
    DenseChoices,
    DensePolicy,
    DenseStrategy,
    GroupChoice,
    ModulePath,
    SplittingChoice,
    UnitChoice,
)
from neuroshard_api.job.resource import Part, Rule, Unique


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


class OperatorSplitting(StrEnum):
    """Which ZeRO3 units are split, in the words of the resource."""

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

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="self.activationCheckpointing != 'Always' || self.operatorSplitting != 'Always'",
            message="activationCheckpointing Always and operatorSplitting Always exclude each other: a checkpointed "
            "unit would gather each operator once more; hint: set one of them to Auto",
            holds=lambda dense: (
                dense.activation_checkpointing is not ActivationCheckpointing.ALWAYS
                or dense.operator_splitting is not OperatorSplitting.ALWAYS
            ),
        ),
    )

    policy: ParallelismPolicy = ParallelismPolicy.AUTO
    """Auto replicates what fits next to the tables; otherwise it checkpoints or shards what frees enough memory for the
    least time. Replicate shards only the units named in units; Shard shards every unit."""
    group: ParallelismGroup = ParallelismGroup.AUTO
    """Devices that share a unit: those of a node, or all. Auto takes nodes, and all devices where nothing else fits."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.AUTO
    """Whether activations are computed again in the backward pass: Auto where memory does not suffice otherwise."""
    operator_splitting: OperatorSplitting = OperatorSplitting.AUTO
    """Whether ZeRO3 gathers a unit's operators, such as its linear layers, one after the other: Auto where the gathers
    of the whole unit take more than 2 % of a device's memory."""
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
            splitting=SplittingChoice[self.operator_splitting.name],
            units=units or None,
        )
