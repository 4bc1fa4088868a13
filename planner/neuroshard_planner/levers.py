"""What would help: what a plan would gain by each permission or setting that its request lacks.

Each lever is priced by one evaluation, of which a search, or two for repeats, is the longest:

lever                                    promise
types on the wire and of tables, batch   price of the plan's own placement: all tables change alike, and stay
types of few tables, some on the host    a search: with narrow types some tables return to the devices
batch that saves, of few tables          the plan's own placement after a descent: long steps are cut otherwise; or a
                                         search where plans are scattered, or other sharding types promise less
repeats, of few tables                   a search in the form that even devices prefer, and in one little worse there;
                                         in both where plans are scattered
types on the wire of few tables that     the less of the first and of a search
are scattered
groups, nodes, of few tables             a search: there are other devices
groups, nodes, repeats, of many tables   the plan's cost, times that of its cuts on even devices there over that here;
                                         so types on the wire of many, some by rows or copied

The first ones are costs of real placements, so that a search finds no worse. The last ones promise what a search would
find where the best plan is as far above its bound, or above even devices, as this plan is: cuts that cost and uneven
devices are mostly due to the tables, and stay.

Searches are short and by columns. Other sharding types may be better on other nodes, and copies of tables with longer
steps: where assignments of them promise less, the search is whole. Plans are scattered whose gap is wide, or which have
tables by rows or copied: short searches for their tables end anywhere, and all are whole. There is no search where the
bound of other nodes excludes them.

Other batch sizes and numbers of nodes are judged by the time per sample. Levers that do not save more than the cost
models can distinguish, and than the promises are wrong by, are not named.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.levers import Lever, LeverName
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.request import MAX_GLOBAL_BATCH_SIZE, Algorithm, PlanRequest
from neuroshard_api.documents.resolved_request import request_of_group
from neuroshard_api.documents.stored_types import with_types
from neuroshard_api.documents.tables import DataType
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kernels import TRAINING_KERNELS
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import ReplicationChoices
from neuroshard_costs.averages import least_average_ms

from neuroshard_planner.bound.family_bounds import EVERYWHERE, FamilyBounds
from neuroshard_planner.choices.device_groups import permitted_groupings
from neuroshard_planner.choices.trials import exchange_refusal, host_problem, least_gain
from neuroshard_planner.errors import PlannerError, RequestError
from neuroshard_planner.memory.infeasible import has_room
from neuroshard_planner.planning import Bundle, refined_ms, searched_ms
from neuroshard_planner.plans.tables import is_searched, placement_of
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.problem.units import resolve_units
from neuroshard_planner.search.all_families import assignments_of
from neuroshard_planner.search.estimator import promised_ms

PROMISE_ERROR = 0.05
"""Of a step: below it a promise may have the wrong sign (`benchmarks/promises.py`)."""
NARROW = (LeverName.WIRE_TYPES, LeverName.STORED_TYPES)
"""Levers that a plan takes only where the host does not need longer for them, as it does repeats."""
OPPOSITE = (LeverName.BATCH_SIZE, LeverName.NODES)
"""Levers of more and of less. Less is priced where more saves nothing: hardly ever do both save."""
SHORT = SearchTuning(num_best=2, num_candidates=5, most_rounds=1)
"""Of a short search: fewer descents, and no rounds of random changes on top of the least work."""
MOST_SEARCHED_UNITS = 64
"""Of a search; with more a short one ends up to a quarter above a whole one."""
PROMISING = SearchTuning(powers=(8,))
"""Of assignments that promise what plans by columns and others cost, in a twentieth of a search."""
NEAR_LIMIT = 1.03
"""Times the most that a plan with other sharding types may cost: what they promise is as far off."""
WIDE_GAP = 0.15
"""Of a plan to its bound: above it, other cuts or sharding types are often better with a lever."""
MOST_NAMED = 3
"""Groups of features."""


class LeverRequest(NamedTuple):
    """A lever and the request with it."""

    name: LeverName
    text: str
    request: PlanRequest
    option: str
    field: str
    num_samples: int | None = None
    """Samples of a step of all devices. None: as many as the plan's."""
    added_ms: float = 0.0
    """What the cost of the request's plan lacks: averages of copies."""


