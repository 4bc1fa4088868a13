"""The dense part and the tables in one memory: the cheapest dense layout that leaves the tables what they need.

Tables need a least memory, below which nothing fits, and gain little from more. So the tables are packed by memory
alone first; the dense part takes the fastest layout of what is left, and the tables are searched next to it once.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import product

from neuroshard_api.documents.dense_layout import (
    CheckpointingChoice,
    DenseChoices,
    DenseGroup,
    DenseLayout,
    DensePolicy,
    DenseStrategy,
    GroupChoice,
    SplittingChoice,
)
from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.process.sizes import format_bytes
from neuroshard_costs.exchanges import TransferModel

from neuroshard_planner.choices.trials import Trials
from neuroshard_planner.dense.layouts import LayoutCandidate, Layouts
from neuroshard_planner.dense.named_units import divided
from neuroshard_planner.dense.options import UnitOptions, group_size, groups_of, may_shard
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.problem.memory_ledger import MemoryLedger
from neuroshard_planner.problem.units import allowed_devices, resolve_units
from neuroshard_planner.search.infeasible import least_capacity
from neuroshard_planner.search.packing import Packing
from neuroshard_planner.searches import Search, remembered

SLACK = 0.02
"""Share of the tables' least memory that they get besides: at the least itself, only placements by memory are found."""


_NOTHING_TO_SPLIT = (
    "dense_choices.splitting: units are to be split, and none has several operators; hint: set splitting to auto, or "
    "count the dense part again if the profile is of an earlier release"
)


class DenseLayoutChoice:
    """The layout of a counted dense part, chosen with the first plan that fits.

    Args:
        asked: what is planned.
        trials: of the planning.
    """

    def __init__(self, asked: PlanRequest, trials: Trials) -> None:
        self._asked = asked
        self._trials = trials
        self._layout: DenseLayout | None = None
        self._warnings: tuple[str, ...] = ()

    def first(self, request: PlanRequest, *, search: Search) -> Plan:
        """Return the plan of the tables next to the dense part, in the layout that leaves them what they need.

        Raises:
            PlannerError: as `joint_plan`.
        """
        whole = request.model_copy(update={"dense_memory": self._asked.dense_memory})
        found = joint_plan(whole, costs=self._trials.costs, search=search)
        self._layout = found.dense
        self._warnings = tuple(each for each in found.warnings if each.startswith("dense"))
        return found

    def written(self, plan: Plan) -> Plan:
        """Return the final plan with the layout."""
        added = (each for each in self._warnings if each not in plan.warnings)
        return plan.model_copy(update={"dense": self._layout, "warnings": (*plan.warnings, *added)})


def joint_plan(request: PlanRequest, *, costs: TransferModel, search: Search) -> Plan:
    """Return the plan of the tables next to a counted dense part; without one, the plan of the tables.

    Where nothing but replicas is permitted, or replicas fit and nothing else is asked for, it is the search's own plan.

    Args:
        request: what is planned.
        costs: price collectives of the dense part.
        search: finds the plan of a request whose dense part needs a known memory.

    Raises:
        InfeasibleError: nothing fits; the message names the memory of the dense part if it were sharded.
        RequestError: as the search does; or the choices name a module that there is not; or the profile does not name
            its modules.
    """
    if request.dense is None:
        return search(request)
    choices = request.dense_choices or DenseChoices()
    profile = divided(request.dense, choices)
    found = _next_to_tables(request, profile, choices, costs=costs, search=search)
    if choices.splitting is not SplittingChoice.ALWAYS or any(unit.operators for unit in profile.units):
        return found
    return found.model_copy(update={"warnings": (*found.warnings, _NOTHING_TO_SPLIT)})


