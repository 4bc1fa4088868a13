"""How gradients of the replicated dense part travel: decided by the price of each permitted type.

Price of a type = collectives that backward compute of their unit does not hide + passes of the codec, which nothing
hides. Sharded units reduce their gradients themselves, in FP32: torch's fully_shard fixes the type of that collective
when it is set up, so that a guard could not switch it off. What types do to the accuracy has no price.
"""

import math

import numpy as np
from neuroshard_api.documents.dense_layout import DenseStrategy
from neuroshard_api.documents.dense_profile import DenseProfile, DenseUnit
from neuroshard_api.documents.gradient_exchange import (
    CAPACITY_OVER_KEPT,
    SPARSE_ENTRY_BYTES,
    GradientAlternative,
    GradientChoices,
    GradientDecision,
    GradientType,
)
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.exchanges import Reduction, TransferModel
from neuroshard_costs.simulator.dense import hidden_ms
from neuroshard_costs.simulator.gradients import gradient_codec_seconds

from neuroshard_planner.choices.trials import Trials, exchange_refusal, gain_text, least_gain
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.searches import Search

LEAST_PARAMETERS = 100_000_000
"""Replicated parameters below which nothing is gained: 400 MB of gradients, mostly hidden by backward compute."""
_MOST_NAMED = 3
"""Units that a message names."""
_MS_PER_SECOND = 1000.0
_VALUE_BYTES = 4
_MOST_GATHERED = 2 * _VALUE_BYTES / (SPARSE_ENTRY_BYTES * CAPACITY_OVER_KEPT)
"""Of (devices - 1) x kept share: from there on an all-gather receives more than an all-reduce moves, which is twice the
gradients."""


class GradientTypes:
    """The choice of the type of gradients.

    A type that carries gradients into the next step needs memory for them: the plan is made again with it.

    Args:
        asked: permits types.
        trials: of the planning.
    """

    def __init__(self, asked: PlanRequest, trials: Trials) -> None:
        self._choices = asked.gradient_choices
        self._trials = trials
        self._found: GradientDecision | None = None

    def decided(self, exact: Plan, *, search: Search) -> Plan:
        """Return the best plan; its request has the type.

        Args:
            exact: with gradients as they are.
            search: finds the plan of a request with the memory of a type, in the form of the exact plan.
        """
        choices, costs = self._choices, self._trials.costs
        if choices is None:
            return exact
        priced = _GradientTypeChoice(exact, choices, costs=costs)
        plan, found = exact, priced.decision()
        if found.chosen.carries:
            refusal = None
            try:
                plan = search(exact.request.model_copy(update={"gradients": choices.exchange(found.chosen)}))
            except InfeasibleError as error:
                refusal = exact.request.in_its_names(f"no plan fits next to what it carries: {error}")
            else:
                refusal = _GradientTypeChoice(plan, choices, costs=costs).too_little(
                    found.chosen, exact_ms=priced.step_ms
                )
            if refusal is not None:
                plan, found = exact, _without_carried(exact, choices, refusal, costs=costs)
        self._found = found
        chosen = None if found.chosen is GradientType.FP32 else choices.exchange(found.chosen)
        return plan.model_copy(update={"request": plan.request.model_copy(update={"gradients": chosen})})

    def written(self, plan: Plan) -> Plan:
        """Return the final plan with what was decided."""
        return plan if self._found is None else plan.model_copy(update={"gradients": self._found})


def _without_carried(exact: Plan, choices: GradientChoices, refusal: str, *, costs: TransferModel) -> GradientDecision:
    """Return the decision among the types that carry nothing; the others are refused for one reason."""
    left = choices.model_copy(update={"types": tuple(each for each in choices.types if not each.carries)})
    found = _GradientTypeChoice(exact, left, costs=costs).decision()
    refused = [GradientAlternative(type=each, refusal=refusal) for each in choices.narrow if each.carries]
    reason = found.reason if left.narrow else refusal
    return found.model_copy(update={"alternatives": (*found.alternatives, *refused), "reason": reason})