def with_levers(plan: Plan, *, costs: Bundle) -> Plan:
    """Return the plan with the levers that would help, those that save most first.

    None are named for plans of baselines or that do not fit, and for groups of devices, whose bound is that of all
    groups.

    Args:
        plan: of any request.
        costs: those that the plan was made with.
    """
    is_other = plan.algorithm is not Algorithm.NEUROSHARD or plan.replication is not None
    if is_other or not plan.lower_bound_ms or any(each.used_bytes > each.capacity_bytes for each in plan.memory):
        return plan
    best: dict[LeverName, Lever] = {}
    for lever in sorted(_worthwhile(plan, costs), key=lambda each: -each.saved_share):
        best.setdefault(lever.name, lever)
    return plan.model_copy(update={"levers": tuple(best.values())}) if best else plan


def questions(plan: Plan, *, costs: Bundle) -> Iterator[LeverRequest]:
    """Yield the levers that the plan's request lacks, each with the request that has nothing left to choose.

    Of one kind there may be several, such as groups of other sizes. None are of a kind that the request refuses.
    """
    if plan.servers is not None:  # few settings go with servers
        return
    of_kinds = {
        LeverName.WIRE_TYPES: _wire_types(plan),
        LeverName.STORED_TYPES: _stored_types(plan),
        LeverName.REPEATS: _repeats(plan),
        LeverName.DEVICE_GROUPS: _groups(plan, costs),
        LeverName.BATCH_SIZE: _batch_sizes(plan),
        LeverName.NODES: _nodes(plan),
    }
    refused = plan.request.refused_levers or ()
    yield from chain.from_iterable(levers for name, levers in of_kinds.items() if name not in refused)


