"""The dense part and the tables in one memory: the cheapest dense layout that leaves the tables what they need.

Tables need a least memory, below which nothing fits, and gain little from more. So the tables are packed by memory
alone first; the dense part takes the fastest layout of what is left, and the tables are searched next to it once.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import product

from neuroshard_api.documents.dense_layout import (
    CheckpointingChoice,
    DenseChoices,
    DenseGroup,
    DenseLayout,
    DensePolicy,
    GroupChoice,
    SplittingChoice,
)
from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.process.sizes import format_bytes
from neuroshard_costs.exchanges import TransferModel
from neuroshard_dense.layouts import LayoutCandidate, Layouts
from neuroshard_dense.named_units import divided, named_units_problem, names_modules
from neuroshard_dense.options import UnitOptions, group_size, groups_of, may_shard

from neuroshard_planner.choices.trials import Choice
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.memory.infeasible import least_capacity
from neuroshard_planner.memory.packing import Packing
from neuroshard_planner.problem.counted_memory import memory_ledger
from neuroshard_planner.searches import Search, remembered

SLACK = 0.02
"""Share of the tables' least memory that they get besides: at the least itself, only placements by memory are found."""
_NOTHING_TO_SPLIT = (
    "dense_choices.splitting: units are to be split, and none has several operators; hint: set splitting to auto, or "
    "count the dense part again if the profile is of an earlier release"
)


class DenseLayoutChoice(Choice):
    """The layout of a counted dense part, chosen with the first plan that fits."""

    _layout: DenseLayout | None = None
    _warnings: tuple[str, ...] = ()

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

    def decided(self, best: Plan, /) -> Plan:
        """Return the best plan with the layout, which counts in what follows."""
        return self.written(best)

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
    problem = named_units_problem(request.dense, choices)
    if problem is not None:
        raise RequestError(problem)
    profile = divided(request.dense, choices)
    found = _JointSearch(request, profile, choices, costs=costs, search=search).plan()
    if choices.splitting is not SplittingChoice.ALWAYS or any(unit.operators for unit in profile.units):
        return found
    return found.model_copy(update={"warnings": (*found.warnings, _NOTHING_TO_SPLIT)})


def _stages(choices: DenseChoices) -> tuple[DenseChoices, ...]:
    """Return the choices that are tried one after the other.

    The policy auto replicates what fits: so where something else is asked for some units, all others are replicated,
    and checkpointed only on demand, before any choice is made for them.
    """
    if choices.policy is not DensePolicy.AUTO or not choices.excludes_replicas:
        return (choices,)
    is_always = choices.checkpointing is CheckpointingChoice.ALWAYS
    checkpointing = choices.checkpointing if is_always else CheckpointingChoice.NEVER
    return choices.model_copy(update={"policy": DensePolicy.REPLICATE, "checkpointing": checkpointing}), choices