class _GradientTypeChoice:
    def __init__(self, plan: Plan, choices: GradientChoices, *, costs: TransferModel) -> None:
        self._request: PlanRequest = plan.request
        self._has_groups = plan.replication is not None
        self._choices = choices
        asked = choices.least_gain_percent
        self._least_share = least_gain(plan) if asked is None else asked / 100
        self._costs = costs
        self._units = [] if plan.request.dense is None else _replicated_units(plan, plan.request.dense)
        self._num_parameters = sum(unit.num_parameters for unit in self._units)
        self._exact_ms = sum(self._exposed_ms(unit, GradientType.FP32) for unit in self._units)
        computed_ms = sum(sum(self._passes_ms(unit)) for unit in self._units)
        dense_ms = computed_ms + self._exact_ms if plan.dense is None else plan.dense.dense_ms
        self.step_ms = plan.predicted.total_ms + dense_ms

    def too_little(self, kind: GradientType, *, exact_ms: float) -> str | None:
        """Return the sentence that this plan saves too little of a step of ``exact_ms``. None: it saves enough."""
        where = "the plan that fits next to what it carries"
        priced = self._priced(kind, self._refusal_of_all())
        if priced.saved_ms is None:
            return f"{where}: {priced.refusal}"
        saved_ms = exact_ms - (self.step_ms - priced.saved_ms)
        if saved_ms > 0 and saved_ms >= exact_ms * self._least_share:
            return None
        return f"{where} {gain_text(saved_ms, exact_ms, whole=' of the step')}, below {100 * self._least_share:.3g} %"

    def decision(self) -> GradientDecision:
        """Return the choice, with the price or the refusal of each type."""
        refusal = self._refusal_of_all()
        priced = [self._priced(kind, refusal) for kind in self._choices.narrow]
        best = max(priced, key=lambda each: -math.inf if each.saved_ms is None else each.saved_ms, default=None)
        least_ms = self.step_ms * self._least_share
        exact_ms = self._exact_ms if self._units else None
        if best is not None and best.saved_ms is not None and best.saved_ms > 0 and best.saved_ms >= least_ms:
            judged = [
                each
                if each is best or each.saved_ms is None
                else each.model_copy(update={"refusal": f"{best.type} saves {best.saved_ms:.3f} ms"})
                for each in priced
            ]
            return GradientDecision(chosen=best.type, exact_exposed_ms=exact_ms, alternatives=tuple(judged))
        below = f"below {100 * self._least_share:.3g} %"
        judged = [
            each
            if each.saved_ms is None
            else each.model_copy(update={"refusal": f"{self._gain(each.saved_ms)}, {below}"})
            for each in priced
        ]
        reason = refusal or (
            "only FP32 is permitted"
            if best is None
            else best.refusal or f"{best.type} {self._gain(best.saved_ms or 0.0)}, {below}"
        )
        return GradientDecision(
            chosen=GradientType.FP32, exact_exposed_ms=exact_ms, alternatives=tuple(judged), reason=reason
        )

    def _refusal_of_all(self) -> str | None:
        """Return the reason that no type is worth a price. None: some may be."""
        if self._request.dense is None:
            return "the dense part is not counted, so that nothing is known of its gradients"
        reasons = {
            "gradients have no price with groups of devices; hint: name a type by the policy Fixed": self._has_groups,
            "no unit of the dense part is replicated; sharded ones reduce their gradients in FP32": (
                not self._num_parameters
            ),
            f"{self._num_parameters:,} replicated parameters are below {LEAST_PARAMETERS:,}: collectives of their "
            f"gradients that compute does not hide take {self._exact_ms:.3f} ms of the step": (
                self._num_parameters < LEAST_PARAMETERS
            ),
        }
        of_devices = exchange_refusal(self._request)
        return of_devices or next((reason for reason, holds in reasons.items() if holds), None)

    def _priced(self, kind: GradientType, refusal: str | None) -> GradientAlternative:
        topology = self._request.topology
        kept = self._choices.keep_percent / 100
        if refusal is None and kind is GradientType.THRESHOLD and (topology.num_devices - 1) * kept > _MOST_GATHERED:
            refusal = (
                f"{topology.num_devices} devices x {self._choices.keep_percent:g} % kept receive more than an "
                f"all-reduce moves; hint: keep at most {100 * _MOST_GATHERED / (topology.num_devices - 1):.2g} %"
            )
        if refusal is not None:
            return GradientAlternative(type=kind, refusal=refusal)
        exposed_ms = sum(self._exposed_ms(unit, kind) for unit in self._units)
        codec_ms = _MS_PER_SECOND * gradient_codec_seconds(topology.device, self._num_parameters, kind)
        saved_ms = self._exact_ms - exposed_ms - codec_ms
        return GradientAlternative(type=kind, exposed_ms=exposed_ms, codec_ms=codec_ms, saved_ms=saved_ms)

    def _exposed_ms(self, unit: DenseUnit, kind: GradientType) -> float:
        """Return the exposed time of the collectives of a unit's gradients."""
        _, backward_ms = self._passes_ms(unit)
        return max(0.0, self._collectives_ms(unit.num_parameters, kind) - hidden_ms(backward_ms))

    def _collectives_ms(self, num_parameters: int, kind: GradientType) -> float:
        if not num_parameters:
            return 0.0
        num_bytes = float(_VALUE_BYTES * num_parameters)
        if kind is GradientType.THRESHOLD:
            room = CAPACITY_OVER_KEPT * self._choices.keep_percent / 100 * num_parameters
            gathered = self._request.topology.num_devices * SPARSE_ENTRY_BYTES * room
            return self._reduction_ms(gathered, Family.ROWS)  # whose gradients are gathered likewise
        share = 1.0 if kind is GradientType.FP32 else 0.5
        return self._reduction_ms(share * num_bytes, Family.REPLICATED)

    def _reduction_ms(self, num_bytes: float, family: Family) -> float:
        reduction = Reduction(topology=self._request.topology, family=family)
        return float(self._costs.reduction_ms(np.array(num_bytes), reduction)[1])

    def _passes_ms(self, unit: DenseUnit) -> tuple[float, float]:
        return self._costs.matrices_ms(unit.forward_flops, unit.backward_flops)

    def _gain(self, saved_ms: float) -> str:
        return gain_text(saved_ms, self.step_ms, whole=" of the step")


