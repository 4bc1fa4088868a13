"""What bounds a plan, how far it is from the best possible, and what could help."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.communication import CommunicationPlan
from neuroshard_api.documents.gradient_exchange import GradientDecision
from neuroshard_api.documents.levers import Lever
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_choices import PlanChoice
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.servers import exchange_work_ms, hidden_ahead_ms
from neuroshard_planner.bound.family_bounds import FamilyBounds
from neuroshard_planner.errors import PlannerError
from neuroshard_planner.levers import with_levers
from neuroshard_planner.planning import Bundle
from neuroshard_planner.plans.tables import is_searched
from neuroshard_planner.problem.plan_cost import device_traffic
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS

from neuroshard_report.batch import batch_texts
from neuroshard_report.explain.alone import of_group, without_servers
from neuroshard_report.explain.collections import PlacedCollection, placed_collections
from neuroshard_report.explain.dense import ExplainedUnit, explained_units
from neuroshard_report.explain.memory import OverfullDevice, overfull_devices
from neuroshard_report.explain.step import step_text
from neuroshard_report.explain.stored_types import stored_types_text
from neuroshard_report.explain.table import rebuilt
from neuroshard_report.explain.terms import Term, step_terms
from neuroshard_report.explain.trust import basis_of, trust_of
from neuroshard_report.levers import waits_for_host

NUM_DOMINANT = 5  # tables named as dominating a device
SMALL_GAP = 0.02  # below it the search is as good as done
WORTH_SAYING = 0.01  # of the step; smaller savings are not mentioned
NEARLY_FULL = 0.95  # of a device's memory


@dataclass(frozen=True, kw_only=True, slots=True)
class GapPart:
    """A part of what the plan costs above its lower bound."""

    reason: str
    ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DominantTable:
    """A table with much of the busiest device's compute."""

    name: str
    collection: str | None
    """Path of its collection. None: the table names none."""
    adds_ms: float
    """Compute of the device with it minus without it."""
    share: float
    """Of the device's compute."""
    num_shards: int
    """Of the table, over all devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanMoves:
    """What the plan moves of the plan in force, under which it was made."""

    incumbent_ms: float
    """What that plan costs under this plan's request."""
    tables: tuple[tuple[str, int], ...]
    """Tables of which devices get rows or columns that they did not have, and the bytes, largest first."""
    num_bytes: int
    """Of all tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanExplanation:
    """A plan as a whole."""

    total_ms: float
    num_samples: int
    """Of a step, of all devices."""
    source: str
    step: str | None
    """A sentence: the whole step, and what decides it. None: the plan is of an earlier release."""
    terms: tuple[Term, ...]
    """Largest first."""
    busiest_device: int
    """Most forward plus backward compute."""
    dominant_tables: tuple[DominantTable, ...]
    """On the busiest device, largest first."""
    collections: tuple[PlacedCollection, ...]
    """Embedding collections of the model. Empty: the tables name none."""
    fullest_device: int
    memory_share: float
    """Of the fullest device's capacity, reserve included."""
    overfull: tuple[OverfullDevice, ...]
    """Devices that the plan does not fit on; it cannot be trained then."""
    lower_bound_ms: float
    gap: float
    gap_parts: tuple[GapPart, ...]
    """Sum to the cost above the lower bound."""
    helps: tuple[str, ...]
    """Sentences: what could lower the step, with numbers, or that nothing of this kind would. Empty with groups; with
    embedding servers of these alone."""
    levers: tuple[Lever, ...]
    """Permissions that would lower the step."""
    is_waiting: bool
    """Whether devices wait for the host, so that a faster embedding part leaves the step as it is."""
    dense_units: tuple[ExplainedUnit, ...]
    """Of the dense part. Empty: it has no layout."""
    trust: str
    """A sentence: the model's error next to the gain over the best baseline."""
    moves: PlanMoves | None
    """If unset: the plan was made without one in force."""
    batch: tuple[str, str] | None
    """The batch that was chosen, and those that were tried, in words. None: there was no choice."""
    stored_types: str | None
    """A sentence: the types that were chosen for the tables. None: there was no choice."""
    communication: CommunicationPlan | None
    """Price or refusal of each permitted pair of types on the wire. None: there was no choice."""
    gradients: GradientDecision | None
    """The same of each permitted type of the dense part's gradients. None: there was no choice."""
    choices: tuple[PlanChoice, ...]
    """What was tried where the request permitted more than one form. Empty: it permitted none."""