class Promises:
    """What a plan would cost with levers, each priced by one evaluation, at most a search or two."""

    def __init__(self, plan: Plan, *, costs: Bundle) -> None:
        """``costs`` are those that the plan was made with."""
        self._plan, self._costs = plan, costs

    def total_ms(self, lever: LeverRequest) -> float | None:
        """Return the predicted cost of a plan with a lever, which a search should find.

        None: nothing fits, or no plan on those devices saves enough to be named.

        Raises:
            RequestError: the request contradicts itself.
        """
        plan, request = self._plan, lever.request
        if request.topology == plan.resolved.topology:
            return self._here_ms(lever)
        if not has_room(request):
            return None
        if _has_few(request):
            found_ms = self._searched_ms(request, limit_ms=_least_named_ms(plan, lever))
        else:
            found_ms = self._at_even_ms(Problem(request, self._costs))
        return None if found_ms is None else found_ms + lever.added_ms

    def _here_ms(self, lever: LeverRequest) -> float | None:
        """Return the cost of a plan on the same devices. None: the plan's placement does not fit."""
        plan, request = self._plan, lever.request
        problem = Problem(request, self._costs)
        placement = placement_of(plan.tables, problem)
        if not problem.fits(placement):
            return None
        stays_ms = float(problem.total_ms([placement])[0])
        may_change = _has_few(request) and problem.host_tables is None and is_searched(plan.tables, problem)
        if lever.name is LeverName.BATCH_SIZE and may_change and saved_share(plan, lever, stays_ms) > 0:
            is_whole = self._is_scattered or self._may_be_of_other_types(request, stays_ms)
            found_ms = searched_ms(request, self._costs) if is_whole else None
            return found_ms or min(stays_ms, refined_ms(problem, placement))
        if lever.name is LeverName.REPEATS:
            if not may_change:
                return min(stays_ms, self._at_even_ms(problem))
            found_ms = self._without_repeats_ms(problem)
            return found_ms if self._is_scattered else min(stays_ms, found_ms)
        found_ms = stays_ms
        if lever.name is LeverName.STORED_TYPES:
            if _has_few(request) and problem.kinds.host_bytes[placement.kinds].any():  # narrow tables return from it
                found_ms = self._searched_ms(request) or stays_ms
        elif lever.name is LeverName.WIRE_TYPES:
            # Rows and copies may avoid the all-to-alls that narrow types shorten.
            if _has_few(request) and self._is_scattered:
                found_ms = self._searched_ms(request) or stays_ms
            elif not self._is_by_columns:
                found_ms = self._at_even_ms(problem)
        return min(stays_ms, found_ms)

    def _without_repeats_ms(self, problem: Problem) -> float:
        """Return the cost of a plan without repeats, in the forms that even devices tell, or in both."""
        total_ms, request, forms = self._plan.predicted.total_ms, problem.request, [problem]
        if problem.num_devices > 1:
            with suppress(RequestError):
                forms.insert(0, Problem(request.model_copy(update={"grouped": request.deduplicate}), self._costs))
        allowed = [each for each in forms if not _host_refuses(self._plan, each.request, self._costs)]
        even_ms = [max(self._at_even_ms(each), FamilyBounds(each, is_loose=True).least_ms) for each in allowed]
        least_ms = min(even_ms, default=total_ms)
        near_ms = min(least_ms * (1 + 2 * PROMISE_ERROR), total_ms)
        if self._is_scattered and least_ms < total_ms:  # which form is better their cuts on even devices do not tell
            near_ms = math.inf
        near = [each.request for each, ms in zip(allowed, even_ms, strict=True) if ms < near_ms]
        found = [self._searched_ms(each) for each in near]
        return min((each for each in found if each is not None), default=total_ms)

    def _at_even_ms(self, problem: Problem) -> float:
        """Return the plan's cost, changed as that of its cuts on even devices changes."""
        return self._plan.predicted.total_ms * _even_ms(self._plan, problem) / self._even_here_ms

    def _searched_ms(self, request: PlanRequest, *, limit_ms: float | None = None) -> float | None:
        """Return the cost that a whole search should find. None: nothing fits, or below the limit.

        ``limit_ms``: of other devices, on which other sharding types may be better. None: the devices are the plan's.
        """
        named = request.search
        work = SHORT.least_budget(request.topology.num_devices)
        is_whole = self._is_scattered or (named.work_budget or math.inf) <= work
        if is_whole or (limit_ms is not None and self._may_be_of_other_types(request, limit_ms)):
            return searched_ms(request, self._costs, limit_ms=limit_ms)
        request = _by_columns(request.model_copy(update={"search": named.model_copy(update={"work_budget": work})}))
        return searched_ms(request, self._costs, limit_ms=limit_ms, tuning=SHORT)

    def _may_be_of_other_types(self, request: PlanRequest, limit_ms: float) -> bool:
        """Compare assignments: True where other sharding types promise less than columns do, and about the limit."""
        problem = Problem(request, self._costs, tuning=PROMISING)
        if not problem.has_further_types:
            return False
        by_columns_ms, others_ms = assignments_of(problem).least_ms(FamilyBounds(problem).sets)
        return others_ms < min(by_columns_ms, NEAR_LIMIT * limit_ms)

    @property
    def _is_scattered(self) -> bool:
        """Whether short searches for the plan's tables end anywhere above whole ones."""
        return self._plan.gap > WIDE_GAP or not self._is_by_columns

    @cached_property
    def _is_by_columns(self) -> bool:
        return all(table.sharding_type.is_by_columns for table in self._plan.tables)

    @cached_property
    def _even_here_ms(self) -> float:
        return _even_ms(self._plan, Problem(self._plan.resolved, self._costs))


def _host_refuses(plan: Plan, request: PlanRequest, costs: Bundle) -> bool:
    """Return whether the host needs longer for a form of the plan than its step takes."""
    before, total_ms = plan.step, plan.predicted.total_ms
    return before is not None and host_problem(before, request, plan.tables, total_ms, costs=costs) is not None


def _even_ms(plan: Plan, problem: Problem) -> float:
    """Return the cost of a plan's cuts on the devices of a problem, as if these were even."""
    placement, family = placement_of(plan.tables, problem), problem.kinds.family
    is_everywhere = np.isin(family[placement.kinds], EVERYWHERE)
    copies = np.repeat(np.flatnonzero(np.bincount(placement.kinds[is_everywhere])), problem.num_devices)
    kinds = np.concatenate((placement.kinds[~is_everywhere], copies))
    return float(promised_ms(problem, [Placement(kinds=kinds, devices=np.zeros_like(kinds))])[0])