def refuse_sharded_only(plan: Plan) -> None:
    """Refuse a plan whose gradients are to travel in another type than FP32, and none of whose units is replicated.

    Raises:
        InfeasibleError: the hook of the gradients would have nothing to be registered on.
    """
    exchange, profile = plan.request.gradients, plan.request.dense
    if exchange is None or exchange.type is GradientType.FP32 or profile is None or plan.dense is None:
        return
    if any(unit.num_parameters for unit in _replicated_units(plan, profile)):
        return
    sharded = [each.module for each in plan.dense.units if each.strategy is not DenseStrategy.REPLICATE]
    named = ", ".join(map(repr, sharded[:_MOST_NAMED])) + (", ..." if len(sharded) > _MOST_NAMED else "")
    raise InfeasibleError(
        f"gradients.type: {exchange.type} is for gradients of replicated units, and the plan shards every unit of the "
        f"dense part (found {named})"
        f"; hint: replicate {sharded[0]!r} by dense_choices.units (spec.experimental.denseParallelism.units), or take "
        "FP32 (spec.experimental.communication.dense: [FP32])"
    )


def _replicated_units(plan: Plan, profile: DenseProfile) -> list[DenseUnit]:
    """Return the modules whose gradients are all-reduced, each as a unit of its own."""
    sharded = (
        {each.module for each in plan.dense.units if each.strategy is not DenseStrategy.REPLICATE}
        if plan.dense
        else set()
    )
    found = []
    for unit in profile.units:
        num_sharded = sum(path in sharded for path in unit.modules)
        found += [unit] * (unit.repeats - num_sharded)
    return found