def explain_plan(plan: Plan, *, bundle: Bundle) -> PlanExplanation:
    """Explain a plan as a whole.

    Raises:
        PlanError: the plan has problems, or was made with another bundle.
    """
    whole, plan = plan, of_group(without_servers(plan))
    problem, placement = rebuilt(plan, bundle)
    devices = plan.predicted.devices
    compute = [device.forward_compute_ms + device.backward_compute_ms for device in devices]
    busiest = int(np.argmax(compute))
    memory = [device.used_bytes / device.capacity_bytes for device in plan.memory]
    fullest = int(np.argmax(memory))
    terms = step_terms(whole, problem, placement)
    return PlanExplanation(
        total_ms=whole.predicted.total_ms,
        num_samples=whole.request.global_batch_size,
        source=plan.predicted.source,
        step=step_text(whole),
        terms=terms,
        busiest_device=busiest,
        dominant_tables=_dominant_tables(problem, placement, busiest),
        collections=tuple(placed_collections(plan)),
        fullest_device=fullest,
        memory_share=memory[fullest],
        overfull=overfull_devices(plan),
        lower_bound_ms=whole.lower_bound_ms,
        gap=whole.gap,
        gap_parts=(*_gap_parts(plan, problem, placement), *_gap_of_groups(whole, plan), *_gap_of_servers(whole, plan)),
        # Bounds and savings of one group are not those of all of them with their averages.
        helps=()
        if whole.replication is not None
        else tuple(_server_helps(whole, bundle))
        if whole.servers is not None
        else tuple(_helps(plan, problem, bundle, memory_share=memory[fullest])),
        levers=whole.levers or with_levers(whole, costs=bundle).levers or (),
        is_waiting=waits_for_host(whole),
        dense_units=explained_units(whole, costs=bundle),
        trust=_trust(whole, terms),
        moves=_moves(plan),
        batch=batch_texts(whole),
        stored_types=stored_types_text(whole),
        communication=whole.communication,
        gradients=whole.gradients,
        choices=whole.choices or (),
    )


def _moves(plan: Plan) -> PlanMoves | None:
    before = plan.incumbent
    if before is None:
        return None
    tables = sorted(((each.name, each.num_bytes) for each in before.moved), key=lambda each: -each[1])
    return PlanMoves(incumbent_ms=before.total_ms, tables=tuple(tables), num_bytes=before.moved_bytes)


def _dominant_tables(problem: Problem, placement: Placement, device: int) -> tuple[DominantTable, ...]:
    representation = problem.kinds.representation
    here = placement.kinds[placement.devices == device]
    if not len(here):
        return ()
    total = representation[here].sum(axis=0)
    without = np.maximum(total - representation[here], 0.0)
    if len(here) == 1:
        without[:] = 0.0
    whole_ms = float(problem.compute_ms(total[None])[0].sum())
    adds = whole_ms - problem.compute_ms(without).sum(axis=1)
    num_shards = np.bincount(problem.kinds.unit[placement.kinds], minlength=len(problem.units))
    tables = problem.request.tables.tables
    dominant = []
    for row in np.argsort(-adds, kind="stable")[:NUM_DOMINANT].tolist():
        unit = int(problem.kinds.unit[here[row]])
        dominant.append(
            DominantTable(
                name=tables[problem.units[unit].tables[0]].name,
                collection=tables[problem.units[unit].tables[0]].collection,
                adds_ms=float(adds[row]),
                share=float(adds[row]) / whole_ms,
                num_shards=int(num_shards[unit]),
            )
        )
    return tuple(dominant)