def saved_share(plan: Plan, lever: LeverRequest, found_ms: float) -> float:
    """Return the share that a lever saves: of the plan's step, or of its time per sample where it has more or less."""
    num_samples = plan.request.global_batch_size
    return 1 - found_ms / plan.predicted.total_ms * num_samples / (lever.num_samples or num_samples)


def _least_named_ms(plan: Plan, lever: LeverRequest) -> float:
    """Return the cost of the lever's request at which it saves so much that it is named."""
    num_samples, least = plan.request.global_batch_size, max(least_gain(plan), PROMISE_ERROR)
    return (1 - least) * plan.predicted.total_ms * (lever.num_samples or num_samples) / num_samples - lever.added_ms


def _worthwhile(plan: Plan, costs: Bundle) -> Iterator[Lever]:
    saving, promises = set[LeverName](), Promises(plan, costs=costs)
    for each in questions(plan, costs=costs):
        if each.name in OPPOSITE and each.name in saving:
            continue
        try:
            found_ms = promises.total_ms(each)
        except PlannerError:
            continue
        if found_ms is None or (each.name in NARROW and _host_refuses(plan, each.request, costs)):
            continue
        saved = saved_share(plan, each, found_ms)
        if saved > 0:
            saving.add(each.name)
        if found_ms - each.added_ms < _least_named_ms(plan, each):
            yield Lever(
                name=each.name,
                text=each.text,
                total_ms=found_ms,
                num_samples=None if each.num_samples == plan.request.global_batch_size else each.num_samples,
                saved_share=saved,
                option=each.option,
                field=each.field,
            )


def _settings(*fields: tuple[str, str]) -> tuple[str, str]:
    """Return fields of a job as the options that set them, and as the words of a sentence."""
    options = " ".join(f"--set '{path}={value}'" for path, value in fields)
    return options, ", with ".join(f"{path}: {value}" for path, value in fields)


def _wire_types(plan: Plan) -> Iterator[LeverRequest]:
    asked = plan.request
    if asked.wire is not None or asked.communication is not None or asked.memory.output_data_type is not DataType.FP32:
        return
    # Not FP16 where there is BF16: without a scale, gradients of a mean loss become 0.
    for kind in (WireType.BF16, WireType.FP16):
        types = WireTypes(forward=kind, backward=kind)
        if exchange_refusal(asked) is None and asked.wire_problem(types) is None:
            yield LeverRequest(
                LeverName.WIRE_TYPES,
                f"pooled embeddings and their gradients travel in {kind}",
                plan.resolved.model_copy(update={"wire": types}),
                *_settings(
                    ("spec.training.communication.policy", "Auto"),
                    ("spec.experimental.communication.embeddings", f"{{forward: [{kind}], backward: [{kind}]}}"),
                ),
            )
            return


def _stored_types(plan: Plan) -> Iterator[LeverRequest]:
    kernels = TRAINING_KERNELS[plan.request.topology.device.kind]
    narrow = {
        table.name: DataType.FP16
        for table, placed in zip(plan.request.tables.tables, plan.tables, strict=True)
        if table.data_type is DataType.FP32
        and placed.sharding_type is not ShardingType.DATA_PARALLEL
        and DataType.FP16 in kernels.types_with(plan.request.optimizer_of(table))
    }
    if narrow and not plan.request.constraints.has_data_types:
        yield LeverRequest(
            LeverName.STORED_TYPES,
            f"{len(narrow)} tables are stored in FP16, which changes results",
            plan.resolved.model_copy(update={"tables": with_types(plan.request.tables, narrow)}),
            *_settings(("spec.planner.dataTypes", "[FP32, FP16]")),
        )


def _repeats(plan: Plan) -> Iterator[LeverRequest]:
    groups = plan.request.tables.duplication_groups
    if groups and plan.request.deduplicate is None:
        named = ", ".join(groups) if len(groups) <= MOST_NAMED else f"{len(groups)} groups"
        yield LeverRequest(
            LeverName.REPEATS,
            f"repeated lists of {named} are left out",
            plan.resolved.model_copy(update={"deduplicate": groups}),
            *_settings(("spec.data.deduplication", "Auto")),
        )


