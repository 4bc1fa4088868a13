"""The price of types in which gradients of the replicated dense part travel.

Price of a type = collectives that backward compute of their unit does not hide + passes of the codec, which nothing
hides. Sharded units reduce their gradients themselves, in FP32: torch's fully_shard fixes the type of that collective
when it is set up, so that a guard could not switch it off.
"""

import numpy as np
from neuroshard_api.documents.dense_layout import DenseStrategy
from neuroshard_api.documents.dense_profile import DenseUnit
from neuroshard_api.documents.gradient_exchange import (
    CAPACITY_OVER_KEPT,
    SPARSE_ENTRY_BYTES,
    GradientSettings,
    GradientType,
)
from neuroshard_api.documents.plan import Plan
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.exchanges import MS_PER_SECOND, Reduction, TransferModel
from neuroshard_costs.simulator.dense import hidden_ms
from neuroshard_costs.simulator.gradients import gradient_codec_seconds

_VALUE_BYTES = 4
_MOST_GATHERED = 2 * _VALUE_BYTES / (SPARSE_ENTRY_BYTES * CAPACITY_OVER_KEPT)
"""Of (devices - 1) x kept share: from there on an all-gather receives more than an all-reduce moves, which is twice the
gradients."""
MOST_NAMED = 3
"""Units that a message names."""


class GradientPrices:
    """Milliseconds of the gradients of a plan's replicated units, by their type.

    Args:
        plan: of devices; those without a counted dense part have no units.
        settings: of Threshold.
        costs: price collectives and compute.
    """

    def __init__(self, plan: Plan, settings: GradientSettings, *, costs: TransferModel) -> None:
        self._topology = plan.request.topology
        self._kept = settings.keep_percent / 100
        self._costs = costs
        self._units = replicated_units(plan)
        self.num_parameters = sum(unit.num_parameters for unit in self._units)
        self.exact_ms = self.exposed_ms(GradientType.FP32)
        """Exposed collectives of gradients as they are."""
        computed_ms = sum(sum(self._passes_ms(unit)) for unit in self._units)
        self.dense_ms = computed_ms + self.exact_ms if plan.dense is None else plan.dense.dense_ms
        """Of the dense part, with gradients as they are."""

    @property
    def has_units(self) -> bool:
        """Whether some unit is replicated."""
        return bool(self._units)

    @property
    def most_kept_percent(self) -> float | None:
        """Entries above which Threshold receives more than an all-reduce moves. None: the settings keep no more."""
        others = self._topology.num_devices - 1
        return 100 * _MOST_GATHERED / others if others * self._kept > _MOST_GATHERED else None

    def exposed_ms(self, kind: GradientType) -> float:
        """Return the time of collectives that compute does not hide."""
        return sum(
            max(0.0, self._collectives_ms(unit.num_parameters, kind) - hidden_ms(self._passes_ms(unit)[1]))
            for unit in self._units
        )

    def codec_ms(self, kind: GradientType) -> float:
        """Return the time of passes over gradients before and after the collectives."""
        return MS_PER_SECOND * gradient_codec_seconds(self._topology.device, self.num_parameters, kind)

    def _collectives_ms(self, num_parameters: int, kind: GradientType) -> float:
        if not num_parameters:
            return 0.0
        if kind is GradientType.THRESHOLD:
            room = CAPACITY_OVER_KEPT * self._kept * num_parameters
            gathered = self._topology.num_devices * SPARSE_ENTRY_BYTES * room
            return self._reduction_ms(gathered, Family.ROWS)  # whose gradients are gathered likewise
        share = 1.0 if kind is GradientType.FP32 else 0.5
        return self._reduction_ms(share * float(_VALUE_BYTES * num_parameters), Family.REPLICATED)

    def _reduction_ms(self, num_bytes: float, family: Family) -> float:
        reduction = Reduction(topology=self._topology, family=family)
        return float(self._costs.reduction_ms(np.array(num_bytes), reduction)[1])

    def _passes_ms(self, unit: DenseUnit) -> tuple[float, float]:
        return self._costs.matrices_ms(unit.forward_flops, unit.backward_flops)


def replicated_units(plan: Plan) -> list[DenseUnit]:
    """Return the modules whose gradients are all-reduced, each as a unit of its own; none where they are not known."""
    layout = () if plan.dense is None else plan.dense.units
    sharded = {each.module for each in layout if each.strategy is not DenseStrategy.REPLICATE}
    found = []
    for unit in () if plan.request.dense is None else plan.request.dense.units:
        num_sharded = sum(path in sharded for path in unit.modules)
        found += [unit] * (unit.repeats - num_sharded)
    return found


def sharded_only_problem(plan: Plan) -> str | None:
    """Return the reason that the request's type of gradients has no use, field first. None: some unit is replicated.

    The hook that encodes gradients would have no unit to be registered on.
    """
    exchange = plan.request.gradients
    if exchange is None or exchange.type is GradientType.FP32 or plan.request.dense is None or plan.dense is None:
        return None
    if any(unit.num_parameters for unit in replicated_units(plan)):
        return None
    sharded = [each.module for each in plan.dense.units if each.strategy is not DenseStrategy.REPLICATE]
    named = ", ".join(map(repr, sharded[:MOST_NAMED])) + (", ..." if len(sharded) > MOST_NAMED else "")
    return (
        f"gradients.type: {exchange.type} is for gradients of replicated units, and the plan shards every unit of the "
        f"dense part (found {named})"
        f"; hint: replicate {sharded[0]!r} by dense_choices.units (spec.experimental.denseParallelism.units), or take "
        "FP32 (spec.experimental.communication.dense: [FP32])"
    )
