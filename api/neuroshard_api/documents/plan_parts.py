"""The parts of a plan: shards, costs, memory, moves, and what found it."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field

from neuroshard_api.documents.bundle import BundleManifest, NetworkName, Source
from neuroshard_api.documents.counts import Count, Milliseconds, PositiveCount
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.request import Algorithm, ComputePeak, DeviceIndex
from neuroshard_api.documents.tables import DataType
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.sharding.collectives import CollectiveTime
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType


class Shard(Value):
    """A rectangle of a table on one device."""

    device: DeviceIndex
    row_offset: Count = 0
    num_rows: PositiveCount
    column_offset: Count = 0
    num_columns: PositiveCount


class TablePlacement(Value):
    """The shards of one table; together they cover it exactly once (data_parallel: once per device)."""

    name: str
    sharding_type: ShardingType
    kernel: ComputeKernel | None = None
    """If unset: the one that runs the sharding type, dense for data_parallel and fused for all others."""
    cache_load_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    """Rows of the device's cache over rows of the shard, of a fused_uvm_caching table; unset for all others."""
    data_type: DataType | None = None
    """Type of the stored weights, where the plan chose another than the table's. If unset: the table's."""
    shards: Annotated[tuple[Shard, ...], Field(min_length=1)]
    """By rows, only those that have any: the last devices of a table with few rows hold none."""

    @property
    def compute_kernel(self) -> ComputeKernel:
        """The kernel that looks the table up."""
        return self.kernel or ComputeKernel.of(self.sharding_type)

    @property
    def num_column_blocks(self) -> int:
        """Pieces of the table by columns."""
        return len({shard.column_offset for shard in self.shards})


class CollectiveCost(CollectiveTime):
    """Time of one collective of a step, from the last device's start on, and what a device brings to it.

    Of indices only what a pipeline cannot hide. Of node_rows both stages together.
    """

    num_bytes: Count
    """In one direction: what the device receives of indices, its pooled embeddings or partial sums of all samples, or
    its gradients. Where types differ by direction: forward."""
    backward_num_bytes: Count | None = None
    """The gradients of the device's pooled embeddings. If unset: as many bytes as forward."""


class DeviceCost(Value):
    """Time of the embedding part of one step on one device, in milliseconds."""

    forward_compute_ms: Milliseconds
    backward_compute_ms: Milliseconds
    """Gradient and fused optimizer."""
    wait_ms: Milliseconds
    """For slower devices: from the end of this device's forward compute to the end of the slowest device's. Where only
    the sum of both passes counts (compute_peak), the slowest device's forward and backward less this one's."""
    input_communication_ms: Milliseconds = 0.0
    """What the exchange of indices adds to the step: all of it, or what a pipeline cannot hide behind compute."""
    forward_communication_ms: Milliseconds
    """Forward, and backward: the sums over collectives but that of indices."""
    backward_communication_ms: Milliseconds
    dense_update_ms: Milliseconds = 0.0
    """Passes over all rows of data_parallel tables: gradients cleared, optimizer applied."""
    host_link_ms: Milliseconds = 0.0
    """What the device waits for rows of tables in host memory, and for its look-up of cached ones, in both passes."""
    expansion_ms: Milliseconds | None = None
    """Copies of pooled embeddings to the samples that repeat a list, and the sums of their gradients. If unset: no
    repeats are left out."""
    server_ms: Milliseconds | None = None
    """From the first id sent to embedding servers to the last row that they update. If unset: there are no servers."""
    server_hidden_ms: Milliseconds | None = None
    """The part of server_ms during which devices look up and exchange their own tables; with lookahead, during which
    they compute the step before. If unset: there are no servers."""
    collectives: tuple[CollectiveCost, ...] = ()
    """Those that the plan's tables take part in. Empty in older plans: not known."""
    embedding_dim_sum: Count
    """Columns of all vectors of the device's shards by columns per sample, rounded: what its all-to-all sends, but for
    the repeats of groups in the grouped form."""

    @property
    def compute_ms(self) -> float:
        """Forward and backward compute."""
        return self.forward_compute_ms + self.backward_compute_ms

    @property
    def communication_ms(self) -> float:
        """All exchanges that the step waits for."""
        return self.input_communication_ms + self.forward_communication_ms + self.backward_communication_ms

    @property
    def server_exposed_ms(self) -> float:
        """What servers add to the step."""
        return (self.server_ms or 0.0) - (self.server_hidden_ms or 0.0)

    @property
    def total_ms(self) -> float:
        """Sum of the terms, the wait included."""
        total_ms = self.compute_ms + self.host_link_ms + self.wait_ms + self.communication_ms + self.dense_update_ms
        total_ms = total_ms if self.expansion_ms is None else total_ms + self.expansion_ms
        return total_ms if self.server_ms is None else total_ms + self.server_exposed_ms

    def decisive_ms(self, compute_peak: ComputePeak) -> float:
        """Return the time by which the devices of a plan rank: the device with most of it is the one waited for.

        Where only the sum of both passes counts, waiting fills every device up to the same total, and the passes
        themselves decide.
        """
        return self.compute_ms + self.host_link_ms if compute_peak is ComputePeak.JOINT else self.total_ms


