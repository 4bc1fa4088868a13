"""The memory ledger next to peaks that TorchRec's authors measured on two GPUs.

TorchRec's repository has the settings of its pipeline benchmark and the model that it trains, and messages of its
commits have the most that torch's allocator gave out. They call 1,000 MiB a GB (benchmark/base.py divides MiB by
1,000): here they are bytes. Tables are whole on the two devices in turn, the widest is cut in halves, as the settings
say; FP32 vectors, SGD (the benchmark gave its sharders no other), 32,768 samples a device. The dense part is counted by
`describe_dense` from the model of the installed TorchRec, with the sizes of the commit's settings. Where a release kept
something until the end of the passes, which a later pull request repaired, this is added as its own column. No number
of the ledger was fitted to these: its moments follow from TorchRec's source, and were counted by the allocator of a CPU
(test_live_copies).
"""

from dataclasses import dataclass
from functools import cache
from math import exp, log
from statistics import fmean
from typing import Any

import torch
from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.documents.plan_parts import DeviceMemory, Shard, TablePlacement
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import MemorySettings, Pipeline, PlanRequest
from neuroshard_api.documents.tables import DataType, Optimizer, Table, TableSet
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType, row_blocks
from neuroshard_costs.memory_ledger import MemoryLedger, tables_memory
from neuroshard_trainer.dense_profile import describe_dense
from torchrec.distributed.test_utils.model_input import ModelInput
from torchrec.distributed.test_utils.test_model import TestOverArchLarge, TestSparseNN
from torchrec.modules.embedding_configs import DataType as TorchRecType
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from benchmarks.results_file import write_result

GB = 1_000 * 2**20
"""Of TorchRec's tables."""
BATCH = 32_768
NUM_DEVICES = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Tables and dense part of a published run."""

    num_plain: int
    num_weighted: int
    lookups: float
    large: tuple[tuple[str, int], ...]
    """Fields of the large table."""
    large_type: ShardingType
    num_dense: int
    layers: tuple[tuple[str, Any], ...]
    """Arguments of the parts of TorchRec's TestSparseNN."""