def _gap_parts(plan: Plan, problem: Problem, placement: Placement) -> tuple[GapPart, ...]:
    """Split the cost above the lower bound by what an even spread of the same shards would cost."""
    sums = problem.device_sums(placement.kinds, placement.devices)
    times = problem.pass_levels(np.vstack([sums, sums.mean(axis=0)]))
    uneven_compute = float((times[:-1].max(axis=0) - times[-1]).sum())
    step_cost = problem.step_cost
    is_by_columns = all(table.sharding_type.is_by_columns for table in plan.tables)
    traffic = device_traffic(problem, placement)
    peaks = np.concatenate((times[:-1].max(axis=0), traffic.max(axis=0)))
    least_traffic = step_cost.least_traffic if is_by_columns else traffic.mean(axis=0)
    even = np.concatenate((times[:-1].max(axis=0), least_traffic))
    uneven_traffic = float(step_cost.total_ms(peaks) - step_cost.total_ms(even))
    # A bound by one large shard can lie above the even spread; then less of the unevenness is to blame.
    left = max(plan.predicted.total_ms - plan.lower_bound_ms, 0.0)
    parts = []
    for reason, ms in (
        ("some devices compute longer than an even share of the same shards", uneven_compute),
        ("some devices send or receive more than an even share", uneven_traffic),
    ):
        part = min(max(ms, 0.0), left)
        left -= part
        parts.append(GapPart(reason=reason, ms=part))
    rest = (
        "narrower shards cost more per column than the bound assumes"
        if is_by_columns
        else "the bound with rows or copies takes the least of each table's placements, no plan has all of them"
    )
    if any(table.compute_kernel.is_on_host for table in plan.tables):
        rest = "the bound counts no time for host memory"
    parts.append(GapPart(reason=rest, ms=left))
    return tuple(parts)


def _gap_of_groups(whole: Plan, own: Plan) -> Iterator[GapPart]:
    """Yield the part of a plan's cost above the lower bound that its groups add, where it has groups."""
    if whole.replication is not None:
        ms = (whole.predicted.total_ms - whole.lower_bound_ms) - (own.predicted.total_ms - own.lower_bound_ms)
        yield GapPart(reason="averages cost more than even ones, and the bound is that of all groups", ms=max(ms, 0.0))


def _gap_of_servers(whole: Plan, own: Plan) -> Iterator[GapPart]:
    """Yield the part of a plan's cost above the lower bound that its servers add, where it has servers."""
    if whole.servers is not None:
        ms = max(0.0, whole.predicted.total_ms - own.predicted.total_ms)
        yield GapPart(reason="devices wait for embedding servers, which the bound does not count", ms=ms)


def _server_helps(plan: Plan, bundle: Bundle) -> Iterator[str]:
    added_ms = plan.predicted.devices[0].server_exposed_ms
    if added_ms:
        yield f"more servers, cores, or a faster link would shorten the {added_ms:.3f} ms that devices wait for servers"
        if plan.request.looks_ahead or plan.step is None or plan.servers is None or plan.servers.predicted is None:
            return
        servers, alone_ms = plan.servers.predicted, plan.step.total_ms - added_ms
        work_ms = exchange_work_ms(servers, plan.request.topology, bundle)
        left_ms = servers.total_ms - hidden_ahead_ms(servers.total_ms, alone_ms, work_ms=work_ms)
        if added_ms - left_ms > WORTH_SAYING * plan.step.total_ms:
            yield f"lookahead would leave {left_ms:.3f} ms of them, with rows on servers that are one step old"


