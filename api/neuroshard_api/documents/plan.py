"""A sharding plan: where every shard of every table lives, what it should cost, and how that was found."""

import hashlib
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.batch_choice import BatchDecision
from neuroshard_api.documents.communication import CommunicationPlan
from neuroshard_api.documents.counts import Milliseconds
from neuroshard_api.documents.dense_layout import DenseCost, DenseLayout
from neuroshard_api.documents.document import Document, DocumentError, Value
from neuroshard_api.documents.gradient_exchange import GradientDecision
from neuroshard_api.documents.levers import Lever
from neuroshard_api.documents.plan_choices import PlanChoice
from neuroshard_api.documents.plan_parts import (
    BaselineCost,
    BundleReference,
    DeduplicatedGroup,
    DeduplicationForm,
    DeviceMemory,
    IncumbentPlan,
    PlanCost,
    SearchStatistics,
    ServedTables,
    TablePlacement,
)
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.resolved_request import resolved_request
from neuroshard_api.documents.served_request import request_of_servers, without_tables
from neuroshard_api.documents.servers import ServerPolicy
from neuroshard_api.documents.stored_types import StoredTypes
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_api.documents.whole_step import WholeStep
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import Replication, group_members, replication_problem

PRICE_FIELDS = ("bundle", "predicted", "lower_bound_ms", "gap", "memory", "search")
"""What a plan gives as a whole or not at all."""


_REWRITTEN = ("replication", "stored_types", "dense")
"""Parts that changed tables, devices, or memory in the request of a plan of an earlier version."""


