"""Which groups of devices hold all tables (2-D sharding): decided by planning each way, average of the copies included.

    plan over all devices  ->  plan of one group, for each way to form groups  ->  the cheapest, with its average
                           ->  that with exact exchange, and with narrow tables

A group is planned as devices of its own, with its own links and the samples of its own batch.
"""

import math
from collections.abc import Sequence

from neuroshard_api.documents.permitted_groups import permitted_groups
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import ChoiceName
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.resolved_request import request_of_group
from neuroshard_api.sharding.replication import Grouping, Replication, training_differences
from neuroshard_costs.averages import least_average_ms, with_averages
from neuroshard_costs.exchanges import TransferModel

from neuroshard_planner.choices.stored_types import StoredTypeChoice
from neuroshard_planner.choices.trials import Choice, Trials, cheaper_ms, least_gain
from neuroshard_planner.errors import RequestError
from neuroshard_planner.plans.same_placement import bounded


class DeviceGroups(Choice):
    """The choice of groups that each hold all tables.

    Args:
        asked: permits groups.
        trials: of the planning.
        types: of tables. Groups may need narrower ones to fit, and average less with them.

    Raises:
        RequestError: the tables cannot be averaged, a size forms no groups, or constraints exclude groups.
    """

    def __init__(self, asked: PlanRequest, trials: Trials, *, types: StoredTypeChoice) -> None:
        super().__init__(asked, trials)
        self._types = types
        self._ways = () if asked.replication is None else permitted_groupings(asked)

    def num_searched(self, known_ms: float) -> int:
        """Return the number of permitted ways whose averages alone do not take as long as a plan that is known."""
        least = self._types.narrowest(self._asked) or self._asked
        return sum(self._least_average_ms(least, way) < known_ms for way in self._ways)

    def decided(self, whole: Plan, /) -> Plan:
        """Return the best plan, with its average; where it has groups, its request is that of one group."""
        if not self._ways:
            return whole
        free = whole.request.model_copy(update={"constraints": self._asked.constraints})
        best, best_way, bound_ms = whole, None, self._trials.bound_ms(free)
        for way in self._ways:
            found, of_way_ms = self._of(way, whole, free, below_ms=min(cheaper_ms(whole), best.predicted.total_ms))
            bound_ms = min(bound_ms, of_way_ms)
            best, best_way = (best, best_way) if found is None else (found, way)
        if best_way is not None:
            best, of_way_ms = self._in_other_types(best, best_way, whole, free)
            bound_ms = min(bound_ms, of_way_ms)
        self._trials.decided(
            ChoiceName.DEVICE_GROUPS, before=whole, best=best, preferred="types on the wire save too little in groups"
        )
        warnings = best.warnings
        if best.replication is not None:
            warnings = (*warnings, *training_differences(best.replication, best.request.optimizers))
        return bounded(best, bound_ms, baselines=whole.baselines, warnings=warnings)

    def _in_other_types(self, best: Plan, way: Grouping, whole: Plan, free: PlanRequest) -> tuple[Plan, float]:
        """Return the best plan of a way with its own types, with exact exchange, and with narrow tables; and a bound.

        Groups exchange less than all devices do, and average all weights.
        """
        bound_ms, choices = math.inf, self._asked.communication
        if choices is not None and best.request.wire is not None:
            below_ms = best.predicted.total_ms / (1 - least_gain(whole, choices.least_gain_percent))
            exact, exact_free = (each.model_copy(update={"wire": None}) for each in (whole.request, free))
            found, bound_ms = self._of(
                way, _asking(whole, exact), exact_free, below_ms=below_ms, form=", exact exchange"
            )
            if found is not None:
                best, whole, free = found, _asking(whole, exact), exact_free
        found, of_types_ms = self._of_narrowest(way, whole, free, below_ms=cheaper_ms(best))
        if found is not None:
            self._types.taken(best)
        return found or best, min(bound_ms, of_types_ms)

    def _of_narrowest(
        self, way: Grouping, whole: Plan, free: PlanRequest, *, below_ms: float, form: str = ""
    ) -> tuple[Plan | None, float]:
        """Return the plan of one way with the narrowest types, as `_of`; none where these are not permitted."""
        narrow, narrow_free = self._types.narrowest(whole.request), self._types.narrowest(free)
        if narrow is None or narrow_free is None:
            return None, math.inf
        form = f"{form}, narrowest types"
        return self._of(way, _asking(whole, narrow), narrow_free, below_ms=below_ms, form=form)

    def _of(
        self, way: Grouping, whole: Plan, free: PlanRequest, *, below_ms: float, form: str = ""
    ) -> tuple[Plan | None, float]:
        """Return the plan of one way that costs less than that, average included, and the bound of the way.

        ``free`` is the request of the whole plan with the asked constraints; ``form`` names what else is in it.
        """
        text = f"{way.num_groups} {way.layout} groups of {way.group.num_devices} devices{form}"
        costs, least_ms = self._trials.costs, self._least_average_ms(free, way)
        if least_ms >= whole.predicted.total_ms:
            self._trials.note(text, f"averages alone take {least_ms:.3f} ms of each step")
            return None, least_ms
        try:
            group_bound_ms = self._trials.bound_ms(request_of_group(free, way.group))
        except RequestError as error:  # a group within a node has no types of nodes
            self._trials.note(text, str(error))
            return None, math.inf

        def averaged(found: Plan) -> Plan:
            return _averaged(bounded(found, group_bound_ms), way, self._asked, costs, whole_ms=whole.predicted.total_ms)

        request = request_of_group(whole.request, way.group)
        trial = self._trials.tried(text, request, below_ms=below_ms, finish=averaged, added_ms=least_ms)
        bound_ms = group_bound_ms + least_ms
        if not trial.is_infeasible:
            return trial.plan, bound_ms
        found, of_types_ms = self._of_narrowest(way, whole, free, below_ms=below_ms, form=form)
        return found, min(bound_ms, of_types_ms)

    def _least_average_ms(self, request: PlanRequest, way: Grouping) -> float:
        """Return the milliseconds that averages add to each step at the least."""
        assert self._asked.replication is not None, "the request permits groups"
        return least_average_ms(request, way, self._trials.costs) / self._asked.replication.sync_every_steps


def _asking(plan: Plan, request: PlanRequest) -> Plan:
    return plan.model_copy(update={"request": request})


def permitted_groupings(request: PlanRequest) -> Sequence[Grouping]:
    """Return the ways to form groups that a request permits. Raises RequestError, as `permitted_groups` ValueError."""
    try:
        return permitted_groups(request)
    except ValueError as error:
        raise RequestError(str(error)) from error


def _averaged(plan: Plan, way: Grouping, request: PlanRequest, costs: TransferModel, *, whole_ms: float) -> Plan:
    """Return a group's plan with the average of its copies, per step."""
    assert request.replication is not None, "the request permits groups"
    every = request.replication.sync_every_steps
    return bounded(
        plan,
        plan.lower_bound_ms + least_average_ms(plan.request, way, costs) / every,
        predicted=with_averages(plan.predicted, plan.memory, way, costs, every=every),
        replication=Replication(
            num_groups=way.num_groups,
            layout=way.layout,
            sync_every_steps=every,
            whole_ms=whole_ms,
            group_lower_bound_ms=plan.lower_bound_ms,
        ),
    )
