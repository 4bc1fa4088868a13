"""Types in which pooled embeddings and their gradients travel: decided by the price of each permitted pair.

    plan with exact exchange  ->  price of each pair on its placement  ->  plan under the best pair  ->  the cheaper

Narrow types move the balance from exchange to compute, hence the second search. They encode the all-to-alls of tables
by columns alone: an exact plan that avoids those by rows or copies has little to gain on its own placement. Then each
pair is priced also on the plan under the pair with the shortest all-to-alls, and the cheaper placement counts. What
types do to the accuracy has no price; the trainer measures it.
"""

import math
from collections.abc import Sequence

from neuroshard_api.documents.communication import CommunicationChoices, CommunicationPlan, WireAlternative, WireTypes
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.plan_parts import PlanCost
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family
from neuroshard_costs.averages import average_ms
from neuroshard_costs.deduplication import looked_up
from neuroshard_costs.moved_bytes import priced_ms
from neuroshard_costs.step_cost import Collective, StepCost, sent_exchange

from neuroshard_planner.choices.repeats import RepeatsChoice
from neuroshard_planner.choices.trials import Choice, Trials, cheaper_ms, exchange_refusal, gain_text, least_gain
from neuroshard_planner.plans.same_placement import cheaper_placement, cost_under
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import device_traffic, predicted_cost
from neuroshard_planner.problem.problem import Placement, Problem


class WireTypeChoice(Choice):
    """The choice of types for the best plan with exact exchange.

    Args:
        asked: permits types, or gives them.
        trials: of the planning.
        repeats: the choice before this one. Collections of groups' own spare what narrow types spare too, so that these
            are tried without such collections as well.
    """

    def __init__(self, asked: PlanRequest, trials: Trials, *, repeats: RepeatsChoice) -> None:
        super().__init__(asked, trials)
        self._repeats = repeats
        self._pairs: _PricedPairs | None = None

    def decided(self, exact: Plan, /) -> Plan:
        """Return the best plan; one under narrow types has them in its request."""
        choices = self._asked.communication
        if choices is None:
            return exact
        self._pairs = _PricedPairs(exact, choices, self._trials)
        best, common = self._pairs.best(), self._repeats.common(exact)
        if common is not None:
            of_best_ms = cheaper_ms(best) if best.request.wire is None else priced_ms(best)  # both change results
            below_ms = of_best_ms - self._repeats.products_ms(exact.request)
            other = _PricedPairs(
                common, choices, self._trials, form=", no collection of its own", most_ms=below_ms, gains_on=best
            )
            found = other.best()
            if found.request.wire is not None:
                best, self._pairs = found, other
        self._trials.decided(
            ChoiceName.WIRE_TYPES, before=exact, best=best, preferred="another form saves more, the dense part included"
        )
        return best

    def written(self, plan: Plan) -> Plan:
        """Return the final plan with what was decided."""
        return plan if self._pairs is None else plan.model_copy(update={"communication": self._pairs.in_form_of(plan)})


