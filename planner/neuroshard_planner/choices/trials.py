"""Trials of requests other than that of the best plan so far: bounded first, and searched at most once.

A search takes ten to thirty times as long as its lower bound. So an alternative is searched only where its bound leaves
room for the gain that is asked for, and promises one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import Alternative, ChoiceName, PlanChoice
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.whole_step import WholeStep
from neuroshard_costs.moved_bytes import priced_ms
from neuroshard_dense.whole_step import whole_step

from neuroshard_planner.choices.ways_by_rows import bound_of_choices_ms
from neuroshard_planner.errors import InfeasibleError, PlannerError
from neuroshard_planner.plans.same_placement import cheaper_placement
from neuroshard_planner.problem.cost_model import CostModel
from neuroshard_planner.searches import Search, remembered

LEAST_SHARE = 0.02
"""Of a step, below which forms are not distinguished, however good the cost models are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What became of a request."""

    tried: Alternative
    """Its form, with the reason that there is no plan of it that costs so little."""
    plan: Plan | None = None
    """The best plan of it. None: there is none, or none that costs so little."""
    is_infeasible: bool = False
    """Whether nothing fits."""


class Trials:
    """Searches of one planning, each made once, and the record of the choices between them.

    Args:
        costs: price placements.
        search: finds the plan of a request that leaves nothing to choose but shards and devices.
        bound_ms: returns a cost that no plan of such a request goes below.
    """

    def __init__(
        self,
        costs: CostModel,
        search: Search,
        *,
        bound_ms: Callable[[PlanRequest, CostModel], float] = bound_of_choices_ms,
    ) -> None:
        self.costs = costs
        self.plan = remembered(search)
        """Returns the plan of a request. Raises PlannerError."""
        self.bound_ms: Callable[[PlanRequest], float] = remembered(
            lambda asked: bound_ms(asked, costs) if asked.algorithm is Algorithm.NEUROSHARD else 0.0
        )
        """Returns a cost that no plan of a request goes below; 0 for a baseline, whose types constraints may exclude.

        Raises RequestError: the request contradicts itself.
        """
        self.choices: list[PlanChoice] = []
        self._tried: list[Trial] = []

    def tried(
        self,
        text: str,
        request: PlanRequest,
        *,
        below_ms: float,
        gains_on: Plan | None = None,
        near: Plan | None = None,
        instead_of: Plan | None = None,
        finish: Callable[[Plan], Plan] | None = None,
        added_ms: float = 0.0,
    ) -> Trial:
        """Return the outcome of a request, and record it.

        Args:
            text: names the form.
            request: leaves nothing to choose.
            below_ms: what a plan must cost less than, moves included.
            gains_on: a plan on the same devices. A form whose bound is not below this plan's is not searched: the gap
                between a plan and its bound hardly depends on the form.
            near: a plan whose placement is taken where it is cheaper under the request.
            instead_of: the best plan so far, than whose step that of the form is not longer because of the host.
            finish: makes the plan of the form from that of the request.
            added_ms: what ``finish`` adds to a plan's cost at least.
        """
        bound_ms: float | None = None
        found: Plan | None = None
        is_infeasible = False
        try:
            bound_ms = self.bound_ms(request) + added_ms
            problem = _excluded(bound_ms, below_ms, gains_on)
            found = None if problem is not None else self.plan(request)
        except PlannerError as error:
            problem, is_infeasible = request.in_its_names(str(error)), isinstance(error, InfeasibleError)
        if found is not None:
            found = found if near is None else cheaper_placement(found, near, costs=self.costs)
            found = found if finish is None else finish(found)
            if priced_ms(found) >= below_ms:
                problem = f"its best plan takes {found.predicted.total_ms:.3f} ms"
            elif instead_of is not None:
                embedding_ms = found.predicted.total_ms
                problem = self.host_problem(found.request, found.tables, embedding_ms, instead_of=instead_of)
        total_ms = None if found is None else found.predicted.total_ms
        trial = Trial(
            tried=Alternative(text=text, total_ms=total_ms, bound_ms=bound_ms, refusal=problem),
            plan=found if problem is None else None,
            is_infeasible=is_infeasible,
        )
        self._tried.append(trial)
        return trial

    def host_problem(
        self, request: PlanRequest, tables: Sequence[TablePlacement], embedding_ms: float, *, instead_of: Plan
    ) -> str | None:
        """Return the sentence of `host_problem` for a form in place of a plan. None: there is none."""
        before = whole_step(
            instead_of.request, instead_of.tables, embedding_ms=instead_of.predicted.total_ms, costs=self.costs
        )
        return host_problem(before, request, tables, embedding_ms, costs=self.costs)

    def note(self, text: str, problem: str) -> None:
        """Record a form that was not searched, and why."""
        self._tried.append(Trial(tried=Alternative(text=text, refusal=problem)))

    def decided(self, name: ChoiceName, *, before: Plan | None, best: Plan, preferred: str = "") -> None:
        """Record a choice: ``best`` is the plan after it, which is that of a trial, or the one before.

        ``preferred`` says why a trial's plan is the best where another one costs less.
        """
        before_ms = None if before is None else before.predicted.total_ms
        alternatives = tuple(_alternative(each, before, best, preferred) for each in self._tried)
        if alternatives:
            self.choices.append(PlanChoice(name=name, before_ms=before_ms, alternatives=alternatives))
        self._tried.clear()


class Choice(ABC):
    """A respect in which a request permits more than one form of its plan.

    Args:
        asked: what is planned.
        trials: of the planning.
    """

    def __init__(self, asked: PlanRequest, trials: Trials) -> None:
        self._asked = asked
        self._trials = trials

    @abstractmethod
    def decided(self, best: Plan, /) -> Plan:
        """Return the best plan so far, or a better one of another form; its request is of that form."""

    def written(self, plan: Plan) -> Plan:
        """Return the final plan with what was decided."""
        return plan


def _excluded(bound_ms: float, below_ms: float, gains_on: Plan | None) -> str | None:
    """Return the reason that a bound excludes a form. None: it may cost so little; see `Trials.tried`."""
    if bound_ms >= below_ms:
        return f"no plan of it takes less than {bound_ms:.3f} ms"
    if gains_on is not None and 0 < gains_on.lower_bound_ms <= bound_ms:
        return f"its lower bound, {bound_ms:.3f} ms, is not below {gains_on.lower_bound_ms:.3f} ms without it"
    return None


def host_problem(
    before: WholeStep, request: PlanRequest, tables: Sequence[TablePlacement], embedding_ms: float, *, costs: CostModel
) -> str | None:
    """Return the sentence that the host needs longer for a form than a step takes without it. None: it may not.

    Collections, codecs, and lookup modules are work of the host, which the embedding part's price does not have.
    Nothing is known where the dense part is not counted, behind which the host may hide.
    """
    if request.dense is None:
        return None
    after = whole_step(request, tables, embedding_ms=embedding_ms, costs=costs)
    if not after.is_host_bound or after.total_ms <= before.total_ms:
        return None
    return f"the host needs {after.total_ms:.3f} ms for a step with it, which takes {before.total_ms:.3f} ms without"


def least_gain(plan: Plan, percent: float | None = None) -> float:
    """Return the share of a step that another form must save: the error of the cost models, or a floor below it.

    ``percent`` is what a request asks for in place of it.
    """
    if percent is not None:
        return percent / 100
    error = plan.bundle.measured_compute_mape
    return max(LEAST_SHARE, plan.bundle.compute_mape if error is None else error)


def cheaper_ms(plan: Plan, share: float | None = None) -> float:
    """Return the cost that another form must be below, moves included; ``share``: other than `least_gain`."""
    return priced_ms(plan) - plan.predicted.total_ms * (least_gain(plan) if share is None else share)


def exchange_refusal(request: PlanRequest) -> str | None:
    """Return the reason that no narrow types of an exchange are worth a price on these devices. None: some are."""
    topology = request.topology
    if topology.num_devices == 1:
        return "a single device exchanges nothing"
    if topology.device.is_cpu and topology.num_nodes == 1:
        return "processes of one machine exchange through its memory, which is faster than any codec on its cores"
    return None


def gain_text(saved_ms: float, of_ms: float, *, whole: str = "") -> str:
    """Return a gain in words, with its share of a step; ``whole`` follows the share."""
    share = abs(saved_ms) / of_ms if of_ms else 0.0
    return f"{'saves' if saved_ms >= 0 else 'costs'} {abs(saved_ms):.3f} ms ({100 * share:.1f} %{whole})"


def _alternative(trial: Trial, before: Plan | None, best: Plan, preferred: str) -> Alternative:
    if trial.plan is None or trial.plan.request == best.request:
        return trial.tried
    saved_ms = priced_ms(best) - priced_ms(trial.plan)
    refusal = "another form costs less"
    if saved_ms > 0:
        gain = gain_text(saved_ms, best.predicted.total_ms)
        refusal = f"it {gain}, and {100 * least_gain(best):.1f} % are asked for" if best is before else preferred
    return trial.tried.model_copy(update={"refusal": refusal})
