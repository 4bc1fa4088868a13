"""The memory ledger next to what torch's allocator gives out in real training: three models, three plans each and more.

Two processes of one CPU train each model under each plan for five steps, over gloo and without a pipeline. The ledger
is a CPU's, without reserve: no sort buffers of CUDA kernels, the optimizer's temporary tensors one parameter at a time.
No number in it is fitted to this measurement: its terms follow from the sources of torch, TorchRec, and FBGEMM. The
error is that to the median of the steps' peaks. The highest peak of a step is given next to it: a thread of gloo drops
what it has sent as late as it gets a core. Resident memory is not compared: it also has libraries and what the
allocator keeps. The plans are made for a trainer with a pipeline, where the neural search cuts the largest table.
The DLRM is also trained under three plans by hand, of blocks of rows on both processes, copies, and columns.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import DeviceMemory, Shard, TablePlacement
from neuroshard_api.documents.request import Algorithm, Pipeline, PlanRequest
from neuroshard_api.documents.tables import Table
from neuroshard_api.sharding.kinds import ShardingType, row_blocks
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.imported_plan import plan_without_price

from benchmarks.results_file import hardware_slug, write_result
from benchmarks.sharded_training import WORLD_SIZE
from benchmarks.trained_memory import (
    DEVICE,
    counted_bytes,
    counted_request,
    errors_text,
    ledger_on_cpu,
    peak_bytes,
    training_job,
)

MIB = 2**20
POOLING_FACTORS = (1, 1, 2, 3, 1, 5, 1, 20, 10, 1, 1, 30, 60)  # of every 13 tables
LARGEST = 400  # of the last table, so that the search cuts it
NUM_TABLES = 26
ALGORITHMS = (Algorithm.NEUROSHARD, Algorithm.SIZE_GREEDY, Algorithm.RANDOM)
MODELS: Mapping[str, Mapping[str, Any]] = {
    "DLRM": {"architecture": "DLRM", "batchSizePerDevice": 2048},
    "DCNv2": {"architecture": "DCNv2", "batchSizePerDevice": 2048},
    "wide cross network": {
        "architecture": "DCNv2",
        "batchSizePerDevice": 1024,
        "crossNetwork": {"numLayers": 4, "lowRankDim": 1024},
    },
}
MIXED_MODEL = "DLRM"
TABLES = tuple(
    {
        "name": f"t{index}",
        "numEmbeddings": 20_000,
        "embeddingDim": 64,
        "poolingFactor": POOLING_FACTORS[index % len(POOLING_FACTORS)] if index < NUM_TABLES - 1 else LARGEST,
    }
    for index in range(NUM_TABLES)
)
TARGET = 0.05


def main() -> None:
    """Plan, train and write the result."""
    names, trained = [], []
    for model in MODELS:
        job = training_job(TABLES, {"overArchLayerSizes": [512, 256], **MODELS[model]}, where=model)
        request = counted_request(job).model_copy(update={"pipeline": Pipeline.SPARSE_DIST})  # where cutting pays
        plans: dict[str, GivenPlan] = {
            str(each): search(request.model_copy(update={"algorithm": each}), bundle=bundled_bundle(DEVICE))
            for each in ALGORITHMS
        }
        if model == MIXED_MODEL:
            plans |= _mixed_plans(request)
        names += [(model, name, max(len(table.shards) for table in plan.tables)) for name, plan in plans.items()]
        trained += [(job, plan) for plan in plans.values()]
    ledgers = [ledger_on_cpu(plan) for _, plan in trained]
    print(write_result("memory-error", report(names, ledgers, peak_bytes(trained)), hardware=hardware_slug()))


def report(
    names: Sequence[tuple[str, str, int]],
    ledgers: Sequence[Sequence[DeviceMemory]],
    measured: Sequence[Sequence[Sequence[int]]],
) -> list[str]:
    """Return the lines of the result.

    Args:
        names: model, name, and most shards of a table, of each plan.
        ledgers: of the devices of each plan.
        measured: peak bytes, by rank, plan, and step.
    """
    rows, errors, above = [], [], []
    for index, (model, name, shards) in enumerate(names):
        for rank, memory in enumerate(ledgers[index]):
            found = median(measured[rank][index])
            highest = max(measured[rank][index])
            counted = counted_bytes(memory)
            errors.append(counted / found - 1)
            tables = (memory.weights_bytes + memory.optimizer_state_bytes) / MIB
            dense = memory.dense_bytes / MIB
            rows.append(
                f"| {model} | {name} | {shards} | {rank} | {found / MIB:.1f} | {highest / MIB:.1f} | "
                f"{counted / MIB:.1f} | {100 * errors[-1]:+.1f} % | {tables:.1f} | {dense:.1f} |"
            )
            above.append(counted / highest - 1)
    summary = (
        f"{errors_text(errors, target=TARGET)} To the highest step: from "
        f"{100 * min(above):+.1f} to {100 * max(above):+.1f} %."
    )
    return [
        "# The memory ledger next to torch's allocator",
        "",
        *str(__doc__).splitlines()[2:],
        "",
        f"Tables: {NUM_TABLES} of 20,000 x 64, pooling factors 1 to {LARGEST}. MiB.",
        "",
        "| model | plan | shards of a table | rank | allocated | highest step | ledger | error | tables | dense part |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        summary,
    ]


def _mixed_plans(request: PlanRequest) -> dict[str, GivenPlan]:
    """Return plans by rows, of copies, and by columns; the last table has most lookups."""
    rows, copies, columns = ShardingType.ROW_WISE, ShardingType.DATA_PARALLEL, ShardingType.COLUMN_WISE
    last = NUM_TABLES - 1
    types = {
        "largest by rows": [rows if index == last else ShardingType.TABLE_WISE for index in range(NUM_TABLES)],
        "rows and copies": [copies if index % 2 else rows for index in range(NUM_TABLES)],
        "rows, copies, columns": [(rows, copies, columns)[index % 3] for index in range(NUM_TABLES)],
    }
    return {
        name: plan_without_price(
            [_placed(table, kind, index) for index, (table, kind) in enumerate(zip(tables, own, strict=True))], request
        )
        for name, own in types.items()
        for tables in [request.tables.tables]
    }


def _placed(table: Table, kind: ShardingType, index: int) -> TablePlacement:
    """Return a table in a sharding type on all processes; whole tables by turns."""
    rows, columns = table.num_embeddings, table.embedding_dim
    half = columns // WORLD_SIZE
    shards = {
        ShardingType.TABLE_WISE: [Shard(device=index % WORLD_SIZE, num_rows=rows, num_columns=columns)],
        ShardingType.COLUMN_WISE: [
            Shard(device=rank, num_rows=rows, column_offset=rank * half, num_columns=half) for rank in range(WORLD_SIZE)
        ],
        ShardingType.ROW_WISE: [
            Shard(device=rank, row_offset=first, num_rows=count, num_columns=columns)
            for rank, (first, count) in enumerate(row_blocks(rows, WORLD_SIZE))
        ],
        ShardingType.DATA_PARALLEL: [
            Shard(device=rank, num_rows=rows, num_columns=columns) for rank in range(WORLD_SIZE)
        ],
    }
    return TablePlacement(name=table.name, sharding_type=kind, shards=tuple(shards[kind]))


if __name__ == "__main__":
    main()
