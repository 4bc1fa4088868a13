"""Which table sets are measured: half of them from the job's own tables, half spread widely. Times nothing.

====================  ==================================================  ============================================
quantity              wide set                                            set of the job's tables
====================  ==================================================  ============================================
tables                log-uniform 1..max_tables                           log-uniform 1..the job's number, max_tables
global batch          log-uniform within batch_sizes                      the job's
optimizer             uniform over optimizers                             the same
data type             one per set, the first in 80 %                      each table's own, if it can be timed
rows                  log-uniform 4..max_rows                             the table's
columns               one of 4, 8, 16, ... 256 per set in half of them,   the table's; 30 % of tables a slice of half,
                      else log-uniform multiples of 4, 4..256             a quarter or an eighth of them
pooling factor        60 % exactly 1, else log-uniform 0.2..50            the table's
reuse                 Zipf exponent uniform 0..1.5                        the table's
repeated lists        none                                                as counted; left out of half of the sets that
                                                                          have a table of a duplication group
====================  ==================================================  ============================================

Tables that would take a wide set over max_bytes, or a set of the job's over max_job_bytes, get fewer rows. Wide sets
below min_lookups get a larger batch; those over max_lookups get a smaller pooling factor or, where that would be below
the least, a smaller batch. A set of the job's tables keeps its batch and loses tables instead.
"""

from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.records import ComputeSample
from neuroshard_api.documents.tables import DataType, Optimizer, Table, TableSet
from neuroshard_costs.reuse.repeats import without_repeats
from neuroshard_costs.reuse.shard_arrays import zipf_exponent
from neuroshard_costs.shards import BYTES_PER_ELEMENT

MIN_ROWS = 4
MIN_COLUMNS, MAX_COLUMNS = 4, 256
MIN_POOLING, MAX_POOLING = 0.2, 50.0
MAX_ZIPF_EXPONENT = 1.5

_JOB_SHARE = 0.5
_SLICED_SHARE = 0.3
_DISTINCT_SHARE = 0.5
_ONE_HOT_SHARE = 0.6
_USUAL_TYPE_SHARE = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSpace:
    """What is drawn from."""

    batch_sizes: tuple[int, int]
    """Smallest and largest global batch of wide sets."""
    max_tables: int
    max_rows: float
    """Of wide sets."""
    max_bytes: int
    """Most weights of a wide set."""
    max_lookups: int
    """Most lookups of a call: bounds the time that a sample takes."""
    min_lookups: int = 0
    """Fewest lookups of a wide set's call, as far as the largest batch allows."""
    optimizers: tuple[Optimizer, ...] = (Optimizer.ROWWISE_ADAGRAD,)
    data_types: tuple[DataType, ...] = (DataType.FP32,)
    """The usual one first."""
    refused: frozenset[tuple[Optimizer, DataType]] = frozenset()
    """Optimizers with weights of a type that the device does not train; such a set has the usual type."""
    job: TableSet | None = None
    """The job's tables. None: wide sets only."""
    job_batch_size: int = 65_536
    """Global batch of sets of the job's tables."""
    max_job_bytes: int = 2**33
    """Most weights of a set of the job's tables: whole tables miss caches and page tables more often than cut ones."""


CPU_SPACE = SampleSpace(batch_sizes=(256, 32_768), max_tables=24, max_rows=4e6, max_bytes=2**26, max_lookups=2**17)
"""Sets that a core works through in milliseconds, so that seconds give a hundred records."""

GPU_SPACE = SampleSpace(
    batch_sizes=(32_768, 262_144),
    max_tables=48,
    max_rows=1e8,
    max_bytes=2**33,
    max_lookups=2**24,
    min_lookups=2**20,
)
"""Sets that keep a GPU busy for some 0.1 ms or longer, within 8 GiB."""


def draw_compute_sample(space: SampleSpace, random: np.random.Generator) -> ComputeSample:
    """Draw one table set."""
    job = space.job if space.job is not None and random.random() < _JOB_SHARE else None
    sample = _wide_sample(space, random) if job is None else _job_sample(space, job, random)
    if not any((sample.optimizer, table.data_type) in space.refused for table in sample.tables):
        return sample
    usual = {"data_type": space.data_types[0]}
    tables = [
        table.model_copy(update=usual) if (sample.optimizer, table.data_type) in space.refused else table
        for table in sample.tables
    ]
    most = space.max_bytes if job is None else space.max_job_bytes
    return sample.model_copy(update={"tables": _within(tables, most)})


