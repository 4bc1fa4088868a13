"""How a DLRMTrainingJob keeps its dense part on the devices: ``spec.training.denseParallelism`` and its settings."""

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
    """How the dense part is replicated or sharded."""

    policy: ParallelismPolicy = ParallelismPolicy.AUTO
    """Auto replicates what fits next to the tables; otherwise it recomputes activations of units, or shards units, that
    free enough memory for the least time. Replicate shards no unit, and Shard every unit, but those named in
    experimental.denseParallelism.units."""


class DenseUnits(Part):
    """Which units of the dense part are sharded or recomputed, and how."""

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

    group: ParallelismGroup = ParallelismGroup.AUTO
    """Devices that share a unit: those of a node, or all. Auto takes nodes, and all devices where nothing else fits."""
    activation_checkpointing: ActivationCheckpointing = ActivationCheckpointing.AUTO
    """Whether activations are computed again in the backward pass: Auto where memory does not suffice otherwise."""
    operator_splitting: OperatorSplitting = OperatorSplitting.AUTO
    """Whether ZeRO3 gathers a unit's operators, such as its linear layers, one after the other: Auto where the gathers
    of the whole unit take more than 2 % of a device's memory."""
    units: Annotated[tuple[DenseUnitStrategy, ...], Field(max_length=64), Unique(key="module")] = ()
    """Units with a strategy of their own, by the path of a module; the longest path counts."""


def dense_choices(parallelism: DenseParallelism, units: DenseUnits) -> DenseChoices | None:
    """Return a job's settings of the dense part in the words of the other documents. None: all defaults."""
    if (parallelism, units) == (DenseParallelism(), DenseUnits()):
        return None
    named = tuple(UnitChoice(module=each.module, strategy=DenseStrategy[each.strategy.name]) for each in units.units)
    return DenseChoices(
        policy=DensePolicy[parallelism.policy.name],
        group=GroupChoice[units.group.name],
        checkpointing=CheckpointingChoice[units.activation_checkpointing.name],
        splitting=SplittingChoice[units.operator_splitting.name],
        units=named or None,
    )
