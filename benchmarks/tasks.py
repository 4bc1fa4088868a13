"""The task distribution of NeuroShard's paper (MLSys 2023), redrawn from what is published of it. Solves nothing.

The paper samples its tasks from the 856 tables of facebookresearch/dlrm_datasets: 100 tasks of 10 to 59 tables, each
with a dimension from {4, 8, ..., 128}, for 4 devices of 4 GB. Of those tables only sums are published here
(benchmarks/data): lookups, distinct rows, and the shares of both by hits per row in a batch of 65,536. The spread over
the tables is therefore assumed:

- rows: log-normal, cut off at 100 and 10 million;
- lookups per sample: log-normal, independent of the rows, scaled to the published sum;
- skew: row frequencies fall as 1 / rank ** exponent; the exponent grows with the rows, with a normal rest.

`python -m benchmarks.task_pool` fits the five free numbers to the published sums and shows how near they come.
The draws are the quantiles of each distribution in random order, so that a pool differs from its distribution in
nothing but the pairing.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, MemorySettings, PlanRequest
from neuroshard_api.documents.tables import Optimizer, Table, TableSet
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.memory_ledger import MemoryLedger
from neuroshard_costs.shards import FloatArray
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS

NUM_POOL_TABLES = 856
GLOBAL_BATCH_SIZE = 65_536
LEAST_BATCH_SIZE_PER_DEVICE = 512
LOOKUPS = 887_017_990  # of the pool in one batch, as published
DIMS = (4, 8, 16, 32, 64, 128)
NUM_TASKS = 100
FEWEST_TABLES, MOST_TABLES = 10, 59
MEMORY_BYTES = 4 * 10**9
ROOM = 1.25
RESERVE_FRACTION = 0.1  # stays as it is, so that tasks do
DEVICE_TYPE = "h100-80gb"
SEED = 2023
FEWEST_ROWS, MOST_ROWS = 100, 10_000_000
MOST_LOOKUPS_PER_SAMPLE = 200.0
RANDOM_WIDTHS = (16, 32, 64, 128)
LEAST_LOG_ROWS, MOST_LOG_ROWS = 2.0, 7.6
MOST_FILLED = 0.6
"""Share of all device memory that random tables take at the most; they have fewer rows beyond it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolShape:
    """The free numbers of the pool; the defaults are the fit's, rounded."""

    log10_rows: float = 5.716
    """Mean of the logarithm."""
    log10_rows_spread: float = 0.511
    """Standard deviation of the logarithm."""
    log_lookups_spread: float = 1.02
    """Standard deviation of the natural logarithm of the lookups per sample."""
    exponent: float = 0.854
    """Zipf exponent of a table of median rows."""
    exponent_per_row_spread: float = 0.275
    """What one standard deviation more rows adds to the exponent."""
    exponent_spread: float = 0.045
    """Standard deviation of the exponents of equal rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Tables without dimensions, one row each."""

    num_rows: FloatArray
    pooling_factor: FloatArray
    exponent: FloatArray


def draw_pool(shape: PoolShape | None = None, num_tables: int = NUM_POOL_TABLES) -> Pool:
    """Return the pool; fewer tables than NUM_POOL_TABLES stand for the whole with an equal share of the lookups."""
    shape = shape or PoolShape()
    generator = np.random.default_rng(SEED)
    quantiles = np.array([NormalDist().inv_cdf((index + 0.5) / num_tables) for index in range(num_tables)])
    rows, lookups, rest = (generator.permutation(quantiles) for _ in range(3))
    mean_lookups = LOOKUPS / NUM_POOL_TABLES / GLOBAL_BATCH_SIZE
    spread = np.exp(shape.log_lookups_spread * lookups)
    return Pool(
        num_rows=np.clip(np.round(10 ** (shape.log10_rows + shape.log10_rows_spread * rows)), FEWEST_ROWS, MOST_ROWS),
        pooling_factor=np.minimum(spread * mean_lookups / spread.mean(), MOST_LOOKUPS_PER_SAMPLE),
        exponent=np.clip(
            shape.exponent + shape.exponent_per_row_spread * rows + shape.exponent_spread * rest, 0.0, 2.0
        ),
    )


def sampled_tables(pool: Pool, num_tables: int, generator: np.random.Generator, *, name: str) -> TableSet:
    """Return a set of tables of the pool, each with a dimension of its own; larger sets than the pool repeat tables."""
    chosen = generator.choice(len(pool.num_rows), num_tables, replace=num_tables > len(pool.num_rows))
    dims = generator.choice(DIMS, num_tables)
    return TableSet(
        name=name,
        global_batch_size=GLOBAL_BATCH_SIZE,
        tables=tuple(
            Table(
                name=f"t{position}",
                num_embeddings=int(pool.num_rows[table]),
                embedding_dim=int(dim),
                pooling_factor=float(pool.pooling_factor[table]),
                zipf_exponent=float(pool.exponent[table]),
            )
            for position, (table, dim) in enumerate(zip(chosen.tolist(), dims.tolist(), strict=True))
        ),
    )


