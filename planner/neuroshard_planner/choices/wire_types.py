"""Types in which pooled embeddings and their gradients travel: decided by the price of each permitted pair.

    plan with exact exchange  ->  price of each pair on its placement  ->  plan under the best pair  ->  the cheaper

Narrow types move the balance from exchange to compute, hence the second search. They encode the all-to-alls of tables
by columns alone: an exact plan that avoids those by rows or copies has little to gain on its own placement. Then each
pair is priced also on the plan under the pair with the shortest all-to-alls, and the cheaper placement counts. What
types do to the accuracy has no price; the trainer measures it.
"""

from collections.abc import Mapping, Sequence

from neuroshard_api.documents.communication import CommunicationPlan, WireAlternative, WireTypes
from neuroshard_api.documents.plan import Plan, PlanCost
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.averages import average_ms
from neuroshard_costs.deduplication import looked_up
from neuroshard_costs.step_cost import Collective, StepCost, sent_exchange

from neuroshard_planner.choices.trials import Trials, cheaper_ms, exchange_refusal, gain_text, least_gain
from neuroshard_planner.plans.same_placement import cheaper_placement
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import device_traffic, predicted_cost
from neuroshard_planner.problem.problem import Problem


class WireTypeChoice:
    """The choice of types for the best plan with exact exchange.

    Args:
        asked: permits types, or gives them.
        trials: of the planning.
    """

    def __init__(self, asked: PlanRequest, trials: Trials) -> None:
        self._choices = asked.communication
        self._trials = trials
        self._costs = trials.costs

    def decided(self, exact: Plan) -> Plan:
        """Return the best plan; one under narrow types has them in its request."""
        if self._choices is None:
            return exact
        self._exact = exact
        self._exact_ms = exact.predicted.total_ms
        self._placed = [exact]
        """Plans on whose placements the pairs are priced."""
        self._share = least_gain(exact, self._choices.least_gain_percent)
        self._least_ms = self._exact_ms * self._share
        best = self._best(self._choices.pairs)
        self._trials.decided(ChoiceName.WIRE_TYPES, before=exact, best=best)
        return best

    def written(self, plan: Plan) -> Plan:
        """Return the final plan with what was decided."""
        if self._choices is None:
            return plan
        found = self._found
        if (
            not found.chosen.is_exact and plan.predicted is not self._best_plan.predicted
        ):  # a later choice changed what the gain is of
            found = found.model_copy(update=self._exact_costs(plan))
        return plan.model_copy(update={"communication": found})

    def _exact_costs(self, plan: Plan) -> dict[str, float]:
        """Return the cost of exact exchange in the form that the plan has otherwise."""
        request = plan.request.model_copy(update={"wire": None})
        placed = (plan,) if plan.replication is not None else (plan, self._exact)
        found = [self._trials.cost(each.tables, request, plan.predicted.source) for each in placed]
        best = min((each for each in found if each is not None), key=lambda cost: cost.total_ms, default=None)
        assert best is not None, "types on the wire need no memory"
        return {"exact_ms": best.total_ms + average_ms(plan), "exact_exchange_ms": exchange_ms(best)}

    def _best(self, pairs: Sequence[WireTypes]) -> Plan:
        """Return the cheapest plan found, and keep what was decided."""
        refusal = exchange_refusal(self._exact.request)
        if refusal is None and pairs:
            self._placed += self._under_the_shortest_exchange(pairs)
        priced = [self._priced(types, refusal) for types in pairs]
        by_gain = sorted((each for each in priced if self._is_worth_it(each.saved_ms)), key=_saved_ms, reverse=True)
        refusals: dict[WireTypes, str] = {}
        for each in by_gain:
            found = self._planned(each.types)
            if isinstance(found, Plan):
                return self._keep(found, each.types, [self._judged(other, each, refusals) for other in priced])
            refusals[each.types] = found
        judged = [self._judged(each, None, refusals) for each in priced]
        return self._keep(self._exact, WireTypes(), judged, reason=refusal or self._reason(priced))

    def _under_the_shortest_exchange(self, pairs: Sequence[WireTypes]) -> list[Plan]:
        """Return the plan under the pair whose even all-to-alls by columns are shortest; none where it has no use.

        A plan by columns is priced as it is; one with rows or copies may avoid all-to-alls that narrow types shorten.
        """
        if all(table.sharding_type.is_by_columns for table in self._exact.tables):
            return []
        trained = [types for types in pairs if self._exact.request.wire_problem(types) is None]
        if not trained:
            return []
        types = min(trained, key=self._even_exchange_ms)
        trial = self._trials.tried(types.text, self._under(types), below_ms=cheaper_ms(self._exact, self._share))
        return [] if trial.plan is None else [trial.plan]

    def _under(self, types: WireTypes) -> PlanRequest:
        return self._exact.request.model_copy(update={"wire": types})

    def _even_exchange_ms(self, types: WireTypes) -> float:
        """Return the milliseconds of both all-to-alls of an even placement by columns."""
        cost = StepCost(looked_up(self._under(types)), self._costs)
        return float(cost.pooled_ms(cost.least_traffic))

    def _priced(self, types: WireTypes, refusal: str | None) -> WireAlternative:
        """Return the price of all-to-alls in a pair of types, on the placement that costs least with them."""
        refusal = refusal or self._exact.request.wire_problem(types)
        if refusal is not None:
            return WireAlternative(**types.model_dump(), refusal=refusal)
        return max((self._priced_on(placed, types) for placed in self._placed), key=_saved_ms)

    def _priced_on(self, placed: Plan, types: WireTypes) -> WireAlternative:
        problem = Problem(placed.request.model_copy(update={"wire": types}), self._costs)
        placement = placement_of(placed.tables, problem)
        cost = predicted_cost(problem, placement, self._exact.predicted.source)
        peak = device_traffic(problem, placement)[:, Collective.POOLED_EMBEDDINGS].max()
        codec_ms = float(sent_exchange(problem.priced).codec_ms(peak, self._costs).sum()) if peak else 0.0
        return WireAlternative(
            **types.model_dump(),
            exchange_ms=exchange_ms(cost),
            codec_ms=codec_ms,
            saved_ms=self._exact_ms - cost.total_ms,
        )

    def _planned(self, types: WireTypes) -> Plan | str:
        """Return the plan under a pair, or why there is none that saves enough."""
        found = next((each for each in self._placed if each.request.wire == types), None)
        if found is None:
            below_ms = cheaper_ms(self._exact, self._share)
            trial = self._trials.tried(types.text, self._under(types), below_ms=below_ms, near=self._placed[-1])
            if trial.plan is None:
                return trial.tried.refusal or "it saves too little"
            found = trial.plan
        found = cheaper_placement(found, self._exact, costs=self._costs)
        if not self._is_worth_it(self._exact_ms - found.predicted.total_ms):
            return f"the best plan under them takes {found.predicted.total_ms:.3f} ms"
        return found

    def _is_worth_it(self, saved_ms: float | None) -> bool:
        return saved_ms is not None and saved_ms > 0 and saved_ms >= self._least_ms

    def _judged(
        self, each: WireAlternative, chosen: WireAlternative | None, refusals: Mapping[WireTypes, str]
    ) -> WireAlternative:
        """Return an alternative with the reason why it was not chosen; ``refusals`` are of pairs planned in vain."""
        if each is chosen or each.refusal is not None:
            return each
        if each.types in refusals:
            refusal = refusals[each.types]
        elif self._is_worth_it(each.saved_ms) and chosen is not None:
            refusal = f"{chosen.text} saves {_saved_ms(chosen):.3f} ms"
        else:
            refusal = f"{gain_text(_saved_ms(each), self._exact_ms)}, below {self._percent:g} %"
        return each.model_copy(update={"refusal": refusal})

    def _reason(self, priced: list[WireAlternative]) -> str:
        """Return the reason that no pair was chosen."""
        exchange = exchange_ms(self._exact.predicted)
        share = exchange / self._exact_ms if self._exact_ms else 0.0
        taken = f"the all-to-alls take {exchange:.3f} ms, {100 * share:.1f} % of the step"
        known = [each for each in priced if each.saved_ms is not None]
        if not known:
            return f"{taken}, and " + ("no permitted types can be trained" if priced else "only FP32 is permitted")
        best = max(known, key=_saved_ms)
        gain = gain_text(_saved_ms(best), self._exact_ms)
        return f"{taken}; {best.text} {gain}, and {self._percent:g} % are asked for"

    @property
    def _percent(self) -> float:
        return round(100 * self._share, 1)

    def _keep(
        self, found: Plan, chosen: WireTypes, judged: list[WireAlternative], *, reason: str | None = None
    ) -> Plan:
        self._best_plan = found
        self._found = CommunicationPlan(
            chosen=chosen,
            exact_ms=self._exact_ms,
            exact_exchange_ms=exchange_ms(self._exact.predicted),
            alternatives=tuple(judged),
            reason=reason,
        )
        return found


def exchange_ms(cost: PlanCost) -> float:
    """Return the milliseconds of both all-to-alls of pooled embeddings, codecs included; 0 where there are none."""
    return sum(
        each.forward_ms + each.backward_ms
        for each in cost.devices[0].collectives
        if each.kind is CollectiveKind.ALL_TO_ALL and each.family is Family.COLUMNS
    )


def _saved_ms(each: WireAlternative) -> float:
    return each.saved_ms or 0.0