WIDE = (
    ("dense_arch_out_size", 128),
    ("over_arch_out_size", 1024),
    ("over_arch_hidden_layers", 5),
    ("dense_arch_hidden_sizes", (128,) * 3),
    ("skip_regroup", True),
)
HEAVY = (
    ("dense_arch_out_size", 128),
    ("over_arch_out_size", 4096),
    ("over_arch_hidden_layers", 10),
    ("dense_arch_hidden_sizes", (2048,) * 4),
    ("skip_regroup", True),
)
HALVES: dict[str, Any] = {
    "large": (("num_embeddings", 1_000_000), ("embedding_dim", 2048)),
    "large_type": ShardingType.COLUMN_WISE,
}
BLOCKS: dict[str, Any] = {
    "large": (("num_embeddings", 10_000_000), ("embedding_dim", 512)),
    "large_type": ShardingType.ROW_WISE,
}
LIGHT_TABLES: dict[str, Any] = {"num_plain": 20, "num_weighted": 20, "lookups": 10.0, **HALVES}
BASE_TABLES: dict[str, Any] = {"num_plain": 90, "num_weighted": 80, "lookups": 30.0, **HALVES}
ROWS_TABLES: dict[str, Any] = {"num_plain": 30, "num_weighted": 40, "lookups": 30.0, **BLOCKS}
LIGHT = Model(**LIGHT_TABLES, num_dense=10, layers=())
BASE = Model(**BASE_TABLES, num_dense=10, layers=())
BASE_WIDE = Model(**BASE_TABLES, num_dense=100, layers=WIDE)
BASE_HEAVY = Model(**BASE_TABLES, num_dense=100, layers=HEAVY)
ROWS_WIDE = Model(**ROWS_TABLES, num_dense=100, layers=WIDE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One published run."""

    name: str
    commit: str
    """Of pull request, and month."""
    model: Model
    pipeline: Pipeline
    peak: float
    reserved: float
    host: bool = False
    """Whether the large table was in host memory, without a cache."""
    keeps: str = ""
    """What the release kept until the end of the passes: a batch, or the received vectors."""


NONE, PIPELINED = Pipeline.NONE, Pipeline.SPARSE_DIST
ONE_BATCH = "batch, repaired by 3530"
VECTORS = "received vectors, repaired by 4008"
RUNS = (
    Run(
        name="base_pipeline_light",
        commit="3580, 2025-12",
        model=LIGHT,
        pipeline=NONE,
        peak=11.84,
        reserved=17.33,
        keeps=ONE_BATCH,
    ),
    Run(
        name="sparse_data_dist_light",
        commit="3580, 2025-12",
        model=LIGHT,
        pipeline=PIPELINED,
        peak=12.47,
        reserved=18.24,
    ),
    Run(
        name="base pipeline, before",
        commit="3530, 2026-01",
        model=BASE,
        pipeline=NONE,
        peak=35.94,
        reserved=56.72,
        keeps=ONE_BATCH,
    ),
    Run(name="base pipeline, after", commit="3530, 2026-01", model=BASE, pipeline=NONE, peak=34.33, reserved=54.00),
    Run(
        name="sparse_data_dist_base",
        commit="3787, 2026-02",
        model=BASE_WIDE,
        pipeline=PIPELINED,
        peak=49.06,
        reserved=67.47,
        keeps=VECTORS,
    ),
    Run(
        name="sparse_data_dist_base",
        commit="4008, 2026-04",
        model=BASE_WIDE,
        pipeline=PIPELINED,
        peak=43.30,
        reserved=67.68,
    ),
    Run(name="base_pipeline", commit="4067, 2026-04", model=BASE_HEAVY, pipeline=NONE, peak=48.08, reserved=58.77),
    Run(name="sdd_pipeline", commit="4067, 2026-04", model=BASE_HEAVY, pipeline=PIPELINED, peak=53.04, reserved=70.38),
    Run(
        name="heavy_dense, baseline",
        commit="4375, 2026-06",
        model=BASE_HEAVY,
        pipeline=PIPELINED,
        peak=53.04,
        reserved=67.00,
    ),
    Run(
        name="heavy_dense, expandable segments",
        commit="4375, 2026-06",
        model=BASE_HEAVY,
        pipeline=PIPELINED,
        peak=53.04,
        reserved=59.75,
    ),
    Run(name="sdd_fused", commit="4099, 2026-04", model=ROWS_WIDE, pipeline=PIPELINED, peak=26.10, reserved=35.25),
    Run(
        name="sdd_fused_uvm",
        commit="4099, 2026-04",
        model=ROWS_WIDE,
        pipeline=PIPELINED,
        peak=16.34,
        reserved=25.54,
        host=True,
    ),
)


READING = """Errors are those of the ledger with what a release kept, against the peak. Pull request 3580 also lists
35.94 GB as `sparse_data_dist_base`. This is to the digit what 3530 lists for the pipeline that fetches nothing ahead,
and a pipeline that does would keep four more copies of the lookups, 6.7 GB: the row is taken for the former.

Below the peak is left the backward pass of two collections that the model joins: it holds the joint gradient while it
copies the parts that it sends, half a copy of the received vectors more than with one collection.

The gap is what the allocator reserved beyond the peak. The moving part is the peak without weights and the gradients
that stay. Before the allocator fails, it gives whole cached segments back: in pull request 3642, with 57 and 138
retries of malloc, the same tables ran with gaps of 0.34 and 0.18."""


def main() -> None:
    """Count each run and write the result."""
    lines = [
        "# The memory ledger next to peaks measured on GPUs",
        "",
        *str(__doc__).splitlines()[2:],
        "",
        "| run | pull request | tables, GB | dense, GB | kept, GB | peak, GB | ledger / peak | gap / moving |",
        "|---|---|---|---|---|---|---|---|",
    ]
    ratios = []
    for run in RUNS:
        request = _request(run)
        found = max(_ledger(run), key=lambda each: each.used_bytes - each.reserve_bytes)
        counted = found.used_bytes - found.reserve_bytes
        kept, peak = _kept_bytes(run), run.peak * GB
        resident = found.weights_bytes + request.dense_bytes - request.dense_working_bytes
        ratios.append((counted + kept) / peak)
        gap = (run.reserved * GB - peak) / (peak - resident)
        of_tables, of_dense = (counted - found.dense_bytes) / 1e9, found.dense_bytes / 1e9
        lines.append(
            f"| {run.name} | {run.commit} | {of_tables:.1f} | {of_dense:.1f} | {_kept_text(run, kept)} | "
            f"{peak / 1e9:.1f} | {ratios[-1]:.2f} | {gap:.2f} |"
        )
    mean = exp(fmean(abs(log(each)) for each in ratios))
    worst = max(ratios, key=lambda each: abs(log(each)))
    lines += ["", f"Geometric mean error {mean:.2f}, worst {worst:.2f}.", "", *READING.splitlines()]
    print(write_result("published-memory", lines))


def _kept_text(run: Run, num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f}: {run.keeps}" if run.keeps else ""


def _kept_bytes(run: Run) -> int:
    """Return the bytes that the release kept until the backward pass, and later ones do not."""
    tables = _tables(run)
    if run.keeps == ONE_BATCH:
        return sum(int(BATCH * (table.pooling_factor * (12 if table.is_weighted else 8) + 8)) for table in tables)
    return 4 * BATCH * sum(table.embedding_dim for table in tables) if run.keeps == VECTORS else 0


def _tables(run: Run) -> list[Table]:
    model = run.model
    return [
        *(_table(f"plain_{index}", run) for index in range(model.num_plain)),
        _table("half", run, embedding_dim=512, data_type=DataType.FP16),
        _table("large", run, **dict(model.large)),
        *(
            _table(f"weighted_{index}", run, is_weighted=True, collection="weighted")
            for index in range(model.num_weighted)
        ),
    ]


@cache
def _request(run: Run) -> PlanRequest:
    tables = _tables(run)
    topology = preset("h100-80gb").topology(num_nodes=1, devices_per_node=NUM_DEVICES)
    request = PlanRequest(
        tables=TableSet(name="published", tables=tuple(tables)),
        topology=topology,
        batch_size_per_device=BATCH,
        optimizer=Optimizer.SGD,
        pipeline=run.pipeline,
        memory=MemorySettings(reserve_fraction=0.0),
    )
    return request.with_dense(_dense(run.model, tuple(tables)), where=run.name)


@cache
def _dense(model: Model, tables: tuple[Table, ...]) -> DenseProfile:
    kinds = {DataType.FP32: TorchRecType.FP32, DataType.FP16: TorchRecType.FP16}
    bags = [
        EmbeddingBagConfig(
            name=f"{table.name}_table",
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            feature_names=[table.name],
            data_type=kinds[table.data_type],
        )
        for table in tables
    ]
    plain = [bag for bag, table in zip(bags, tables, strict=True) if not table.is_weighted]
    weighted = [bag for bag, table in zip(bags, tables, strict=True) if table.is_weighted]

    def make() -> torch.nn.Module:
        found: torch.nn.Module = TestSparseNN(
            tables=plain,
            weighted_tables=weighted,
            num_float_features=model.num_dense,
            dense_device=torch.device("cpu"),
            sparse_device=torch.device("meta"),
            over_arch_clazz=TestOverArchLarge,
            submodule_kwargs=dict(model.layers),
        )
        return found

    def batch() -> list[object]:
        return [
            ModelInput(
                float_features=torch.empty(BATCH, model.num_dense),
                idlist_features=object(),
                idscore_features=object(),
                label=torch.empty(BATCH),
            )
        ]

    return describe_dense(
        make,
        batch,
        tables=tables,
        batch_size=BATCH,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1, foreach=True),
        loss=lambda found: found[0],
    )


def _ledger(run: Run) -> list[DeviceMemory]:
    request = _request(run)
    return list(
        tables_memory(
            MemoryLedger(request), [_placed(table, index, run) for index, table in enumerate(request.tables.tables)]
        )
    )


def _table(name: str, run: Run, **fields: Any) -> Table:  # noqa: ANN401 - any field of a table
    size = {"num_embeddings": 100_000, "embedding_dim": 256, **fields}
    return Table(name=name, pooling_factor=run.model.lookups, **size)


def _placed(table: Table, index: int, run: Run) -> TablePlacement:
    rows, columns = table.num_embeddings, table.embedding_dim
    if table.name == "large":
        kind = run.model.large_type
        half = columns // NUM_DEVICES
        shards = tuple(
            Shard(device=device, num_rows=rows, column_offset=device * half, num_columns=half)
            if kind is ShardingType.COLUMN_WISE
            else Shard(device=device, row_offset=first, num_rows=count, num_columns=columns)
            for device, (first, count) in enumerate(row_blocks(rows, NUM_DEVICES))
        )
        kernel = ComputeKernel.FUSED_UVM if run.host else None
        return TablePlacement(name=table.name, sharding_type=kind, shards=shards, kernel=kernel)
    shard = Shard(device=index % NUM_DEVICES, num_rows=rows, num_columns=columns)
    return TablePlacement(name=table.name, sharding_type=ShardingType.TABLE_WISE, shards=(shard,))


if __name__ == "__main__":
    main()