class PlanCost(Value):
    """Cost of a plan under one cost model."""

    total_ms: Milliseconds
    """Largest sum of the terms over the devices."""
    source: Source
    devices: tuple[DeviceCost, ...]


class DeviceMemory(Value):
    """What the plan needs of one device's memory, in bytes, at the moment of a step when it needs most."""

    weights_bytes: Count
    optimizer_state_bytes: Count
    activation_bytes: Count
    """Pooled embeddings and their gradients, before and after the all-to-all. 0 where another moment needs more: then
    what is left of them is in dense_bytes."""
    input_bytes: Count
    """Indices, lengths and offsets of the lookups that the device's shards serve, in all batches and copies."""
    local_input_bytes: Count = 0
    """The same for all lookups of the device's own samples, before they are exchanged, and their dense features."""
    sort_bytes: Count = 0
    """Temporary memory in which the backward kernels sort the lookups. 0 where another moment needs more."""
    gradient_bytes: Count = 0
    """Dense gradients of data_parallel tables: in buckets, and where lookups need most once more."""
    cache_bytes: Count = 0
    """Cached rows of fused_uvm_caching tables, and the cache's maps."""
    host_bytes: Count = 0
    """Weights and optimizer state of the device's shards in host memory, which is the node's and no device memory."""
    dense_bytes: Count
    """The dense part; if it was counted, without its working memory where another moment needs more."""
    managed_collision_bytes: Count | None = None
    """Maps of ids to rows, and histories of ids, of managed collision. If unset: there is none."""
    reserve_bytes: Count
    capacity_bytes: PositiveCount
    """The limit: the device's memory or the constraint, whichever is less."""

    @property
    def used_bytes(self) -> int:
        """The sum of all purposes; a plan fits if it is at most the capacity."""
        return sum(getattr(self, field) or 0 for field in type(self).model_fields if field not in _NOT_USED)


_NOT_USED = {"capacity_bytes", "host_bytes"}


class ServedTables(Value):
    """The tables on embedding servers. Processes of servers are numbered server by server."""

    tables: Annotated[tuple[TablePlacement, ...], Field(min_length=1)]
    """In the order of the request's tables; the `device` of a shard is the number of a process."""
    predicted: PlanCost | None = None
    """Lookups and exchange with trainers of the servers, whose processes are its devices; what devices hide of it
    counts too. If unset: the plan has no price."""
    memory: tuple[DeviceMemory, ...] | None = None
    """One entry per process. If unset: the plan has no price."""


class DeduplicationForm(StrEnum):
    """How repeated lists of a group are left out of a batch."""

    FIRST_SAMPLE = "first_sample"
    """Bags of repeats are empty, and pooled embeddings are copied from the first sample behind the exchange."""
    GROUPED = "grouped"
    """A collection of the group's tables alone looks up distinct lists, so that pooled embeddings are exchanged without
    repeats; they are copied behind the exchange. Tables by columns or data_parallel."""