def _groups(plan: Plan, costs: Bundle) -> Iterator[LeverRequest]:
    """Yield groups of whole nodes, and of half of the devices, whose averages leave room for a gain."""
    if plan.request.replication is not None or plan.dense is not None:
        return
    resolved, needed = plan.resolved, [each.weights_bytes + each.optimizer_state_bytes for each in plan.memory]
    unevenness = max(needed) / (sum(needed) / len(needed)) if any(needed) else 1.0
    sizes = {resolved.topology.devices_per_domain, resolved.topology.num_devices // 2}
    try:
        ways = permitted_groupings(resolved.model_copy(update={"replication": ReplicationChoices()}))
    except RequestError:
        return
    for way in ways:
        size, average_ms = way.group.num_devices, least_average_ms(resolved, way, costs) * unevenness
        if size in sizes and average_ms < plan.predicted.total_ms:
            yield LeverRequest(
                LeverName.DEVICE_GROUPS,
                f"{way.num_groups} {way.layout} groups of {size} devices each hold all tables, "
                "averaged after each step",
                request_of_group(resolved, way.group),
                *_settings(("spec.planner.shardingGroups", f"{{sizes: [{size}]}}")),
                num_samples=plan.request.global_batch_size,
                added_ms=average_ms,
            )


def _batch_sizes(plan: Plan) -> Iterator[LeverRequest]:
    """Yield half and twice the samples of a step; a counted dense part is for one batch size alone."""
    asked = plan.request
    if asked.dense is not None:
        return
    for size in (2 * asked.batch_size_per_device, asked.batch_size_per_device // 2):
        if size and size * asked.topology.num_devices <= MAX_GLOBAL_BATCH_SIZE:
            yield LeverRequest(
                LeverName.BATCH_SIZE,
                f"{size:,} samples per device",
                plan.resolved.model_copy(update={"batch_size_per_device": size}),
                f"--batch-size {size}",
                f"spec.model.batchSizePerDevice: {size}",
                num_samples=size * asked.topology.num_devices,
            )


def _nodes(plan: Plan) -> Iterator[LeverRequest]:
    """Yield one node more and one less, with as many samples on each device."""
    asked, topology, limits = plan.request, plan.request.topology, plan.request.constraints
    names_devices = limits.forbidden_devices or any(own.devices is not None for own in limits.tables.values())
    if plan.dense is not None or names_devices:
        return
    per_node, is_usual = topology.devices_per_node, _is_usual(topology)
    same_batch = f"--batch-size {asked.batch_size_per_device}"  # some table sets fix the samples of all devices
    for count in (topology.num_nodes + 1, topology.num_nodes - 1):
        devices = topology.with_nodes(count)
        if count and asked.batch_size_per_device * devices.num_devices <= MAX_GLOBAL_BATCH_SIZE:
            yield LeverRequest(
                LeverName.NODES,
                f"{count} {'node' if count == 1 else 'nodes'} of {per_node} {'device' if per_node == 1 else 'devices'}",
                plan.resolved.model_copy(update={"topology": devices}),
                f"--devices {count}x{per_node} {same_batch}"
                if is_usual
                else f"num_nodes: {count} in the file of --devices, with {same_batch}",
                f"spec.trainer.numNodes: {count}",
                num_samples=asked.batch_size_per_device * devices.num_devices,
            )


def _is_usual(topology: Topology) -> bool:
    """Return whether ``--devices`` makes this topology of its numbers and its device type."""
    known = load_presets().get(topology.device.name)
    if known is None:
        return False
    usual = known.topology(num_nodes=topology.num_nodes, devices_per_node=topology.devices_per_node)
    return usual.model_copy(update={"host_memory": topology.host_memory}) == topology


def _has_few(request: PlanRequest) -> bool:
    """Return whether a request has so few tables that searches for it are short."""
    return len(resolve_units(request)) <= MOST_SEARCHED_UNITS


def _by_columns(request: PlanRequest) -> PlanRequest:
    """Return the request in the sharding types by columns, if it names none."""
    limits = request.constraints
    types = tuple(kind for kind in BY_COLUMNS if kind not in (limits.excluded_sharding_types or ()))
    if limits.sharding_types is not None or not types:
        return request
    return request.model_copy(update={"constraints": limits.model_copy(update={"sharding_types": types})})