def _helps(plan: Plan, problem: Problem, bundle: Bundle, *, memory_share: float) -> Iterator[str]:
    request, total_ms = plan.resolved, plan.predicted.total_ms
    is_plan_searched = is_searched(plan.tables, problem)
    by_columns_alone = all(types <= {*BY_COLUMNS} for types in problem.sharding_types)
    kind = "by columns" if is_plan_searched and by_columns_alone else "of the types that are searched"
    if plan.gap < SMALL_GAP:
        yield f"no other placement {kind} can lower the step by more than {100 * (1 - 1 / (1 + plan.gap)):.1f} %"
    elif plan.search.budget_exhausted:
        gap = f"{100 * plan.gap:.1f} % above the lower bound"
        yield request.in_its_names(f"the work budget ended the search {gap}; a larger search.work_budget may help")
    if is_plan_searched:  # otherwise the bound of the larger request is of other plans than its plan would be
        yield from _more_devices(request, bundle, total_ms, kind=kind)
    alone_ms = problem.compute_ms(problem.kinds.representation[problem.whole]).sum(axis=1)
    held = [
        request.tables.tables[unit.tables[0]].name
        for unit, ms in zip(problem.units, alone_ms.tolist(), strict=True)
        if unit.max_shards == 1 and ms > total_ms / 2
    ]
    if held:
        yield f"{', '.join(map(repr, held[:3]))} may not be split, and alone takes more than half of the step"
    if NEARLY_FULL < memory_share <= 1:
        yield f"the fullest device uses {100 * memory_share:.1f} % of its memory: more memory would leave more freedom"


def _more_devices(request: PlanRequest, bundle: Bundle, total_ms: float, *, kind: str) -> Iterator[str]:
    """Yield the best possible effect of twice the nodes on the same global batch, where exchanges of them are known."""
    topology = request.topology.with_nodes(2 * request.topology.num_nodes)
    batch_size = request.batch_size_per_device // 2
    if not batch_size:
        return
    larger = request.model_copy(update={"topology": topology, "batch_size_per_device": batch_size})
    if _extrapolated_devices(larger, bundle) - _extrapolated_devices(request, bundle):
        return
    try:
        bound_ms = FamilyBounds(Problem(larger, bundle)).least_ms
    except PlannerError:
        return
    if bound_ms < (1 - WORTH_SAYING) * total_ms:
        yield (
            f"twice the nodes ({topology.num_devices} devices) with the same global batch: no plan {kind} below "
            f"{bound_ms:.3f} ms, now {total_ms:.3f} ms"
        )
    else:
        yield (
            f"twice the nodes ({topology.num_devices} devices) with the same global batch would not lower the step: "
            f"no plan {kind} below {bound_ms:.3f} ms, now {total_ms:.3f} ms"
        )


def _extrapolated_devices(request: PlanRequest, bundle: Bundle) -> set[str]:
    """Return the fields of a request's topology that the cost models were not trained for."""
    fields = (warning.partition(":")[0] for warning in bundle.validity_warnings(request))
    return {field for field in fields if field.startswith("topology.")}


def _trust(plan: Plan, terms: Sequence[Term]) -> str:
    share = sum(term.share for term in terms if term.name.endswith("compute"))
    compute, communication = trust_of(plan.bundle)
    error = share * compute.error + (1 - share) * communication.error
    known = f"the cost models' error is {100 * error:.1f} % of a step like this, {basis_of(plan.bundle)}"
    costs = {each.algorithm.value: each.total_ms for each in plan.baselines if each.total_ms is not None}
    if not costs:
        return f"{known}; no baseline found a plan to compare with"
    best = min(costs, key=lambda name: costs[name])
    gain = 1 - plan.predicted.total_ms / costs[best] if costs[best] else 0.0
    if gain <= 0:
        return f"{known}; the best baseline, {best}, is predicted to cost no more than this plan"
    judged = "more than that error" if gain > error else "within that error, so that the order may be the other way"
    return f"{known}; the plan is predicted {100 * gain:.1f} % below the best baseline, {best}: {judged}"