class DeduplicatedGroup(Value):
    """Features whose lists are sent and looked up once where all of them repeat."""

    group: Annotated[str, Field(min_length=1, max_length=128)]
    """The tables' duplication_group."""
    features: Annotated[tuple[str, ...], Field(min_length=1)]
    form: DeduplicationForm = DeduplicationForm.FIRST_SAMPLE
    factor: Annotated[float, Field(ge=1.0)]
    """Expected samples over distinct ones in the batch of a device."""
    saved_ms: float | None = None
    """Predicted cost of the same placement without the group's deduplication, less the plan's. If unset: the two were
    not compared."""
    product_saved_ms: Milliseconds | None = None
    """Predicted time of the dense part that the trainer saves where it computes the group's part of its first product
    with all features once per distinct list. If unset: it computes that part for every sample."""


class BaselineCost(Value):
    """What a baseline would cost under the same cost model, or why it found no plan."""

    algorithm: Algorithm
    total_ms: Milliseconds | None = None
    """With the plan's tables on embedding servers, the longer of the plan's own cost and that without these."""
    step_ms: Milliseconds | None = None
    """The whole step under it. If unset: it found no plan, or the plan is of an earlier release."""
    problem: str | None = None


class BundleReference(Value):
    """The bundle that predicted the costs."""

    name: str
    source: Source
    weights_sha256: str
    compute_mape: Annotated[float, Field(ge=0)]
    """Error of the compute network on held-out samples of its source: of the simulator where that is simulated."""
    communication_mape: Annotated[float, Field(ge=0)]
    """The same of the communication networks, the larger one."""
    measured_compute_mape: Annotated[float, Field(ge=0)] | None = None
    """Error of predicted compute times on measurements that the models were not fitted to. If unset: not known; then
    compute_mape holds against the simulator only."""
    measured_communication_mape: Annotated[float, Field(ge=0)] | None = None
    """The same of exchanges."""

    @classmethod
    def of(cls, manifest: BundleManifest, device: DeviceType) -> Self:
        """Name a bundle and its errors; measurements of another product than the device say nothing of it."""
        errors = {network.name: network.hold_out.mape for network in manifest.networks}
        measured = {name: manifest.measured_mape(name) if manifest.is_of(device) else None for name in errors}
        exchanges: tuple[NetworkName, NetworkName] = ("forward_communication", "backward_communication")
        of_exchanges = [error for name in exchanges if (error := measured[name]) is not None]
        return cls(
            name=manifest.name,
            source=manifest.source,
            weights_sha256=manifest.weights_sha256,
            compute_mape=errors["compute"],
            communication_mape=max(errors[name] for name in exchanges),
            measured_compute_mape=measured["compute"],
            measured_communication_mape=max(of_exchanges) if len(of_exchanges) == len(exchanges) else None,
        )


class SearchStatistics(Value):
    """How much the search did. Counts, not seconds: a plan is the same on every machine."""

    evaluations: Count
    """Devices whose cost the networks evaluated."""
    placements: Count
    """Complete placements tried."""
    levels: Count
    """Levels of the beam search."""
    improvements: Count
    """Steps of the local search that lowered the cost."""
    budget_exhausted: bool
    """Whether the work budget ended the search."""


class MovedTable(Value):
    """A table of which devices get rows or columns that they did not have."""

    name: str
    num_bytes: PositiveCount
    """Weights and optimizer state that they get, copies included."""


class IncumbentPlan(Value):
    """The plan in force when this one was made for the same tables, and what moves between the two."""

    plan_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Hash of its document. If unset: not known."""
    total_ms: Milliseconds
    """What it costs under this plan's request and cost models."""
    fits: bool
    """Whether it answers this plan's request: constraints and memory. Otherwise it is not a start of the search."""
    price_ms_per_gib: Annotated[float, Field(ge=0)] = 0.0
    """Milliseconds of a step that were given up for each GiB that does not move."""
    moved: tuple[MovedTable, ...] = ()
    """In the order of the request's tables. Empty: nothing moves."""

    @property
    def moved_bytes(self) -> int:
        """Weights and optimizer state that devices get."""
        return sum(table.num_bytes for table in self.moved)
