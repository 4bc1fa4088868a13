"""How gradients of the replicated dense part travel: decided by the price of each permitted type.

What types do to the accuracy has no price.
"""

import math

from neuroshard_api.documents.gradient_exchange import (
    GradientAlternative,
    GradientChoices,
    GradientDecision,
    GradientType,
)
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.exchanges import TransferModel
from neuroshard_dense.gradients import GradientPrices, sharded_only_problem

from neuroshard_planner.choices.trials import Choice, Trials, exchange_refusal, gain_text, least_gain
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.plans.same_placement import cheaper_placement
from neuroshard_planner.searches import Search

LEAST_PARAMETERS = 100_000_000
"""Replicated parameters below which nothing is gained: 400 MB of gradients, mostly hidden by backward compute."""


class GradientTypes(Choice):
    """The choice of the type of gradients.

    A type that carries gradients into the next step needs memory for them: the plan is made again with it.

    Args:
        asked: permits types.
        trials: of the planning.
        search: finds the plan of a request with the memory of a type, dense part included.
    """

    def __init__(self, asked: PlanRequest, trials: Trials, *, search: Search) -> None:
        super().__init__(asked, trials)
        self._search = search
        self._found: GradientDecision | None = None

    def decided(self, exact: Plan, /) -> Plan:
        """Return the best plan; its request has the type."""
        choices, costs = self._asked.gradient_choices, self._trials.costs
        if choices is None:
            return exact
        priced = _GradientTypeChoice(exact, choices, costs=costs)
        plan, found = exact, priced.decision()
        if found.chosen.carries:
            refusal = None
            try:
                plan = self._search(exact.request.model_copy(update={"gradients": choices.exchange(found.chosen)}))
                plan = cheaper_placement(plan, exact, costs=costs)
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
        """Return the final plan with what was decided.

        Raises:
            InfeasibleError: a type that was asked for has no use, since none of the plan's units is replicated.
        """
        problem = sharded_only_problem(plan)
        if problem is not None:
            raise InfeasibleError(problem)
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
        self._request = plan.request
        self._has_groups = plan.replication is not None
        self._choices = choices
        self._least_share = least_gain(plan, choices.least_gain_percent)
        self._prices = GradientPrices(plan, choices, costs=costs)
        self.step_ms = plan.predicted.total_ms + self._prices.dense_ms

    def too_little(self, kind: GradientType, *, exact_ms: float) -> str | None:
        """Return the sentence that this plan saves too little of a step of ``exact_ms``. None: it saves enough."""
        where = "the plan that fits next to what it carries"
        priced = self._priced(kind, self._refusal_of_all())
        if priced.saved_ms is None:
            return f"{where}: {priced.refusal}"
        saved_ms = exact_ms - (self.step_ms - priced.saved_ms)
        if self._is_enough(saved_ms, exact_ms):
            return None
        return f"{where} {self._too_small(saved_ms, exact_ms)}"

    def decision(self) -> GradientDecision:
        """Return the choice, with the price or the refusal of each type."""
        refusal = self._refusal_of_all()
        priced = [self._priced(kind, refusal) for kind in self._choices.narrow]
        exact_ms = self._prices.exact_ms if self._prices.has_units else None
        best = max(priced, key=_saved_ms, default=None)
        if best is None:
            reason = refusal or "only FP32 is permitted"
            return GradientDecision(chosen=GradientType.FP32, exact_exposed_ms=exact_ms, reason=reason)
        chosen = best if self._is_enough(_saved_ms(best), self.step_ms) else None
        too_small = best.refusal or f"{best.type} {self._too_small(_saved_ms(best), self.step_ms)}"
        return GradientDecision(
            chosen=GradientType.FP32 if chosen is None else chosen.type,
            exact_exposed_ms=exact_ms,
            alternatives=tuple(self._judged(each, chosen) for each in priced),
            reason=too_small if chosen is None else None,
        )

    def _judged(self, each: GradientAlternative, chosen: GradientAlternative | None) -> GradientAlternative:
        """Return an alternative with the reason why it was not chosen."""
        if each.saved_ms is None or each is chosen:
            return each
        too_small = self._too_small(each.saved_ms, self.step_ms)
        refusal = too_small if chosen is None else f"{chosen.type} saves {_saved_ms(chosen):.3f} ms"
        return each.model_copy(update={"refusal": refusal})

    def _is_enough(self, saved_ms: float, of_ms: float) -> bool:
        return saved_ms > 0 and saved_ms >= of_ms * self._least_share

    def _too_small(self, saved_ms: float, of_ms: float) -> str:
        return f"{gain_text(saved_ms, of_ms, whole=' of the step')}, below {100 * self._least_share:.3g} %"

    def _refusal_of_all(self) -> str | None:
        """Return the reason that no type is worth a price. None: some may be."""
        if self._request.dense is None:
            return "the dense part is not counted, so that nothing is known of its gradients"
        num_parameters = self._prices.num_parameters
        reasons = {
            "gradients have no price with groups of devices; hint: name a type by the policy Fixed": self._has_groups,
            "no unit of the dense part is replicated; sharded ones reduce their gradients in FP32": not num_parameters,
            f"{num_parameters:,} replicated parameters are below {LEAST_PARAMETERS:,}: collectives of their gradients "
            f"that compute does not hide take {self._prices.exact_ms:.3f} ms of the step": (
                num_parameters < LEAST_PARAMETERS
            ),
        }
        of_devices = exchange_refusal(self._request)
        return of_devices or next((reason for reason, holds in reasons.items() if holds), None)

    def _priced(self, kind: GradientType, refusal: str | None) -> GradientAlternative:
        most_percent = self._prices.most_kept_percent
        if refusal is None and kind is GradientType.THRESHOLD and most_percent is not None:
            refusal = (
                f"{self._request.topology.num_devices} devices x {self._choices.keep_percent:g} % kept receive more "
                f"than an all-reduce moves; hint: keep at most {most_percent:.2g} %"
            )
        if refusal is not None:
            return GradientAlternative(type=kind, refusal=refusal)
        exposed_ms, codec_ms = self._prices.exposed_ms(kind), self._prices.codec_ms(kind)
        saved_ms = self._prices.exact_ms - exposed_ms - codec_ms
        return GradientAlternative(type=kind, exposed_ms=exposed_ms, codec_ms=codec_ms, saved_ms=saved_ms)


def _saved_ms(each: GradientAlternative) -> float:
    return -math.inf if each.saved_ms is None else each.saved_ms