def _wide_sample(space: SampleSpace, random: np.random.Generator) -> ComputeSample:
    count = round(_log_uniform(random, 1, space.max_tables))
    batch_size = round(_log_uniform(random, *space.batch_sizes))
    usual = random.random() < _USUAL_TYPE_SHARE
    data_type = space.data_types[0] if usual else space.data_types[random.integers(len(space.data_types))]
    one_width = random.random() < 0.5  # noqa: PLR2004 - see the table above
    width = 2 ** int(random.integers(2, 9))
    pooling = [
        1.0 if random.random() < _ONE_HOT_SHARE else _log_uniform(random, MIN_POOLING, MAX_POOLING)
        for _ in range(count)
    ]
    batch_size = max(batch_size, min(space.batch_sizes[1], int(space.min_lookups / sum(pooling))))
    surplus = batch_size * sum(pooling) / space.max_lookups
    if surplus > 1:
        pooling = [1.0 if factor == 1 else max(factor / surplus, MIN_POOLING) for factor in pooling]
        batch_size = min(batch_size, int(space.max_lookups / sum(pooling)))
    tables = [
        Table(
            name=f"t{index}",
            num_embeddings=round(_log_uniform(random, MIN_ROWS, space.max_rows)),
            embedding_dim=width if one_width else 4 * round(_log_uniform(random, 1, MAX_COLUMNS / 4)),
            pooling_factor=factor,
            data_type=data_type,
            zipf_exponent=float(random.uniform(0, MAX_ZIPF_EXPONENT)),
        )
        for index, factor in enumerate(pooling)
    ]
    return ComputeSample(
        tables=_within(tables, space.max_bytes), batch_size=batch_size, optimizer=_optimizer(space, random)
    )


def _job_sample(space: SampleSpace, job: TableSet, random: np.random.Generator) -> ComputeSample:
    count = round(_log_uniform(random, 1, min(len(job.tables), space.max_tables)))
    tables: list[Table] = []
    factors: list[float] = []
    lookups = 0.0
    for index in random.choice(len(job.tables), count, replace=False):
        table = job.tables[index]
        lookups += space.job_batch_size * table.pooling_factor
        if tables and lookups > space.max_lookups:
            break
        tables.append(_sliced(_timeable(table, job, space), random))
        factors.append((table.duplication_factor or 1.0) if table.duplication_group else 1.0)
    if max(factors) > 1 and random.random() < _DISTINCT_SHARE:
        tables = [without_repeats(table, factor) for table, factor in zip(tables, factors, strict=True)]
    return ComputeSample(
        tables=_within(tables, space.max_job_bytes),
        batch_size=space.job_batch_size,
        optimizer=_optimizer(space, random),
        reuse_batch_size=job.reuse_batch_size,
    )


def _timeable(table: Table, job: TableSet, space: SampleSpace) -> Table:
    """Return the table with all that the set says of it, in a type that can be timed."""
    unused = ("id_rule", "colocation_group", "duplication_group", "duplication_factor")
    changes: dict[str, object] = dict.fromkeys(unused)
    if table.is_sequence:
        changes["pooling"] = None  # backends time bags alone
    if table.data_type not in space.data_types:
        changes["data_type"] = space.data_types[0]
    if table.reuse_histogram is None:
        changes["zipf_exponent"] = zipf_exponent(table, job)
    return table.model_copy(update=changes)


def _sliced(table: Table, random: np.random.Generator) -> Table:
    if random.random() >= _SLICED_SHARE:
        return table
    width = table.embedding_dim / 2 ** int(random.integers(1, 4))
    return table.model_copy(update={"embedding_dim": max(MIN_COLUMNS, 4 * round(width / 4))})


def _within(tables: list[Table], max_bytes: int) -> tuple[Table, ...]:
    """Take rows from the largest tables until the set fits."""
    row_bytes = np.array([table.embedding_dim * BYTES_PER_ELEMENT[table.data_type] for table in tables])
    num_bytes = np.array([table.num_embeddings for table in tables]) * row_bytes
    if num_bytes.sum() <= max_bytes:
        return tuple(tables)
    order = np.sort(num_bytes)
    # The level at which the largest are cut: what the smaller ones leave, shared evenly by the others.
    kept = np.concatenate(([0], np.cumsum(order)[:-1]))
    levels = (max_bytes - kept) / np.arange(len(order), 0, -1)
    level = levels[np.argmax(levels < order)]
    return tuple(
        table.model_copy(update={"num_embeddings": max(1, int(min(size, level) // width))})
        for table, size, width in zip(tables, num_bytes, row_bytes, strict=True)
    )


def _optimizer(space: SampleSpace, random: np.random.Generator) -> Optimizer:
    return space.optimizers[int(random.integers(len(space.optimizers)))]


def _log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(random.uniform(np.log(low), np.log(high))))