class _PricedPairs:
    """Pairs of types for one plan with exact exchange.

    Args:
        exact: the plan.
        choices: the pairs.
        trials: of the planning.
        form: names what the plan has otherwise.
        most_ms: what a plan must cost less than, besides saving enough. If unset: anything.
        gains_on: the plan of another form, see `Trials.tried`; the pair that saves most is tried alone then.
    """

    def __init__(
        self,
        exact: Plan,
        choices: CommunicationChoices,
        trials: Trials,
        *,
        form: str = "",
        most_ms: float = math.inf,
        gains_on: Plan | None = None,
    ) -> None:
        self._exact = exact
        self._exact_ms = exact.predicted.total_ms
        self._pairs = choices.pairs
        self._trials = trials
        self._costs = trials.costs
        self._form = form
        self._share = least_gain(exact, choices.least_gain_percent)
        self._gains_on = gains_on
        self._below_ms = min(cheaper_ms(exact, self._share), most_ms)
        self._placed = [exact]
        """Plans on whose placements the pairs are priced."""
        self._in_vain: dict[WireTypes, str] = {}
        """Why pairs that were planned were not taken."""

    def in_form_of(self, plan: Plan) -> CommunicationPlan:
        """Return the decision; of narrow types with all prices in the form that the plan has otherwise.

        Groups of devices may have undone it.
        """
        found, chosen = self._found, plan.request.wire
        if found.chosen.is_exact:
            return found
        if plan.predicted is not self._best_plan.predicted:  # a later choice changed what the gain is of
            found = found.model_copy(update=self._exact_costs(plan))
        exact_ms = found.exact_ms or 0.0
        placed = (plan,) if plan.replication is not None else (plan, *self._placed)
        priced = [self._priced(each.types, None, placed=placed, exact_ms=exact_ms) for each in found.alternatives]
        own = next((each for each in priced if each.types == chosen), None)
        if own is not None:
            own = own.model_copy(update={"saved_ms": exact_ms - plan.predicted.total_ms})
            priced = [own if each.types == chosen else each for each in priced]
        reason = None if own is not None else f"in groups of devices {self._reason(priced, plan.predicted)}"
        judged = [self._judged(each, own, exact_ms=exact_ms) for each in priced]
        return found.model_copy(
            update={"chosen": chosen or WireTypes(), "alternatives": tuple(judged), "reason": reason}
        )

    def _exact_costs(self, plan: Plan) -> dict[str, float]:
        """Return the cost of exact exchange in the form that the plan has otherwise."""
        best = cost_under(plan.request.model_copy(update={"wire": None}), plan, self._exact, costs=self._costs)
        assert best is not None, "types on the wire need no memory"
        return {"exact_ms": best.total_ms + average_ms(plan), "exact_exchange_ms": exchange_ms(best)}

    def best(self) -> Plan:
        """Return the cheapest plan found, and keep what was decided."""
        pairs = self._pairs
        refusal = exchange_refusal(self._exact.request)
        if refusal is None and pairs:
            self._placed += self._under_the_shortest_exchange(pairs)
        exact_ms = self._exact_ms
        priced = [self._priced(types, refusal, placed=self._placed, exact_ms=exact_ms) for types in pairs]
        worth = [each for each in priced if self._is_worth_it(each.saved_ms, exact_ms)]
        by_gain = sorted(worth, key=_saved_ms, reverse=True)
        for each in by_gain if self._gains_on is None else by_gain[:1]:
            found = self._host_problem(each) or self._planned(each.types)
            if isinstance(found, Plan):
                return self._keep(found, each.types, [self._judged(other, each, exact_ms=exact_ms) for other in priced])
            self._in_vain[each.types] = found
        judged = [self._judged(each, None, exact_ms=exact_ms) for each in priced]
        return self._keep(
            self._exact, WireTypes(), judged, reason=refusal or self._reason(priced, self._exact.predicted)
        )

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
        text, below_ms = f"{types.text}{self._form}", self._below_ms
        trial = self._trials.tried(text, self._under(types), below_ms=below_ms, gains_on=self._gains_on)
        return [] if trial.plan is None else [trial.plan]

    def _under(self, types: WireTypes) -> PlanRequest:
        return self._exact.request.model_copy(update={"wire": types})

    def _even_exchange_ms(self, types: WireTypes) -> float:
        """Return the milliseconds of both all-to-alls of an even placement by columns."""
        cost = StepCost(looked_up(self._under(types)), self._costs)
        return float(cost.pooled_ms(cost.least_traffic))

    def _priced(
        self, types: WireTypes, refusal: str | None, *, placed: Sequence[Plan], exact_ms: float
    ) -> WireAlternative:
        """Return the price of all-to-alls in a pair of types, on the placement that costs least with them.

        Args:
            types: of both directions.
            refusal: reason that no pair is worth a price. If unset: some are.
            placed: plans whose placements are priced, in the form of the first, whose average of copies counts.
            exact_ms: cost of exact exchange in that form.
        """
        request = placed[0].request.model_copy(update={"wire": types})
        refusal = refusal or request.wire_problem(types)
        if refusal is not None:
            return WireAlternative(**types.model_dump(), refusal=refusal)
        problem, added_ms = Problem(request, self._costs), average_ms(placed[0])
        placements = [placement_of(each.tables, problem) for each in placed]
        fitting = [each for each in placements[1:] if problem.fits(each)]
        priced = (self._priced_on(problem, each, exact_ms - added_ms) for each in (placements[0], *fitting))
        return max(priced, key=_saved_ms)

    def _priced_on(self, problem: Problem, placement: Placement, exact_ms: float) -> WireAlternative:
        assert problem.request.wire is not None, "it has the pair"
        cost = predicted_cost(problem, placement, self._exact.predicted.source)
        peak = device_traffic(problem, placement)[:, Collective.POOLED_EMBEDDINGS].max()
        codec_ms = float(sent_exchange(problem.priced).codec_ms(peak, self._costs).sum()) if peak else 0.0
        return WireAlternative(
            **problem.request.wire.model_dump(),
            exchange_ms=exchange_ms(cost),
            codec_ms=codec_ms,
            saved_ms=exact_ms - cost.total_ms,
        )

    def _host_problem(self, each: WireAlternative) -> str | None:
        """Return the sentence that the host needs longer with codecs than a step takes without them, or None."""
        narrow_ms = self._exact_ms - _saved_ms(each)
        return self._trials.host_problem(self._under(each.types), self._exact.tables, narrow_ms, instead_of=self._exact)

    def _planned(self, types: WireTypes) -> Plan | str:
        """Return the plan under a pair, or why there is none that saves enough."""
        found = next((each for each in self._placed if each.request.wire == types), None)
        if found is None:
            text, below_ms = f"{types.text}{self._form}", self._below_ms
            trial = self._trials.tried(
                text, self._under(types), below_ms=below_ms, near=self._placed[-1], gains_on=self._gains_on
            )
            if trial.plan is None:
                return trial.tried.refusal or "it saves too little"
            found = trial.plan
        found = cheaper_placement(found, self._exact, costs=self._costs)
        if not self._is_worth_it(self._exact_ms - found.predicted.total_ms, self._exact_ms):
            return f"the best plan under them takes {found.predicted.total_ms:.3f} ms"
        return found

    def _is_worth_it(self, saved_ms: float | None, exact_ms: float) -> bool:
        return saved_ms is not None and saved_ms > 0 and saved_ms >= self._share * exact_ms

    def _judged(self, each: WireAlternative, chosen: WireAlternative | None, *, exact_ms: float) -> WireAlternative:
        """Return an alternative with the reason why it was not chosen."""
        if each is chosen or each.refusal is not None:
            return each
        if each.types in self._in_vain:
            refusal = self._in_vain[each.types]
        elif self._is_worth_it(each.saved_ms, exact_ms) and chosen is not None:
            refusal = f"{chosen.text} saves {_saved_ms(chosen):.3f} ms"
        else:
            refusal = f"{gain_text(_saved_ms(each), exact_ms)}, below {self._percent:g} %"
        return each.model_copy(update={"refusal": refusal})

    def _reason(self, priced: list[WireAlternative], exact: PlanCost) -> str:
        """Return the reason that no pair was chosen."""
        exchange, exact_ms = exchange_ms(exact), exact.total_ms
        share = exchange / exact_ms if exact_ms else 0.0
        taken = f"the all-to-alls take {exchange:.3f} ms, {100 * share:.1f} % of the step"
        known = [each for each in priced if each.saved_ms is not None]
        if not known:
            return f"{taken}, and " + ("no permitted types can be trained" if priced else "only FP32 is permitted")
        best = max(known, key=_saved_ms)
        if best.types in self._in_vain:
            return f"{taken}; {best.text}: {self._in_vain[best.types]}"
        gain = gain_text(_saved_ms(best), exact_ms)
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