class _JointSearch:
    """The search of a layout of a request's dense part, and of its tables next to it."""

    def __init__(
        self,
        request: PlanRequest,
        profile: DenseProfile,
        choices: DenseChoices,
        *,
        costs: TransferModel,
        search: Search,
    ) -> None:
        self._request, self._profile, self._choices = request, profile, choices
        self._topology = request.topology
        self._costs = costs
        self._search = remembered(search)

    def plan(self) -> Plan:
        """Return the joint plan. Raises InfeasibleError."""
        choices = self._choices
        failure: InfeasibleError | None = None
        if not choices.excludes_replicas:
            try:
                return self._search(self._request)
            except InfeasibleError as error:
                failure = error
        tried = self._groups()
        hopeless = self._no_room(self._layouts(choices, tried[-1]).candidates[0])
        failure = failure or hopeless
        for groups, permitted in product(tried, _stages(choices)) if hopeless is None else ():
            layouts = self._layouts(permitted, groups)
            may_be_skipped = permitted is choices and groups != tried[-1]
            if may_be_skipped and self._leaves(layouts.candidates[0]) is False:
                continue
            for chosen in self._attempts(layouts.candidates):
                if chosen.is_plain and failure is not None:
                    continue
                try:
                    return self._planned(layouts, chosen)
                except InfeasibleError as error:
                    failure = failure or error
        assert failure is not None, "there is a candidate, and it was searched"
        raise InfeasibleError(f"{failure}{self._remedy()}") from failure

    @cached_property
    def _needed_bytes(self) -> int | None:
        """The least memory for shards on each device at which the tables pack by columns. None: at none."""
        packing = Packing(self._request)
        return least_capacity(packing, above_bytes=max(1, sum(packing.whole_bytes) // packing.num_devices - 1))

    def _with(self, candidate: LayoutCandidate) -> PlanRequest:
        """Return the request with the dense part in a layout."""
        return self._request.model_copy(update={"dense_memory": None if candidate.is_plain else candidate.memory})

    def _left_bytes(self, candidate: LayoutCandidate) -> int:
        """Return the bytes that a dense part leaves for shards on each device."""
        return memory_ledger(self._with(candidate)).shard_capacity_bytes

    def _leaves(self, candidate: LayoutCandidate, *, share: float = 1.0) -> bool | None:
        """Return whether a layout leaves that share of what the tables need. None: by columns they fit next to none."""
        needed = self._needed_bytes
        return None if needed is None else self._left_bytes(candidate) >= needed * share

    def _no_room(self, smallest: LayoutCandidate) -> InfeasibleError | None:
        """Return the error that nothing fits next to the smallest layout, and so to no other. None: something may.

        Tables that pack by columns fit. Others may fit by rows, or in host memory, which a search has to tell. One that
        finds nothing is taken to find nothing with less room, which is assumed: a search does not prove that nothing
        fits.
        """
        if self._leaves(smallest):
            return None
        try:
            self._search(self._with(smallest))
        except InfeasibleError as error:
            return error
        return None

    def _groups(self) -> tuple[tuple[DenseGroup, ...], ...]:
        """Return the groups that are tried; where shards are asked for, those with two devices if there are some."""
        tried = groups_of(self._choices.group, self._topology)
        if not self._choices.asks_for_shards:
            return tried
        return (
            tuple(groups for groups in tried if any(group_size(each, self._topology) > 1 for each in groups)) or tried
        )

    def _layouts(self, choices: DenseChoices, groups: Sequence[DenseGroup]) -> Layouts:
        """Return the layouts under some choices. Raises RequestError for a profile that does not name its modules."""
        if not names_modules(self._profile):
            raise RequestError(
                "dense: the profile does not name the modules of units that repeat; hint: count the dense part "
                "again with this release"
            )
        options = UnitOptions(self._profile, self._topology, costs=self._costs, choices=choices, groups=groups)
        return Layouts(self._profile, options, copies_transfers=self._topology.device.is_cpu)

    def _attempts(self, candidates: Sequence[LayoutCandidate]) -> Iterator[LayoutCandidate]:
        """Yield the fastest candidate that leaves the tables what they need, then a smaller one and the smallest.

        Tables by rows, or in host memory, may need less than by columns: where no candidate leaves enough, the smallest
        is tried all the same.
        """
        last = len(candidates) - 1
        if self._needed_bytes is not None:
            # What is left falls along the candidates, which are by memory.
            enough = self._needed_bytes * (1 + SLACK)
            last = max(0, bisect_right(candidates, -enough, key=lambda each: -self._left_bytes(each)) - 1)
        yield from (candidates[index] for index in dict.fromkeys((last, last // 2, 0)))

    def _planned(self, layouts: Layouts, chosen: LayoutCandidate) -> Plan:
        """Return the plan next to a layout. Raises InfeasibleError."""
        plan = self._search(self._with(chosen))
        warnings = list(plan.warnings)
        if self._choices.asks_for_shards and all(each.shared_by == 1 for each in chosen.options):
            warnings.append(
                "dense_choices: units are to be sharded, and no group of devices that may share them has two; all are "
                "replicated; hint: give more devices, or set the group to auto"
            )
        if chosen.is_plain:
            return plan.model_copy(update={"warnings": tuple(warnings)})
        layout = layouts.layout(chosen, source=f"simulated:{self._topology.device.name}")
        if any(unit.group is DenseGroup.WORLD for unit in layout.units) and self._topology.num_domains > 1:
            warnings.append(
                f"dense: some units are shared by the devices of all nodes; {layout.exposed_ms:.3f} ms of collectives "
                f"of the dense part are not hidden at {self._request.batch_size_per_device:,} samples per device"
                "; hint: give devices with more memory, or set the group to node"
            )
        return plan.model_copy(update={"dense": layout, "warnings": tuple(warnings)})

    def _remedy(self) -> str:
        """Return the gain of other settings of the dense part, after a failure; empty: none.

        Every unit without a strategy of its own is sharded, by any group, and checkpointed as the request permits.
        """
        own, profile = self._choices, self._profile
        choices = own.model_copy(update={"policy": DensePolicy.SHARD, "group": GroupChoice.AUTO})
        groups = groups_of(GroupChoice.AUTO, self._topology)[-1]
        smallest = self._layouts(choices, groups).candidates[0]
        if smallest.memory.total_bytes >= profile.total_bytes:
            return ""
        settings = [] if may_shard(own, profile) else ["spec.training.denseParallelism.policy=Shard"]
        if any(group not in groups_of(own.group, self._topology)[-1] for group in groups):
            settings.append("spec.experimental.denseParallelism.group=Auto")
        sizes = f"{format_bytes(smallest.memory.total_bytes)} in place of {format_bytes(profile.total_bytes)}"
        if settings and self._leaves(smallest, share=1 + SLACK):
            return f"; or shard the dense part ({'; '.join(settings)}): it then needs {sizes}"
        is_sharded = any(each.shared_by > 1 for each in smallest.options)
        is_checkpointed = any(each.checkpointed for each in smallest.options)
        kept = (word for word, counts in (("sharded", is_sharded), ("checkpointed", is_checkpointed)) if counts)
        return f"; a {' and '.join(kept)} dense part, {sizes}, is not enough by columns"
