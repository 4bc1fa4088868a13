"""Which groups of features a plan leaves the repeats of out: decided by planning with and without them.

plan on all lists  ->  plan without the repeats of all groups  ->  without those that save nothing
->  group by group in the grouped form, while that is cheaper; all groups in it where the first form saves too little
->  the cheaper

The grouped form may also save time of the dense part, which a plan's cost does not have. It may cost as much more.
"""

import math
from collections.abc import Mapping

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.deduplication import members_of, product_saved_ms, repeating_groups
from neuroshard_costs.moved_bytes import priced_ms

from neuroshard_planner.choices.trials import Choice, cheaper_ms
from neuroshard_planner.plans.same_placement import cost_under


class RepeatsChoice(Choice):
    """The choice of groups whose repeats are left out, of those that the request names."""

    _all_lists: Plan | None = None
    _common: Plan | None = None

    def decided(self, all_lists: Plan, /) -> Plan:
        """Return the best plan; one without repeats names the groups in its request."""
        groups = self._asked.deduplicate
        if not groups:
            return all_lists
        best = self._without_repeats(all_lists, groups)
        if best is None or priced_ms(best) >= self._enough_ms(all_lists, best.request):
            best = all_lists
        self._trials.decided(
            ChoiceName.REPEATS,
            before=all_lists,
            best=best,
            preferred="another form saves more, the dense part included",
        )
        self._all_lists = all_lists
        return best

    def common(self, best: Plan) -> Plan | None:
        """Return the best plan without collections of groups' own. None: the best one has none, or was asked for them.

        ``best`` is the plan that was decided for.
        """
        return None if best.request.grouped == self._asked.grouped else self._common

    def products_ms(self, request: PlanRequest) -> float:
        """Return the time of the dense part that the groups in the grouped form save."""
        return sum(self._product_ms(request, name) for name in request.grouped or ())

    def written(self, plan: Plan) -> Plan:
        """Return the final plan with what its repeats save."""
        if self._all_lists is None or plan.request.deduplicate is None:
            return plan
        saved_ms = self._savings_ms(plan)
        groups = tuple(
            each.model_copy(
                update={"saved_ms": saved_ms[each.group], "product_saved_ms": self._product_saved_ms(plan, each)}
            )
            for each in repeating_groups(plan.request)
        )
        all_lists = cost_under(_without(plan.request, ()), plan, self._all_lists, costs=self._trials.costs)
        all_lists_ms = math.inf if all_lists is None else all_lists.total_ms
        return plan.model_copy(update={"deduplication": groups, "all_lists_ms": all_lists_ms})

    def _without_repeats(self, all_lists: Plan, groups: tuple[str, ...]) -> Plan | None:
        """Return the best plan without the repeats of those groups for which that pays. None: there is none."""
        request = all_lists.request.model_copy(update={"deduplicate": groups, "grouped": self._asked.grouped})
        plan = self._saving(all_lists, request, form="")
        saves = plan is not None and priced_ms(plan) < self._enough_ms(all_lists, plan.request)
        self._common = plan if saves else all_lists
        plan = None if plan is None else self._grouped(plan)
        if plan is not None and priced_ms(plan) < self._enough_ms(all_lists, plan.request):
            return plan
        if request.grouped == groups or not _may_be_grouped(request):
            return None
        form = ", in a collection of its own" if len(groups) == 1 else ", in collections of their own"
        return self._saving(all_lists, request.model_copy(update={"grouped": groups}), form=form)

    def _saving(self, all_lists: Plan, request: PlanRequest, *, form: str) -> Plan | None:
        """Return the plan of a form without the repeats of those groups for which that pays. None: there is none."""
        groups = request.deduplicate or ()
        is_last = len(groups) == 1  # of fewer groups it may cost less
        has_products = self.products_ms(request) > 0
        plan = self._trials.tried(
            f"no repeats of {', '.join(groups)}{form}",
            request,
            below_ms=self._enough_ms(all_lists, request) if is_last else math.inf,
            gains_on=all_lists if (is_last or form) and not has_products else None,
            instead_of=all_lists,
        ).plan
        if plan is None:
            return None
        saved_ms = self._savings_ms(plan)
        kept = tuple(name for name, ms in saved_ms.items() if ms + self._product_ms(request, name) > 0)
        if not kept:
            return None
        if len(kept) < len(saved_ms):
            fewer = _without(request, kept)
            text, below_ms = f"no repeats of {', '.join(kept)}{form}", self._enough_ms(all_lists, fewer)
            plan = self._trials.tried(text, fewer, below_ms=below_ms, near=plan, instead_of=all_lists).plan
        return plan

    def _enough_ms(self, all_lists: Plan, request: PlanRequest) -> float:
        """Return the cost that a plan of a form must be below."""
        return cheaper_ms(all_lists) + self.products_ms(request)

    def _product_ms(self, request: PlanRequest, group: str) -> float:
        in_form = group in (request.grouped or ())
        return (product_saved_ms(request, group, self._trials.costs) or 0.0) if in_form else 0.0

    def _product_saved_ms(self, plan: Plan, group: DeduplicatedGroup) -> float | None:
        if group.form is not DeduplicationForm.GROUPED:
            return None
        return product_saved_ms(plan.request, group.group, self._trials.costs)

    def _grouped(self, plan: Plan) -> Plan:
        """Return a plan with groups in the grouped form, those of most columns first, while that is cheaper."""
        request = plan.request
        if not _may_be_grouped(request):
            return plan
        columns = {
            name: sum(table.embedding_dim * table.num_features for table in members_of(name, request))
            for name in request.deduplicate or ()
            if name not in (request.grouped or ())
        }
        for name in sorted(columns, key=lambda each: -columns[each]):
            grouped = request.model_copy(update={"grouped": (*(plan.request.grouped or ()), name)})
            text, product_ms = f"{name} in a collection of its own", product_saved_ms(request, name, self._trials.costs)
            found = self._trials.tried(
                text,
                grouped,
                below_ms=cheaper_ms(plan) + (product_ms or 0.0),
                gains_on=plan if product_ms is None else None,
                instead_of=plan,
            ).plan
            if found is None:  # also where its tables may be by rows alone
                return plan
            plan = found
        return plan

    def _savings_ms(self, plan: Plan) -> Mapping[str, float]:
        """Return by group what the plan's placement costs more with all lists of that group alone."""
        names = [each.group for each in repeating_groups(plan.request)]
        return {name: self._saved_ms(plan, tuple(each for each in names if each != name)) for name in names}

    def _saved_ms(self, plan: Plan, kept: tuple[str, ...]) -> float:
        cost = cost_under(_without(plan.request, kept), plan, costs=self._trials.costs)
        assert cost is not None, "a batch without repeats fits"
        return cost.total_ms - plan.predicted.total_ms


def _may_be_grouped(request: PlanRequest) -> bool:
    """Return whether the grouped form may pay: something travels, or the model has a product to take once per list."""
    return request.topology.num_devices > 1 or request.joint_product_columns is not None


def _without(request: PlanRequest, kept: tuple[str, ...]) -> PlanRequest:
    grouped = tuple(name for name in request.grouped or () if name in kept)
    return request.model_copy(update={"deduplicate": kept or None, "grouped": grouped or None})