def _next_to_tables(
    request: PlanRequest, profile: DenseProfile, choices: DenseChoices, *, costs: TransferModel, search: Search
) -> Plan:
    """Return the joint plan. Raises InfeasibleError."""
    failure: InfeasibleError | None = None
    if not excludes_replicas(choices):
        try:
            return search(request)
        except InfeasibleError as error:
            failure = error
    needed = _least_of_tables(request)
    tried = _groups(request, choices)
    search = remembered(search)
    smallest = _layouts(request, profile, costs=costs, choices=choices, groups=tried[-1]).candidates[0]
    hopeless = _no_room(request, smallest, needed_bytes=needed, search=search)
    failure = failure or hopeless
    for groups, permitted in product(tried, _stages(choices)) if hopeless is None else ():
        layouts = _layouts(request, profile, costs=costs, choices=permitted, groups=groups)
        may_be_skipped = permitted is choices and groups != tried[-1]
        if needed is not None and may_be_skipped and _left_bytes(request, layouts.candidates[0]) < needed:
            continue
        for chosen in _attempts(request, layouts.candidates, needed_bytes=needed):
            if chosen.is_plain and failure is not None:
                continue
            try:
                return _planned(request, layouts, chosen, search=search)
            except InfeasibleError as error:
                failure = failure or error
    assert failure is not None, "there is a candidate, and it was searched"
    raise InfeasibleError(f"{failure}{_dense_remedy(request, profile, costs=costs, needed_bytes=needed)}") from failure


def _no_room(
    request: PlanRequest, smallest: LayoutCandidate, *, needed_bytes: int | None, search: Search
) -> InfeasibleError | None:
    """Return the error that nothing fits next to the smallest layout, and so to no other. None: something may.

    Tables that pack by columns fit. Others may fit by rows, or in host memory, which a search has to tell. One that
    finds nothing is taken to find nothing with less room, which is assumed: a search does not prove that nothing fits.
    """
    if needed_bytes is not None and _left_bytes(request, smallest) >= needed_bytes:
        return None
    try:
        search(_with(request, smallest))
    except InfeasibleError as error:
        return error
    return None


def excludes_replicas(choices: DenseChoices) -> bool:
    """Return whether the choices exclude a dense part that is replicated as a whole."""
    return _asks_for_shards(choices) or choices.checkpointing is CheckpointingChoice.ALWAYS


def _asks_for_shards(choices: DenseChoices) -> bool:
    return choices.policy is DensePolicy.SHARD or any(
        each.strategy is not DenseStrategy.REPLICATE for each in choices.units or ()
    )


def _groups(request: PlanRequest, choices: DenseChoices) -> tuple[tuple[DenseGroup, ...], ...]:
    """Return the groups that are tried; where shards are asked for, those with two devices if there are some."""
    tried = groups_of(choices.group, request.topology)
    if not _asks_for_shards(choices):
        return tried
    return tuple(groups for groups in tried if any(group_size(each, request.topology) > 1 for each in groups)) or tried


def _stages(choices: DenseChoices) -> tuple[DenseChoices, ...]:
    """Return the choices that are tried one after the other.

    The policy auto replicates what fits: so where something else is asked for some units, all others are replicated,
    and checkpointed only on demand, before any choice is made for them.
    """
    if choices.policy is not DensePolicy.AUTO or not excludes_replicas(choices):
        return (choices,)
    is_always = choices.checkpointing is CheckpointingChoice.ALWAYS
    checkpointing = choices.checkpointing if is_always else CheckpointingChoice.NEVER
    return choices.model_copy(update={"policy": DensePolicy.REPLICATE, "checkpointing": checkpointing}), choices


def _layouts(
    request: PlanRequest,
    profile: DenseProfile,
    *,
    costs: TransferModel,
    choices: DenseChoices,
    groups: Sequence[DenseGroup],
) -> Layouts:
    options = UnitOptions(profile, request.topology, costs=costs, choices=choices, groups=groups)
    return Layouts(profile, options, copies_transfers=request.topology.device.is_cpu)