class GivenPlan(Document):
    """A plan, with or without a price: the request as it was asked, what was chosen, and the shards that answer both.

    Costs, memory, and shards are of `resolved`, the request with what was chosen.

    Without a price, which is ``bundle``, ``predicted``, ``lower_bound_ms``, ``gap``, ``memory``, and ``search``
    together, a plan can be checked, exported, and trained. `Plan` is one with a price.
    """

    schema_name: ClassVar[str] = "plan/v3"
    earlier_versions: ClassVar[tuple[str, ...]] = ("plan/v1", "plan/v2")
    """Their requests have what was chosen in place of what was asked. `from_data` reads those that mean the same."""

    schema_version: Literal["plan/v3"] = "plan/v3"
    algorithm: Algorithm
    bundle: BundleReference | None = None
    predicted: PlanCost | None = None
    lower_bound_ms: Milliseconds | None = None
    """No plan of the same options, with tables of these types and the same on servers, costs less under the same cost
    model."""
    gap: Annotated[float, Field(ge=0)] | None = None
    """predicted.total_ms / lower_bound_ms - 1."""
    warnings: tuple[str, ...] = ()
    baselines: tuple[BaselineCost, ...] = ()
    tables: Annotated[tuple[TablePlacement, ...], Field(min_length=1)]
    """In the order of the request's tables."""
    memory: tuple[DeviceMemory, ...] | None = None
    """One entry per device."""
    deduplication: Annotated[tuple[DeduplicatedGroup, ...], Field(min_length=1)] | None = None
    """Groups whose repeats are left out. If unset: every list is sent and looked up."""
    all_lists_ms: Milliseconds | None = None
    """Predicted cost of the best plan on all lists. If unset: no repeats are left out, or the plan has no price."""
    communication: CommunicationPlan | None = None
    """Types that were chosen for what travels. If unset: there was no choice."""
    stored_types: StoredTypes | None = None
    """Types that were chosen for the tables. If unset: there was no choice."""
    gradients: GradientDecision | None = None
    """How gradients of the replicated dense part travel. If unset: there was no choice."""
    choices: Annotated[tuple[PlanChoice, ...], Field(min_length=1)] | None = None
    """What was decided where the request permitted more than one form. If unset: it permitted none."""
    batch: BatchDecision | None = None
    """Samples per device that were tried; the request has those that were chosen. If unset: there was no choice."""
    levers: Annotated[tuple[Lever, ...], Field(min_length=1, max_length=16)] | None = None
    """What would save time and was not asked for, what saves most first. If unset: nothing, or nobody looked."""
    search: SearchStatistics | None = None
    incumbent: IncumbentPlan | None = None
    """The plan in force when this one was made. If unset: there was none, or it was not given."""
    replication: Replication | None = None
    """Groups of devices that each hold all tables; then tables and everything by device are those of one group. If
    unset: the tables are sharded over all devices."""
    dense: DenseLayout | None = None
    """How each unit of the dense part is kept. If unset: all of it is replicated, and nothing is checkpointed."""
    replicated_dense: DenseCost | None = None
    """Predicted time of a counted dense part that is replicated as a whole. If unset: it is not, or was not counted."""
    servers: ServedTables | None = None
    """Tables on embedding servers. All else is then of the other tables, but for the request, and times, in which the
    step's wait for servers is. If unset: there are none."""
    step: WholeStep | None = None
    """The whole step. If unset: the plan has no price, or is of an earlier release."""
    request: PlanRequest

    @model_validator(mode="after")
    def _dense_layout_without_groups(self) -> Self:
        if self.dense is not None and self.replication is not None:
            raise ValueError(
                "dense: groups of devices that each hold all tables train replicated dense parts"
                "; hint: leave one of dense "
                "and replication out"
            )
        return self

    @model_validator(mode="after")
    def _groups_that_average(self) -> Self:
        if self.replication is None:
            return self
        problem = replication_problem(self.replication, self.request.topology, self.request.optimizers)
        if problem is not None:
            raise ValueError(f"replication.{problem}")
        return self

    @model_validator(mode="after")
    def _served_as_asked(self) -> Self:
        pool = self.request.servers
        if self.servers is not None and pool is None:
            raise ValueError("servers: must be in the plan only where they are in its request; hint: make it again")
        if pool is None:
            return self
        found = () if self.servers is None else tuple(table.name for table in self.servers.tables)
        may_choose = pool.policy is not ServerPolicy.NEVER
        wanted = tuple(
            table.name
            for table in self.request.tables.tables
            if table.name in pool.tables or (may_choose and table.name in found)
        )
        if wanted != found:
            raise ValueError(
                f"servers.tables: are {', '.join(found) or 'none'}, the request has {', '.join(wanted) or 'none'} there"
                "; hint: make the plan again"
            )
        return self

    @model_validator(mode="after")
    def _stored_as_chosen(self) -> Self:
        asked = {table.name: table.data_type for table in self.request.tables.tables}
        placed = {table.name: table.data_type for table in self.tables}
        for index, each in enumerate(() if self.stored_types is None else self.stored_types.tables):
            for field, kind, where, types in (
                ("own", each.own, "the request", asked),
                ("chosen", each.chosen, "tables[].data_type", placed),
            ):
                if types.get(each.name) != kind:
                    raise ValueError(
                        f"stored_types.tables[{index}].{field}: is {kind} for {each.name!r}, {where} has "
                        f"{types.get(each.name) or 'none'}; hint: give the same type in both"
                    )
        return self

    @model_validator(mode="after")
    def _priced_as_a_whole(self) -> Self:
        missing = [field for field in PRICE_FIELDS if getattr(self, field) is None]
        if missing and len(missing) < len(PRICE_FIELDS):
            raise ValueError(f"{missing[0]}: is missing; hint: give all of {', '.join(PRICE_FIELDS)}, or none of them")
        return self

    @model_validator(mode="after")
    def _groups_of_own_features(self) -> Self:
        tables = {name: table for table in self.request.tables.tables for name in table.features}
        owner: dict[str, str] = {}
        for index, each in enumerate(self.deduplication or ()):
            for name in each.features:
                if name not in tables or tables[name].is_sequence:
                    what = "a sequence" if name in tables else "a feature of no table"
                    raise ValueError(
                        f"deduplication[{index}].features: {name!r} is {what}; hint: name features of bags"
                    )
                if name in owner:
                    raise ValueError(
                        f"deduplication[{index}].features: {name!r} is in group {owner[name]!r} already; "
                        "a feature is in one group"
                    )
                owner[name] = each.group
            if each.form is DeduplicationForm.GROUPED:
                self._check_grouped(index, each, {tables[name].name: tables[name] for name in each.features})
        return self

    def _check_grouped(self, index: int, group: DeduplicatedGroup, tables: Mapping[str, Table]) -> None:
        """Raise ValueError where a group's tables cannot be a collection of their own."""
        for table in tables.values():
            outside = sorted(set(table.features) - set(group.features))
            if outside:
                raise ValueError(
                    f"deduplication[{index}].features: table {table.name!r} is looked up by {outside[0]!r} too, "
                    "and the grouped form takes whole tables; hint: name all of its features, or use first_sample"
                )
        for placement in self.tables:
            is_whole = placement.sharding_type.is_by_columns or placement.sharding_type is ShardingType.DATA_PARALLEL
            if placement.name in tables and not is_whole:
                raise ValueError(
                    f"deduplication[{index}].form: table {placement.name!r} is {placement.sharding_type}, whose parts "
                    "are added up for equally many lists on every device"
                    "; hint: use first_sample, or place it by columns"
                )

    @classmethod
    def from_data(cls, raw: object, *, where: str = "document") -> Self:
        """Read plain data as JSON or YAML parsers give it. Raises DocumentError, also for some of earlier versions.

        The request of an earlier version has what was chosen, and is read as if that had been asked for. That does not
        hold for groups of devices, types of tables, and layouts of a dense part: such plans are refused.
        """
        if isinstance(raw, dict) and raw.get("schema_version") in cls.earlier_versions:
            types = raw.get("stored_types")
            parts = {**raw, "stored_types": types.get("tables") if isinstance(types, dict) else None}
            chosen = next((field for field in _REWRITTEN if parts.get(field)), None)
            if chosen is not None:
                problem = f"{chosen}: is of {raw['schema_version']}, whose request does not say what was asked for"
                raise DocumentError(where, [f"{problem}; hint: make the plan again with this release"])
        return super().from_data(raw, where=where)

    @property
    def dense_cost(self) -> DenseCost | None:
        """The predicted time of the dense part, however it is kept. None: it was not counted."""
        return self.replicated_dense if self.dense is None else self.dense.cost

    @property
    def resolved(self) -> PlanRequest:
        """The request with what was chosen, which shards, memory, and costs are of: of one group where there are some.

        It is made at each call.
        """
        repeats = self.deduplication or ()
        return resolved_request(
            self.request,
            repeats=[each.group for each in repeats],
            grouped=[each.group for each in repeats if each.form is DeduplicationForm.GROUPED],
            communication=self.communication,
            stored_types=self.stored_types,
            gradients=self.gradients,
            dense=self.dense,
            replication=self.replication,
            served=() if self.servers is None else [each.name for each in self.servers.tables],
        )

    @property
    def of_devices(self) -> "GivenPlan":
        """The plan of the tables on devices, as one without servers; it has no price where there are servers."""
        if self.servers is None:
            return self
        names = [each.name for each in self.servers.tables]
        unpriced = dict.fromkeys(PRICE_FIELDS)
        fields = {name: getattr(self, name) for name in GivenPlan.model_fields}
        changes = {"request": without_tables(self.request, names), "servers": None, "step": None}
        return GivenPlan.model_construct(**fields | unpriced | changes)

    @property
    def of_servers(self) -> "GivenPlan | None":
        """The plan of the tables on servers, whose processes take the place of devices. None: there are none."""
        if self.servers is None:
            return None
        names = [each.name for each in self.servers.tables]
        asked = request_of_servers(self.request, names)
        return GivenPlan(algorithm=self.algorithm, tables=self.servers.tables, request=asked)

    @property
    def trained_tables(self) -> TableSet:
        """The tables of the model, of the types that were chosen, in the request's order."""
        found = self.resolved.tables
        if self.servers is None:
            return found
        on_devices = {table.name: table for table in found.tables}
        tables = tuple(on_devices.get(table.name, table) for table in self.request.tables.tables)
        return found.model_copy(update={"tables": tables})

    @property
    def num_server_processes(self) -> int:
        """Processes of all embedding servers that hold tables."""
        return 0 if self.request.servers is None or self.servers is None else self.request.servers.num_processes

    @property
    def num_devices(self) -> int:
        """Devices of all groups."""
        return self.request.topology.num_devices

    @property
    def devices_per_node(self) -> int:
        """Devices of a node, of whatever groups."""
        return self.request.topology.devices_per_node

    @property
    def num_nodes(self) -> int:
        """Nodes of all groups."""
        return self.request.topology.num_nodes

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each group, in the order in which the plan numbers them."""
        if self.replication is None:
            return (tuple(range(self.num_devices)),)
        count = self.replication.num_groups
        return group_members(count, self.num_devices // count, self.replication.layout)

    @property
    def deduplicated_features(self) -> tuple[tuple[str, ...], ...]:
        """The features of each group whose repeats are left out."""
        return tuple(each.features for each in self.deduplication or ())

    @property
    def placement_sha256(self) -> str:
        """Hash of what workers do under the plan, without its prices: plans for other inputs may have equal ones.

        Shards, and where the plan has them features whose repeats are left out, narrow types that travel, the
        layout of the dense part, and how its gradients travel.
        """
        does: list[Value] = [*self.tables, *(() if self.servers is None else self.servers.tables)]
        if self.communication is not None and not self.communication.chosen.is_exact:
            does.append(self.communication.chosen)
        does += () if self.dense is None else self.dense.units
        gradients = self.resolved.gradients
        does += () if gradients is None else (gradients,)
        said = [each.model_dump_json() for each in does]
        said += [each.model_dump_json(include={"features", "form"}) for each in self.deduplication or ()]
        return hashlib.sha256("\n".join(said).encode()).hexdigest()

    @property
    def no_price(self) -> str:
        """Why there is no price, in a sentence that begins with the field."""
        return "predicted: is missing, the plan has no price; hint: give a plan that has one"


class Plan(GivenPlan):
    """A plan with its price."""

    bundle: BundleReference
    predicted: PlanCost
    lower_bound_ms: Milliseconds
    gap: Annotated[float, Field(ge=0)]
    memory: tuple[DeviceMemory, ...]
    search: SearchStatistics

    @classmethod
    def from_data(cls, raw: object, *, where: str = "document") -> Self:
        """Read plain data as JSON or YAML parsers give it. Raises DocumentError, also for a plan without a price."""
        if isinstance(raw, dict) and raw and not any(field in raw for field in PRICE_FIELDS):
            raise DocumentError(where, [GivenPlan.from_data(raw, where=where).no_price])
        return super().from_data(raw, where=where)

    @property
    def whole_step_ms(self) -> float:
        """Predicted time of a step: the whole one where it has a price, else embedding part and dense part."""
        if self.step is not None:
            return self.step.total_ms
        return self.predicted.total_ms + (0.0 if self.dense_cost is None else self.dense_cost.total_ms)

    @property
    def samples_per_second(self) -> float:
        """Of all devices: the batch over the whole step."""
        return 1000.0 * self.request.global_batch_size / self.whole_step_ms

    @property
    def slowest_device(self) -> int:
        """The device that decides the step, the first of equals."""
        times = [cost.decisive_ms(self.request.compute_peak) for cost in self.predicted.devices]
        return times.index(max(times))


def any_plan(raw: object, *, where: str = "document") -> GivenPlan:
    """Read plain data as a plan: a `Plan` where it has a price. Raises DocumentError."""
    is_priced = isinstance(raw, dict) and any(field in raw for field in PRICE_FIELDS)
    return Plan.from_data(raw, where=where) if is_priced else GivenPlan.from_data(raw, where=where)
