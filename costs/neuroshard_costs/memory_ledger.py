"""The memory ledger: what a shard, and a device as a whole, needs. All in bytes.

A device needs most at one of four moments of a step:

=========  ============================================================================================================
moment     what is alive besides weights, gradients and optimizer state
=========  ============================================================================================================
exchange   the samples of the device and the lookups of its shards, in the copies that the exchange of indices makes
vectors    returned vectors before and after their all-to-all, one more copy of the larger of the two, and dense
           gradients of copies as their kernel returns them
kernels    gradients of returned vectors on the device of the shard, and the buffers in which the kernels sort lookups
dense      the dense part's activations and temporary tensors, received embeddings included
=========  ============================================================================================================

The third copy: TorchRec's All2All_Pooled_Req copies what it sends next to what it receives, All2All_Pooled_Wait joins
what was received, and on the way back it reorders gradients before they are sent (comm_ops.py of TorchRec 1.9). No
gradient is there while vectors travel, and no vector is left before the kernels run backward.

Of a table that is cut by rows a device has the pooled embeddings of all samples, as of every other, and an even part
of the lookups: the mean block's, where the cost is the fullest's. A replicated table serves the device's own samples,
and its gradients have all rows: in the buckets that TorchRec's DistributedDataParallel keeps from step to step, and at
the lookups once more as the kernel returns them.

A table in host memory has its weights there, and state of one number per column; state of one number per row is on the
device, and so are the rows that are cached, with 16 bytes for each slot and 4 for each row of the table.

Without a pipeline the moments follow each other. A pipeline exchanges the next batch meanwhile, whose copies are then
alive at all four. The search adds up shards one by one and counts the exchange with the larger of the two moments of
the shard, and both vectors twice, those that the device returns and those that it receives, which is never less.

What the allocator and the driver need besides is in ``memory_reserve``.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType
from neuroshard_api.documents.plan_parts import DeviceMemory, TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_api.sharding.kinds import ComputeKernel, Family, num_row_parts
from numpy.typing import NDArray

from neuroshard_costs.exchanges import index_bytes, lookup_bytes
from neuroshard_costs.host_tables import CACHED, KERNELS, ON_DEVICE, kernel_code
from neuroshard_costs.memory_reserve import Reserve, least_memory
from neuroshard_costs.shards import (
    BYTES_PER_ELEMENT,
    COLUMNS,
    FAMILIES,
    GRADIENT_BYTES,
    LENGTH_BYTES,
    REPLICATED,
    FloatArray,
    IndexArray,
    state_row_bytes,
)

OFFSET_BYTES = 4 + 8  # of the batch in work also offsets: of 32 bits in KeyedJaggedTensor, of 64 in FBGEMM's autograd
SORT_BYTES = 40
"""Temporary bytes per lookup of FBGEMM's backward kernels on a GPU, at their highest: linear indices before and after
the sort (2 x 8), infos before and after (2 x 4), runs (8), their lengths (4) and cumulated lengths (4). The sort's own
second copy (8 + 4) is freed before the runs are allocated. Source: transpose_embedding_input.cu of FBGEMM."""
LEAST_EXCHANGED = 3  # copies of the lookups on a device while a batch is exchanged
KERNEL_AND_BUCKET = 2  # copies of a dense gradient while it is computed: gradient_as_bucket_view, but kernels return it
CACHE_WAYS = 32  # slots of a set of FBGEMM's cache, which has whole sets
SLOT_BYTES = 8 + 8  # of the row's number and of when it was used, beside the row
MAP_BYTES = 4  # per row of a cached table: cache_index_table_map of FBGEMM, a whole number of 32 bits


class _LookupCopies(NamedTuple):
    """Copies of a batch's lookups on a device.

    Counted by torch's allocator in TorchRec 1.9's TrainPipelineBase and TrainPipelineSparseDist
    (tests/trainer/measure/test_live_copies.py).
    """

    exchanged: int
    """Of those of its shards, while a batch is exchanged: as received, in the order of the lookups, and those of the
    batch before, which SplitTableBatchedEmbeddingBagsCodegen.forward keeps until it is called again."""
    kept: int
    """Of those of its shards afterwards: what the kernels keep, and with a pipeline what is received meanwhile."""
    local: int
    """Of its own samples, while a batch is exchanged: batches in flight, and what is sent."""
    local_at_vectors: int
    """Of its own samples, while vectors travel: TorchRec frees what it sent with the last of them."""
    local_later: int
    """Of its own samples afterwards."""

    @classmethod
    def of(cls, num_batches: int, *, is_exchanged: bool) -> "_LookupCopies":
        """Return the copies with that many batches in flight; 1 means no pipeline."""
        if not is_exchanged:
            num_distributed = max(1, num_batches - 1)
            return cls(num_distributed, num_distributed, num_batches, num_batches, num_batches)
        if num_batches == 1:
            return cls(LEAST_EXCHANGED, 1, 2, 1, 1)
        # The newest batch is still being copied to the device; the next one's lookups are sent during this one's step.
        distributed = max(num_batches - 1, 2)
        return cls(max(num_batches, LEAST_EXCHANGED), distributed, num_batches + 2, num_batches + 2, num_batches + 1)


class MemoryLedger:
    """Bytes by purpose, for the request's training settings; exact where all together are less than 2^63."""

    def __init__(self, request: PlanRequest) -> None:
        self._request = request
        tables = request.tables.tables
        self._element_bytes: IndexArray = np.array([BYTES_PER_ELEMENT[table.data_type] for table in tables])
        # On a CPU the kernels sort otherwise, in memory of their own that torch's allocator does not see.
        self._sort_bytes_per_lookup = 0 if request.topology.device.is_cpu else SORT_BYTES
        num_features: IndexArray = np.array([table.num_features for table in tables])
        num_vectors = [table.num_vectors for table in tables]
        pooling_factors = [table.pooling_factor for table in tables]
        num_samples = _by_family(request.global_batch_size, replicated=request.batch_size_per_device)
        num_parts = np.array([[num_row_parts(family, request.topology)] for family in FAMILIES])
        self._num_lookups: IndexArray = -(-_rounded(num_samples, pooling_factors) // num_parts)
        """[families, tables] of a shard, where rows are looked up evenly."""
        is_exchanged = request.topology.num_devices > 1
        num_batches = request.num_batches_in_flight
        num_lists = num_samples * num_features
        bytes_per_lookup = lookup_bytes(tables)
        each_batch = index_bytes(self._num_lookups, num_lists, bytes_per_lookup)
        local = (bytes_per_lookup * _rounded(request.batch_size_per_device, pooling_factors)).sum(dtype=np.float64)
        local += LENGTH_BYTES * request.batch_size_per_device * float(num_features.sum())
        copies = _LookupCopies.of(num_batches, is_exchanged=is_exchanged)
        num_copies = _by_family(copies.exchanged, replicated=1)  # a device's own samples are not exchanged
        self._input_bytes: IndexArray = num_copies * each_batch + OFFSET_BYTES * num_lists
        self._freed_input_bytes: IndexArray = (num_copies - _by_family(copies.kept, replicated=1)) * each_batch
        dense_input_bytes = 0 if request.dense is None else num_batches * request.dense.input_bytes
        self.local_input_bytes = int(copies.local * local) + dense_input_bytes
        """A device's own samples: lookups of all tables, and dense features where they were counted."""
        self._freed_local_bytes = int((copies.local - copies.local_at_vectors) * local)
        self._freed_local_later_bytes = int((copies.local - copies.local_later) * local)
        output_bytes = BYTES_PER_ELEMENT[request.memory.output_data_type]
        # Where the wire has a type of its own, what is sent and what is received is one more copy.
        wire_bytes = is_exchanged * _converted_bytes(request)
        columns = np.array([table.embedding_dim for table in tables], dtype=np.int64)
        num_returned: IndexArray = np.where(
            # A block of a sequence's rows returns those of its own lookups; of bags, partial sums of all.
            [table.is_sequence for table in tables],
            self._num_lookups,
            _rounded(num_samples, num_vectors),
        )
        self._vector_bytes: IndexArray = output_bytes * num_returned
        """[families, tables] of a column's values in the vectors that a shard returns for the global batch."""
        self._wire_bytes: IndexArray = wire_bytes * num_returned
        num_received = int((_rounded(request.batch_size_per_device, num_vectors) * columns).sum()) * is_exchanged
        self._received_bytes = output_bytes * num_received
        self._received_wire_bytes = wire_bytes * num_received
        device_bytes = request.topology.device.memory_bytes
        limit = request.constraints.max_memory_bytes_per_device
        self.capacity_bytes = device_bytes if limit is None else min(limit, device_bytes)
        """What a device may hold, all purposes together."""
        self._reserve = Reserve.of(request, capacity_bytes=self.capacity_bytes)
        self._working_bytes = request.dense_working_bytes
        self._resident_bytes = request.dense_bytes - self._working_bytes + request.carried_gradient_bytes

    @cached_property
    def tensor_bytes(self) -> int:
        """What the tensors of every device need whatever the plan, with their gaps in the allocator."""
        # After the exchange a device holds fewer of its samples, and either pooled embeddings or the dense part's work.
        after_exchange = max(
            2 * self._received_bytes + self._received_wire_bytes - self._freed_local_bytes,
            self._working_bytes - self._freed_local_later_bytes,
        )
        moving = self.local_input_bytes + max(0, after_exchange)
        managed_collision = self._request.memory.managed_collision_bytes or 0
        return self._resident_bytes + managed_collision + moving + self._reserve.gap_bytes(moving)

    @cached_property
    def fixed_bytes(self) -> int:
        """What every device needs whatever the plan: its tensors, and the fixed part of the reserve."""
        return self._reserve.fixed_bytes + self.tensor_bytes

    @cached_property
    def shard_capacity_bytes(self) -> int:
        """What is left for shards; not positive where nothing fits."""
        return self.capacity_bytes - self.fixed_bytes

    def least_device_bytes(self, shard_bytes: int) -> int:
        """Return the least memory of a device that leaves so much for shards."""
        return least_memory(self._request, tensor_bytes=self.tensor_bytes + shard_bytes)

    @cached_property
    def whole(self) -> tuple[IndexArray, IndexArray, IndexArray]:
        """Positions, rows, and columns of whole tables, [tables] each, of which the methods return bytes."""
        tables = self._request.tables.tables
        rows, columns = ([getattr(each, name) for each in tables] for name in ("num_embeddings", "embedding_dim"))
        return np.arange(len(tables)), np.array(rows), np.array(columns)

    @cached_property
    def least_bytes(self) -> IndexArray:
        """[tables] weights and optimizer state, which every sharding type and kernel has once on a device or a host."""
        return self.weights_bytes(*self.whole) + self.optimizer_state_bytes(*self.whole)

    @property
    def host_capacity_bytes(self) -> int:
        """What the tables of a node's devices may have in host memory together."""
        host = self._request.topology.host_memory
        return 0 if host is None else host.bytes_per_node

    @cached_property
    def _widest(self) -> IndexArray:
        """[tables] columns of the widest table of the same data type that may be cached."""
        request = self._request
        widest: dict[DataType, int] = {}
        for table in request.tables.tables:
            if ComputeKernel.FUSED_UVM_CACHING in (request.constraints.compute_kernels_of(table.name) or KERNELS):
                widest[table.data_type] = max(widest.get(table.data_type, 0), table.embedding_dim)
        return np.array([widest.get(table.data_type, 0) for table in request.tables.tables], dtype=np.int64)

    @cached_property
    def _searched_bytes_per_column(self) -> IndexArray:
        """[families, tables] of vectors, next to the sort buffers, that the search counts.

        The larger of what the exchange of vectors and the kernels need is convex in a shard's columns. The line through
        no columns and all of them is never below it, and the search needs a line.
        """
        columns = np.array([table.embedding_dim for table in self._request.tables.tables], dtype=np.int64)
        in_exchange = self._vector_bytes + self._wire_bytes
        above_sort = in_exchange + (-self._sort_bytes_per_lookup * self._num_lookups) // columns
        size: IndexArray = self._vector_bytes + np.clip(above_sort + 1, 0, in_exchange)
        return size

    @cached_property
    def _optimizers(self) -> Sequence[Optimizer]:
        return [self._request.optimizer_of(table) for table in self._request.tables.tables]

    @cached_property
    def _state_row_bytes(self) -> IndexArray:
        """[tables, 2] state of a row without columns, and of each of its columns."""
        found = np.array([[state_row_bytes(each, columns) for columns in (0, 1)] for each in self._optimizers])
        return np.diff(found, prepend=0)

    @cached_property
    def _is_rowwise(self) -> NDArray[np.bool_]:
        """[tables] whether state is one number for each row."""
        return np.array([each is Optimizer.ROWWISE_ADAGRAD for each in self._optimizers])

    def weights_bytes(self, tables: IndexArray, num_rows: IndexArray, num_columns: IndexArray) -> IndexArray:
        """Return the weights of shards, [n], on the device or on its host."""
        return num_rows * num_columns * self._element_bytes[tables]

    def optimizer_state_bytes(self, tables: IndexArray, num_rows: IndexArray, num_columns: IndexArray) -> IndexArray:
        """Return the optimizer state of shards, [n]; each column slice keeps row-wise state of its own."""
        of_row, of_column = self._state_row_bytes[tables].T
        size: IndexArray = num_rows * (of_row + of_column * num_columns)
        return size

    def host_bytes(self, tables: IndexArray, num_rows: IndexArray, num_columns: IndexArray) -> IndexArray:
        """Return the host memory of shards, [n], if they are stored there: row-wise state stays on the device."""
        state = np.where(self._is_rowwise[tables], 0, self.optimizer_state_bytes(tables, num_rows, num_columns))
        return self.weights_bytes(tables, num_rows, num_columns) + state

    def cache_bytes(
        self,
        tables: IndexArray,
        num_rows: IndexArray,
        load_factors: FloatArray,
        slot_columns: IndexArray | None = None,
    ) -> IndexArray:
        """Return the caches of shards in host memory and their maps, [n].

        Args:
            tables: [n] positions in the request's table set.
            num_rows: [n]
            load_factors: [n] rows of the cache over these.
            slot_columns: [n] columns of a slot: of the widest cached shard of a kernel call. If unset: of the widest
                table with the same data type that may be cached, which is never less.
        """
        slots = -(-np.ceil(load_factors * num_rows).astype(np.int64) // CACHE_WAYS) * CACHE_WAYS
        columns = self._widest[tables] if slot_columns is None else slot_columns
        size: IndexArray = slots * (columns * self._element_bytes[tables] + SLOT_BYTES) + MAP_BYTES * num_rows
        return size

    def on_host(
        self,
        tables: IndexArray,
        num_rows: IndexArray,
        num_columns: IndexArray,
        kernels: IndexArray,
        load_factors: FloatArray,
    ) -> tuple[IndexArray, IndexArray]:
        """Return [n] the device memory that shards need less for their kernels, and [n] what they have on the host."""
        host = np.where(kernels != ON_DEVICE, self.host_bytes(tables, num_rows, num_columns), 0)
        cache = np.where(kernels == CACHED, self.cache_bytes(tables, num_rows, load_factors), 0)
        return host - cache, host

    def activation_bytes(
        self, tables: IndexArray, num_columns: IndexArray, families: IndexArray | int = COLUMNS
    ) -> IndexArray:
        """Return the vectors that shards return, [n], in the two copies that there may be before they are exchanged."""
        size: IndexArray = num_columns * (2 * self._vector_bytes + self._wire_bytes)[families, tables]
        return size

    def vector_bytes(
        self, tables: IndexArray, num_columns: IndexArray, families: IndexArray | int = COLUMNS
    ) -> IndexArray:
        """Return one copy of the vectors that shards return, or of their gradients, [n]."""
        size: IndexArray = num_columns * self._vector_bytes[families, tables]
        return size

    def input_bytes(self, tables: IndexArray, families: IndexArray | int = COLUMNS) -> IndexArray:
        """Return the indices, lengths and offsets of shards while a batch is exchanged, [n]."""
        size: IndexArray = self._input_bytes[families, tables]
        return size

    def sort_bytes(self, tables: IndexArray, families: IndexArray | int = COLUMNS) -> IndexArray:
        """Return the temporary memory in which the backward kernels sort the lookups of shards, [n]."""
        size: IndexArray = self._sort_bytes_per_lookup * self._num_lookups[families, tables]
        return size

    def gradient_bytes(self, num_rows: IndexArray, num_columns: IndexArray, families: IndexArray | int) -> IndexArray:
        """Return the buckets of dense gradients of shards, [n]: 0 but for replicated tables."""
        return np.where(np.asarray(families) == REPLICATED, GRADIENT_BYTES * num_rows * num_columns, 0)

    def shard_bytes(
        self, tables: IndexArray, num_rows: IndexArray, num_columns: IndexArray, families: IndexArray | int = COLUMNS
    ) -> IndexArray:
        """Return all that shards of these families need on their device, with gaps in the allocator, [n]."""
        gradients = self.gradient_bytes(num_rows, num_columns, families)
        moving: IndexArray = (
            self.input_bytes(tables, families)
            + self.sort_bytes(tables, families)
            + num_columns * self._searched_bytes_per_column[families, tables]
            + (KERNEL_AND_BUCKET - 1) * gradients
        )
        size: IndexArray = (
            self.weights_bytes(tables, num_rows, num_columns)
            + self.optimizer_state_bytes(tables, num_rows, num_columns)
            + gradients
            + self._reserve.with_gaps(moving)
        )
        return size

    def devices(
        self,
        tables: IndexArray,
        num_rows: IndexArray,
        num_columns: IndexArray,
        device: IndexArray,
        families: IndexArray | int = COLUMNS,
        *,
        kernels: IndexArray | int = ON_DEVICE,
        load_factors: FloatArray | float = 0.0,
    ) -> Sequence[DeviceMemory]:
        """Return the ledger of every device under a placement of n shards, at the moment when it needs most."""
        request = self._request
        is_on_host = np.asarray(kernels) != ON_DEVICE
        weights = self.weights_bytes(tables, num_rows, num_columns)
        state = self.optimizer_state_bytes(tables, num_rows, num_columns)
        is_state_on_host = is_on_host & ~self._is_rowwise[tables]
        cached = np.broadcast_to(np.asarray(kernels) == CACHED, tables.shape)
        slot_columns = _widest_of_call(
            np.where(cached, num_columns, 0),
            device,
            np.broadcast_to(families, tables.shape),
            self._element_bytes[tables],
        )
        factors = np.broadcast_to(np.asarray(load_factors, dtype=np.float64), tables.shape)
        cache = np.where(cached, self.cache_bytes(tables, num_rows, factors, slot_columns), 0)

        def per_device(shard_bytes: IndexArray) -> IndexArray:
            totals = np.zeros(request.topology.num_devices, dtype=np.int64)
            np.add.at(totals, device, shard_bytes)
            return totals

        columns = zip(
            per_device(np.where(is_on_host, 0, weights)),
            per_device(np.where(is_state_on_host, 0, state)),
            per_device(self.vector_bytes(tables, num_columns, families)),
            per_device(num_columns * self._wire_bytes[families, tables]),
            per_device(self.input_bytes(tables, families)),
            per_device(self._freed_input_bytes[families, tables]),
            per_device(self.sort_bytes(tables, families)),
            per_device(self.gradient_bytes(num_rows, num_columns, families)),
            per_device(cache),
            per_device(np.where(is_on_host, weights, 0) + np.where(is_state_on_host, state, 0)),
            strict=True,
        )
        return [self._highest(*map(int, sums)) for sums in columns]

    def _highest(  # noqa: PLR0917 - the sums of one device
        self,
        weights: int,
        state: int,
        vectors: int,
        wire: int,
        inputs: int,
        freed_inputs: int,
        sort: int,
        gradients: int,
        cache: int,
        host: int,
    ) -> DeviceMemory:
        """Return a device's ledger at the moment when its sum is highest; of equals at the first."""

        def moment(  # noqa: PLR0917
            inputs: int, local_inputs: int, activation: int, sort: int, working: int, at_lookups: int = 0
        ) -> DeviceMemory:
            moving = inputs + local_inputs + activation + sort + working + at_lookups
            return DeviceMemory(
                weights_bytes=weights,
                optimizer_state_bytes=state,
                activation_bytes=activation,
                input_bytes=inputs,
                local_input_bytes=local_inputs,
                sort_bytes=sort,
                gradient_bytes=gradients + at_lookups,
                cache_bytes=cache,
                host_bytes=host,
                dense_bytes=self._resident_bytes + working,
                managed_collision_bytes=self._request.memory.managed_collision_bytes,
                reserve_bytes=self._reserve.fixed_bytes + self._reserve.gap_bytes(moving),
                capacity_bytes=self.capacity_bytes,
            )

        kept_inputs, later = inputs - freed_inputs, self.local_input_bytes - self._freed_local_later_bytes
        received = self._received_bytes
        # Autograd runs the lookups of copies while the gradients of other tables travel.
        at_lookups = (KERNEL_AND_BUCKET - 1) * gradients
        # A single device has no all-to-all: its vectors meet their gradients.
        travelling = vectors + received + max(vectors, received) + wire + self._received_wire_bytes
        moments = (
            moment(kept_inputs, self.local_input_bytes - self._freed_local_bytes, travelling, 0, 0, at_lookups),
            moment(kept_inputs, later, vectors, sort, 0, at_lookups),
            moment(kept_inputs, later, 0, 0, self._working_bytes),
            moment(inputs, self.local_input_bytes, 0, 0, 0),
        )
        return max(moments, key=lambda each: each.used_bytes)


def _widest_of_call(
    num_columns: IndexArray, device: IndexArray, families: IndexArray, element_bytes: IndexArray
) -> IndexArray:
    """Return [n] the most columns of any of n shards in the same kernel call on the same device."""
    _, call = np.unique(np.stack([device, families, element_bytes], axis=1), axis=0, return_inverse=True)
    widest = np.zeros(int(call.max(initial=0)) + 1, dtype=np.int64)
    np.maximum.at(widest, call, num_columns)
    found: IndexArray = widest[call]
    return found


def _converted_bytes(request: PlanRequest) -> int:
    """Return the bytes of a value in the copies that are sent and received, where its type on the wire is another."""
    if request.wire is None:
        return 0
    narrow = [each for each in (request.wire.forward, request.wire.backward) if each is not WireType.FP32]
    return max(map(_copied_bytes, narrow), default=0)


def _copied_bytes(kind: WireType) -> int:
    """Return the bytes of a value in what a codec makes of it, rounded up."""
    form = WIRE_FORMATS[kind]
    if form.kept_values is None:
        return math.ceil(form.bytes_per_value)
    # The magnitudes of all values are there while the largest are chosen, with an index of 8 bytes for each of those.
    return BYTES_PER_ELEMENT[DataType.FP32] + math.ceil(form.bytes_per_value + 8 * form.kept_values / form.group_values)


def _by_family(number: int, *, replicated: int) -> IndexArray:
    """Return [families, 1] a number that is another one where tables are replicated."""
    numbers = np.full((len(FAMILIES), 1), number, dtype=np.int64)
    numbers[REPLICATED] = replicated
    return numbers


def _rounded(num_samples: IndexArray | int, pooling_factors: Sequence[float]) -> IndexArray:
    """Return the lookups of batches [...] of this many samples by table, [..., tables]."""
    lookups: IndexArray = np.rint(num_samples * np.array(pooling_factors)).astype(np.int64)
    return lookups


def tables_memory(ledger: MemoryLedger, tables: Sequence[TablePlacement]) -> tuple[DeviceMemory, ...]:
    """Return the ledger of every device under these tables, which are in the request's order."""
    shards: list[tuple[int, int, int, int, int, int]] = []
    for index, table in enumerate(tables):
        family, kernel = FAMILIES.index(Family.of(table.sharding_type)), kernel_code(table)
        shards += [(index, shard.num_rows, shard.num_columns, family, shard.device, kernel) for shard in table.shards]
    position, num_rows, num_columns, families, devices, kernels = np.array(shards, dtype=np.int64).T
    load_factors = np.array([table.cache_load_factor or 0.0 for table in tables])[position]
    return tuple(
        ledger.devices(position, num_rows, num_columns, devices, families, kernels=kernels, load_factors=load_factors)
    )