def random_tables(num_tables: int, num_devices: int, generator: np.random.Generator, *, name: str) -> TableSet:
    """Return tables of 100 to 40 million rows, log-uniform, and 16 to 128 columns; fewer rows if they fill devices."""
    rows = 10 ** generator.uniform(LEAST_LOG_ROWS, MOST_LOG_ROWS, num_tables)
    widths = generator.choice(RANDOM_WIDTHS, num_tables)
    rows *= min(1.0, MOST_FILLED * num_devices * 80e9 / float(4 * (rows * widths).sum()))
    pooling, exponents = generator.lognormal(1.0, 1.2, num_tables), generator.uniform(0.0, 1.3, num_tables)
    return TableSet(
        name=name,
        tables=tuple(
            Table(
                name=f"t{position}",
                num_embeddings=max(1, int(rows[position])),
                embedding_dim=int(widths[position]),
                pooling_factor=float(min(pooling[position], MOST_LOOKUPS_PER_SAMPLE)),
                zipf_exponent=float(exponents[position]),
            )
            for position in range(num_tables)
        ),
    )


def task_tables() -> list[TableSet]:
    """Return the tables of the 100 tasks."""
    pool = draw_pool()
    generator = np.random.default_rng(SEED)
    return [
        sampled_tables(pool, int(generator.integers(FEWEST_TABLES, MOST_TABLES + 1)), generator, name=f"task {task}")
        for task in range(NUM_TASKS)
    ]


def weights_only_request(tables: TableSet, num_devices: int) -> PlanRequest:
    """Return a task under the paper's memory rule: 4 GB hold the FP32 weights, nothing else counts.

    The ledger always counts pooled embeddings and inputs too. They get room of their own: received embeddings in
    full, the embeddings and inputs of the shards in an even share per device. A plan with more than its share of
    them on a device has that much less than 4 GB for the weights there.
    """
    draft = _request(tables, num_devices, optimizer=Optimizer.SGD, memory=MemorySettings(reserve_fraction=0.0))
    ledger = MemoryLedger(draft)
    index = np.arange(len(tables.tables))
    columns = np.array([table.embedding_dim for table in tables.tables])
    beside = int((ledger.activation_bytes(index, columns) + ledger.input_bytes(index) + ledger.sort_bytes(index)).sum())
    return _limited(draft, MEMORY_BYTES + ledger.fixed_bytes + -(-beside // num_devices))


def full_ledger_request(tables: TableSet, num_devices: int) -> PlanRequest:
    """Return a task where 4 GB hold all that training needs: row-wise Adagrad's state, embeddings, inputs, reserve."""
    return _limited(_request(tables, num_devices), MEMORY_BYTES)


def roomy_request(tables: TableSet, num_devices: int, *, devices_per_node: int) -> PlanRequest:
    """Return a task of any size whose memory neither starves nor idles: ROOM times an even share, but 4 GB at least."""
    draft = _request(tables, num_devices, devices_per_node=devices_per_node)
    ledger = MemoryLedger(draft)
    rows = np.array([table.num_embeddings for table in tables.tables])
    columns = np.array([table.embedding_dim for table in tables.tables])
    share = int(ledger.shard_bytes(np.arange(len(rows)), rows, columns).sum()) // num_devices
    limit = int((ROOM * share + ledger.tensor_bytes) / (1 - RESERVE_FRACTION))
    return _limited(draft, max(MEMORY_BYTES, limit))


def workload_request(tables: TableSet, num_devices: int, *, devices_per_node: int) -> PlanRequest:
    """Return a request with the whole memory of the device, trained as the set says."""
    return _request(tables, num_devices, devices_per_node=devices_per_node, optimizer=tables.optimizer)


def _request(
    tables: TableSet,
    num_devices: int,
    *,
    devices_per_node: int | None = None,
    optimizer: Optimizer | None = None,
    memory: MemorySettings | None = None,
) -> PlanRequest:
    per_node = devices_per_node or num_devices
    return PlanRequest(
        tables=tables,
        topology=preset(DEVICE_TYPE).topology(num_nodes=num_devices // per_node, devices_per_node=per_node),
        batch_size_per_device=max(
            LEAST_BATCH_SIZE_PER_DEVICE, (tables.global_batch_size or GLOBAL_BATCH_SIZE) // num_devices
        ),
        optimizer=optimizer or Optimizer.ROWWISE_ADAGRAD,
        memory=memory or MemorySettings(reserve_fraction=RESERVE_FRACTION),
    )


def by_columns(request: PlanRequest) -> PlanRequest:
    """Return the request of tables whole or cut by columns, as the published algorithm cuts them."""
    return _of_types(request, BY_COLUMNS)


def of_default_types(request: PlanRequest) -> PlanRequest:
    """Return the request that names no sharding types."""
    return _of_types(request, None)


def _of_types(request: PlanRequest, types: tuple[ShardingType, ...] | None) -> PlanRequest:
    constraints = request.constraints.model_copy(update={"sharding_types": types})
    return request.model_copy(update={"constraints": constraints})


def _limited(request: PlanRequest, memory_bytes: int) -> PlanRequest:
    limits = Constraints(max_memory_bytes_per_device=memory_bytes)
    return by_columns(request.model_copy(update={"constraints": limits}))
