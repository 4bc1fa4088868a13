"""Small tables on many nodes: which of DLRM-DCNv2 the planner copies to 64 H100, next to NVIDIA's rule.

The request is that of the published step (MLPerf Training 4.0, 135,168 samples in all). NVIDIA's rule is that of
HugeCTR's sample planner at the threshold of its submission with this batch, on 16 nodes. Costs are the predictions of
the bundled models.
"""

from collections.abc import Sequence

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Constraints, PlanRequest, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.pipeline import plan

from benchmarks.published_measurements import step_request
from benchmarks.results_file import write_result

STEP = {
    "workload": "mlperf-dlrm-dcnv2",
    "device": "h100-80gb",
    "devices": 64,
    "batch": 135_168,
    "optimizer": "adagrad",
    "output": "FP16",
}
BOUND_TO_COPY = (155, 11_938)
"""Rows of the largest table that must be copied: one more table than the planner copies, and NVIDIA's rule."""


def main() -> None:
    """Plan and write the result."""
    request = step_request(STEP)
    bundle = bundled_bundle(str(STEP["device"]))
    found = {"the planner's": plan(request, bundle=bundle)}
    for rows in BOUND_TO_COPY:
        found[f"bound to copy all tables of up to {rows:,} rows"] = plan(_bound(request, rows), bundle=bundle)
    lines = [
        "# Small tables on many nodes",
        "",
        *str(__doc__).splitlines()[2:],
        "",
        "| plan | tables copied | pieces of each other table | predicted ms |",
        "|---|---|---|---|",
        *(_row(name, each) for name, each in found.items()),
    ]
    print(write_result("copied-tables", lines))


def _bound(request: PlanRequest, most_rows: int) -> PlanRequest:
    copied = TableConstraints(sharding_types=(ShardingType.DATA_PARALLEL,))
    small = [table.name for table in request.tables.tables if table.num_embeddings <= most_rows]
    return request.model_copy(update={"constraints": Constraints(tables=dict.fromkeys(small, copied))})


def _row(name: str, found: Plan) -> str:
    rows = {table.name: table.num_embeddings for table in found.request.tables.tables}
    copied = sorted(rows[each.name] for each in found.tables if each.sharding_type is ShardingType.DATA_PARALLEL)
    pieces = [len(each.shards) for each in found.tables if each.sharding_type is not ShardingType.DATA_PARALLEL]
    return f"| {name} | {_rows(copied)} | {_counted(pieces)} | {found.predicted.total_ms:.2f} |"


def _rows(copied: Sequence[int]) -> str:
    return f"{len(copied)}: {', '.join(f'{rows:,}' for rows in copied)} rows" if copied else "none"


def _counted(pieces: Sequence[int]) -> str:
    return ", ".join(f"{pieces.count(each)} x {each}" for each in sorted(set(pieces)))


if __name__ == "__main__":
    main()
