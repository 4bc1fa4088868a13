"""From a request to its plan: a plan that fits, then one choice after the other, each made once.

    the first plan that fits: dense layout (means by rows, types of tables)
    ->  repeats  ->  types on the wire  ->  types of tables  ->  groups of devices  ->  types of gradients

Each choice starts from the best plan so far and tries requests that differ from that plan's in one respect. So searches
add up over the choices and do not multiply; what a bound excludes is not searched (`trials`). Batch sizes are compared
by their first plans, and the choices follow at one size. Another form is taken where it saves more of a step than the
cost models can distinguish, or 2 %. Dense layouts, and narrow types of tables before that, are taken where nothing fits
otherwise.
"""

from collections.abc import Callable, Sequence
from functools import partial

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_dense.replicated import with_replicated_cost
from neuroshard_dense.whole_step import with_whole_step

from neuroshard_planner import planning
from neuroshard_planner.choices.batch_size import plan_of_best_batch
from neuroshard_planner.choices.dense_layout import DenseLayoutChoice
from neuroshard_planner.choices.device_groups import DeviceGroups
from neuroshard_planner.choices.gradient_types import GradientTypes
from neuroshard_planner.choices.means_by_rows import cheaper_with_means
from neuroshard_planner.choices.repeats import RepeatsChoice
from neuroshard_planner.choices.stored_types import MOST_SEARCHES, StoredTypeChoice
from neuroshard_planner.choices.trials import Choice, Trials
from neuroshard_planner.choices.ways_by_rows import means_by_rows
from neuroshard_planner.choices.wire_types import WireTypeChoice
from neuroshard_planner.errors import RequestError, in_its_names
from neuroshard_planner.planning import Bundle
from neuroshard_planner.plans.migration import Incumbent
from neuroshard_planner.plans.same_placement import bounded
from neuroshard_planner.problem.sharding_choice import default_types
from neuroshard_planner.search_state import Watch
from neuroshard_planner.searches import remembered
from neuroshard_planner.servers import plan_with_servers


def plan(
    request: PlanRequest, *, bundle: Bundle, incumbent: Incumbent | None = None, watch: Watch | None = None
) -> Plan:
    """Return the plan that the request asks for; equal arguments give equal plans.

    The plan keeps the request, but for a choice of the batch, of which its request has the result. Where it permits
    other forms of a plan, ``choices`` says what was tried, and parts of the plan what was chosen: repeats left out,
    types on the wire, of tables and of gradients, groups of devices, the dense part's layout. The plans of trials have
    that in their requests, and no parts.

    Args:
        request: what is planned.
        bundle: prices placements.
        incumbent: the plan in force: the search starts from it too and stays near it, unless a baseline is asked for.
        watch: is shown how far each search is, one search after the other. If unset: nobody is.

    Raises:
        RequestError: the request contradicts itself, asks for a search that is not made, or has other tables than the
            incumbent; or it permits groups, and there is an incumbent.
        InfeasibleError: nothing fits; the message names what binds and the smallest change that fits.
        MissingPackageError: TorchRec's planner was asked for and is not installed.
    """
    with in_its_names(request):
        search = remembered(partial(planning.searched, watch=watch))
        if request.batch_choices is None:
            return _plan(request, bundle, incumbent, search)
        if incumbent is not None:
            raise RequestError(
                "incumbent: a plan near the one in force keeps its batch, and batch_size_per_device is Auto"
                "; hint: give the number of the plan in force"
            )
        of_size = partial(_plan, bundle=bundle, incumbent=None, search=search)
        return plan_of_best_batch(request, request.batch_choices, first=partial(of_size, is_first=True), search=of_size)


_Search = Callable[[PlanRequest, Bundle, Incumbent | None], Plan]


def _plan(
    request: PlanRequest, bundle: Bundle, incumbent: Incumbent | None, search: _Search, *, is_first: bool = False
) -> Plan:
    """Return the plan of a request with a number of samples; ``is_first``: the first that fits."""
    with_choices = partial(_with_choices, bundle=bundle, search=search, is_first=is_first)
    if request.servers is None:
        return with_choices(request, incumbent)
    return plan_with_servers(request, search=with_choices, costs=bundle, incumbent=incumbent)


def _with_choices(
    request: PlanRequest, incumbent: Incumbent | None, *, bundle: Bundle, search: _Search, is_first: bool
) -> Plan:
    if request.replication is not None and incumbent is not None:
        raise RequestError(
            "incumbent: plans near the one in force are made without groups of devices; hint: leave it or replication "
            "out"
        )
    trials = Trials(bundle, lambda asked: search(asked, bundle, incumbent))
    types = StoredTypeChoice(request, trials, incumbent)
    groups = DeviceGroups(request, trials, types=types)
    repeats = RepeatsChoice(request, trials)
    layout = DenseLayoutChoice(request, trials)
    gradients = GradientTypes(request, trials, search=lambda asked: layout.first(asked, search=trials.plan))
    wire = WireTypeChoice(request, trials, repeats=repeats)
    choices: Sequence[Choice] = (repeats, wire, types, groups, layout, gradients)

    def with_means(asked: PlanRequest) -> Plan:
        is_baseline = asked.algorithm is not Algorithm.NEUROSHARD
        return trials.plan(asked) if is_baseline else cheaper_with_means(asked, costs=bundle, search=trials.plan)

    best = layout.first(_plain(request, groups, bundle), search=lambda asked: types.first(asked, search=with_means))
    first_choices = best.choices or ()
    for choice in (layout,) if is_first else choices:
        best = choice.decided(best)
    for choice in choices:
        best = choice.written(best)
    best = with_replicated_cost(_as_asked(best, request, trials), request, costs=bundle)
    best = best.model_copy(update={"choices": (*first_choices, *trials.choices) or None})
    return with_whole_step(best, costs=bundle)


def _plain(request: PlanRequest, groups: DeviceGroups, bundle: Bundle) -> PlanRequest:
    """Return the request with no choice left; a named budget is shared by the searches that choices may take."""
    left = {"deduplicate": None, "grouped": None, "replication": None}
    left |= {} if request.communication is None else {"communication": None, "wire": None}
    left |= {} if request.gradient_choices is None else {"gradient_choices": None, "gradients": None}
    plain = request.model_copy(update=left)
    if request.search.work_budget is None:
        return plain
    num_ways = 0 if request.replication is None else groups.num_searched(planning.baseline_ms(plain, bundle))
    shares = num_ways + (MOST_SEARCHES if request.constraints.has_data_types else 1)
    shared = max(1, request.search.work_budget // shares)
    return plain.model_copy(update={"search": request.search.model_copy(update={"work_budget": shared})})


def _as_asked(plan: Plan, request: PlanRequest, trials: Trials) -> Plan:
    """Return the plan with the request as it was asked, and the bound of all that this permits of the plan's form."""
    found = plan.model_copy(update={"request": request})
    free = plan.request.model_copy(update={"constraints": request.constraints})
    is_baseline = request.algorithm is not Algorithm.NEUROSHARD
    if (
        plan.replication is not None
        or is_baseline
        or not means_by_rows(free, default_types(free, trials.costs.manifest))
    ):
        return found
    return bounded(found, trials.bound_ms(free))