def _least_of_tables(request: PlanRequest) -> int | None:
    """Return the least memory for shards on each device at which the tables pack by columns. None: at none."""
    units = resolve_units(request)
    packing = Packing(request, units, allowed_devices(request, units))
    return least_capacity(packing, above_bytes=max(1, sum(packing.whole_bytes) // packing.num_devices - 1))


def _with(request: PlanRequest, candidate: LayoutCandidate) -> PlanRequest:
    """Return the request with the dense part in a layout."""
    return request.model_copy(update={"dense_memory": None if candidate.is_plain else candidate.memory})


def _left_bytes(request: PlanRequest, candidate: LayoutCandidate) -> int:
    """Return the bytes that a dense part leaves for shards on each device."""
    return MemoryLedger(_with(request, candidate)).shard_capacity_bytes


def _enough(needed_bytes: int) -> float:
    """Return the share of memory to leave where the tables need this much."""
    return needed_bytes * (1 + SLACK)


def _attempts(
    request: PlanRequest, candidates: Sequence[LayoutCandidate], *, needed_bytes: int | None
) -> Iterator[LayoutCandidate]:
    """Yield the fastest candidate that leaves the tables what they need, then a smaller one and the smallest.

    Tables by rows, or in host memory, may need less than by columns: where no candidate leaves enough, the smallest is
    tried all the same.
    """
    last = len(candidates) - 1
    if needed_bytes is not None:
        # What is left falls along the candidates, which are by memory.
        found = bisect_right(candidates, -_enough(needed_bytes), key=lambda each: -_left_bytes(request, each))
        last = max(0, found - 1)
    yield from (candidates[index] for index in dict.fromkeys((last, last // 2, 0)))


def _planned(request: PlanRequest, layouts: Layouts, chosen: LayoutCandidate, *, search: Search) -> Plan:
    plan = search(_with(request, chosen))
    warnings = list(plan.warnings)
    if _asks_for_shards(request.dense_choices or DenseChoices()) and all(
        each.shared_by == 1 for each in chosen.options
    ):
        warnings.append(
            "dense_choices: units are to be sharded, and no group of devices that may share them has two; all are "
            "replicated; hint: give more devices, or set the group to auto"
        )
    if chosen.is_plain:
        return plan.model_copy(update={"warnings": tuple(warnings)})
    layout = layouts.layout(chosen, source=f"simulated:{request.topology.device.name}")
    if any(unit.group is DenseGroup.WORLD for unit in layout.units) and request.topology.num_domains > 1:
        warnings.append(
            f"dense: some units are shared by the devices of all nodes; {layout.exposed_ms:.3f} ms of collectives of "
            f"the dense part are not hidden at {request.batch_size_per_device:,} samples per device"
            f"; hint: give devices with "
            "more memory, or set the group to node"
        )
    return plan.model_copy(update={"dense": layout, "warnings": tuple(warnings)})


def _dense_remedy(
    request: PlanRequest, profile: DenseProfile, *, costs: TransferModel, needed_bytes: int | None
) -> str:
    """Return the gain of other settings of the dense part, after a failure; empty: none.

    Every unit without a strategy of its own is sharded, by any group, and checkpointed as the request permits.
    """
    own = request.dense_choices or DenseChoices()
    choices = own.model_copy(update={"policy": DensePolicy.SHARD, "group": GroupChoice.AUTO})
    groups = groups_of(GroupChoice.AUTO, request.topology)[-1]
    smallest = _layouts(request, profile, costs=costs, choices=choices, groups=groups).candidates[0]
    if smallest.memory.total_bytes >= profile.total_bytes:
        return ""
    settings = [] if may_shard(own, profile) else ["spec.training.denseParallelism.policy=Shard"]
    if any(group not in groups_of(own.group, request.topology)[-1] for group in groups):
        settings.append("spec.experimental.denseParallelism.group=Auto")
    sizes = f"{format_bytes(smallest.memory.total_bytes)} in place of {format_bytes(profile.total_bytes)}"
    if settings and needed_bytes is not None and _left_bytes(request, smallest) >= _enough(needed_bytes):
        return f"; or shard the dense part ({'; '.join(settings)}): it then needs {sizes}"
    is_sharded = any(each.shared_by > 1 for each in smallest.options)
    is_checkpointed = any(each.checkpointed for each in smallest.options)
    kept = " and ".join(word for word, counts in (("sharded", is_sharded), ("checkpointed", is_checkpointed)) if counts)
    return f"; a {kept} dense part, {sizes}, is not enough by columns"
