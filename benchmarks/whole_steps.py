"""Predicted whole steps next to published ones, and rates of matrix products; all steps are held out.

    python -m benchmarks whole_steps

The planner's own plan is priced: systems other than TorchRec place the tables by rules of their own, and have a host of
their own. So for them the embedding part must be below the published step, and nothing else follows. For TorchRec the
whole step is compared. Nothing was measured here.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from neuroshard_api.documents.document import validated
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.training_job import API_VERSION, KIND, DLRMTrainingJob
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.simulator.constants import PRODUCT_SECONDS
from neuroshard_costs.simulator.dense import matrix_rate
from neuroshard_planner.pipeline import plan
from neuroshard_planner.workload_store import read_workload
from neuroshard_trainer.dense_profile import dense_profile

from benchmarks.results_file import write_result

DATA = Path(__file__).parent / "data" / "published_whole_steps.json"
DEVICES_PER_NODE = 8


def main() -> None:
    """Write the result."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    print(write_result("whole-steps", report(data), hardware="any"))


def report(data: Mapping[str, Any]) -> list[str]:
    """Return the lines of the result."""
    rows, shares, errors = [], [], []
    for entry in data["steps"]:
        found = _planned(entry, data["dense"])
        step, published = found.step, entry["published_ms"]
        assert step is not None
        shares.append(step.embedding_ms / published)
        dense = "not counted" if step.dense_ms is None else f"{step.dense_ms:.2f}"
        bound = "host" if step.is_host_bound else "devices"
        whole = "" if step.dense_ms is None else f"{step.total_ms:.2f} ({bound})"
        if entry["system"] == "TorchRec":
            errors.append(step.total_ms / published)
        rows.append(
            f"| {entry['system']} | {entry['workload']} | {entry['devices']} x {entry['device']} "
            f"| {entry['batch']:,} | {published:.4g} | {step.embedding_ms:.2f} ({100 * shares[-1]:.0f} %) | {dense} "
            f"| {step.host.total_ms:.2f} | {whole} |"
        )
    ratios = ", ".join(f"{each:.2f}" for each in errors)
    return [
        "# Whole steps next to published ones",
        "",
        *str(__doc__).splitlines()[4:],
        "",
        "The host's times are those of benchmarks/results/host-operations, of a CPU, and NVIDIA's of launches.",
        "",
        "| system | tables | devices | batch | published ms | embedding part, predicted | dense part | host | step |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"The embedding part is {100 * min(shares):.0f} to {100 * max(shares):.0f} % of the published step.",
        f"TorchRec: predicted over published step {ratios}.",
        "",
        "## Rates of matrix products",
        "",
        f"{data['matrices']['unit']}; {data['matrices']['source']}.",
        "",
        "| device | basis | size | published | predicted | predicted / published |",
        "|---|---|---|---|---|---|",
        *_rates(data["matrices"]),
    ]


def _rates(data: Mapping[str, Any]) -> Iterator[str]:
    device = preset("h100-80gb").device
    for each in data["devices"]:
        clocks = {"num_multiprocessors": each["multiprocessors"], "clock_hz": each["clock_hz"]}
        rate = matrix_rate(device.model_copy(update={"product": each["product"], **clocks}))
        for side, published in each["rates"].items():
            flops = 2 * int(side) ** 3
            predicted = flops / (flops / rate + PRODUCT_SECONDS) / 1e12
            yield (
                f"| {each['name']} | {each['basis']} | {side} | {published:.1f} | {predicted:.1f} | "
                f"{predicted / published:.2f} |"
            )


def _planned(entry: Mapping[str, Any], layers: Mapping[str, Any]) -> Plan:
    """Return the plan of a published training, with the price of its step."""
    count = entry["devices"]
    nodes = max(count // DEVICES_PER_NODE, 1)
    tables = read_workload(entry["workload"])
    batch = entry["batch"] // count
    request = PlanRequest(
        tables=tables,
        topology=preset(entry["device"]).topology(num_nodes=nodes, devices_per_node=count // nodes),
        batch_size_per_device=batch,
        optimizer=Optimizer(entry["optimizer"]),
    )
    if entry.get("dense"):
        model = {"embeddingTables": [_inline(table) for table in tables.tables], "batchSizePerDevice": batch, **layers}
        raw = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "published"}, "spec": {"model": model}}
        job = validated(DLRMTrainingJob, raw, where="published")
        request = request.with_dense(dense_profile(job, tables), where="dense profile")
    bundle = bundled_bundle("a100-80gb")  # of an A100 of either memory
    return plan(request, bundle=bundle)


def _inline(table: Any) -> dict[str, Any]:  # noqa: ANN401 - a table of any release
    return {"name": table.name, "numEmbeddings": table.num_embeddings, "embeddingDim": table.embedding_dim}


if __name__ == "__main__":
    main()
