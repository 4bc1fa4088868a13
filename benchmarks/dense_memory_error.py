"""The counted dense part beside what torch's allocator gives out in real training, in every strategy.

Two processes of one CPU train each model for five steps, over gloo and without a pipeline: its units replicated,
ZeRO-2, or ZeRO-3, and each of them with and without checkpointing. Tables are small: the dense part decides the sum.
The ledger is a CPU's, without reserve, and the optimizer updates one parameter after the other. The error is that to
the median of the steps' peaks. The highest peak of a step is given next to it: gloo's threads drop what they have sent
as late as they get a core.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from neuroshard_api.dense_layout import CheckpointingChoice, DenseChoices, DenseGroup, DenseStrategy, UnitChoice
from neuroshard_api.document import validated
from neuroshard_api.job_request import plan_request
from neuroshard_api.plan import DeviceMemory, Plan
from neuroshard_api.presets import preset
from neuroshard_api.request import Algorithm, PlanRequest
from neuroshard_api.training_job import API_VERSION, KIND, DLRMTrainingJob
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.dense.layouts import Layouts
from neuroshard_planner.dense.options import UnitOptions
from neuroshard_planner.planning import plan as search
from neuroshard_trainer.dense_profile import dense_profile

from benchmarks.memory_error import ledger_on_cpu
from benchmarks.results_file import hardware_slug, write_result
from benchmarks.sharded_training import WORLD_SIZE, torchrun

MIB = 2**20
DEVICE = "h100-80gb"  # its price of collectives; it decides no byte
NUM_TABLES = 8
PARTS = ("dense_arch", "interaction", "over_arch")
MODELS: Mapping[str, Mapping[str, Any]] = {
    "DLRM": {"batchSizePerDevice": 512, "overArchLayerSizes": [2048, 1024, 512]},
    "DCNv2": {"architecture": "DCNv2", "batchSizePerDevice": 512, "overArchLayerSizes": [1024, 512]},
    "wide cross network": {
        "architecture": "DCNv2",
        "batchSizePerDevice": 256,
        "crossNetwork": {"numLayers": 6, "lowRankDim": 2048},
    },
}
TARGET = 0.02


def main(models: Sequence[str]) -> None:
    """Plan, train, and write the result."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        names, ledgers, files = [], [], []
        for model in models or MODELS:
            job = _job(model)
            counted = _request(job)
            for strategy in DenseStrategy:
                for checkpointing in (CheckpointingChoice.NEVER, CheckpointingChoice.ALWAYS):
                    plan = _plan(counted, strategy, checkpointing)
                    names.append((model, strategy, checkpointing is CheckpointingChoice.ALWAYS))
                    ledgers.append(ledger_on_cpu(plan))
                    for kind, document in (("job", job), ("plan", plan)):
                        files.append(folder / f"{len(names)}.{kind}.json")
                        files[-1].write_text(document.to_json(), encoding="utf-8")
        command = [
            sys.executable,
            *torchrun(Path(__file__).with_name("allocated_memory.py"), *map(str, files), scratch),
        ]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - a script of this folder
        measured = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]
    lines = report(names, ledgers, measured)
    if models:
        print("\n".join(lines))
    else:
        print(write_result("dense-memory-error", lines, hardware=hardware_slug()))


def report(
    names: Sequence[tuple[str, DenseStrategy, bool]],
    ledgers: Sequence[Sequence[DeviceMemory]],
    measured: Sequence[Sequence[Sequence[int]]],
) -> list[str]:
    """Return the lines of the result.

    Args:
        names: model, strategy, and whether units are checkpointed, of each plan.
        ledgers: of the devices of each plan.
        measured: peak bytes, by rank, plan, and step.
    """
    rows, errors = [], []
    for index, (model, strategy, is_checkpointed) in enumerate(names):
        for rank, memory in enumerate(ledgers[index]):
            found, highest = median(measured[rank][index]), max(measured[rank][index])
            counted = memory.used_bytes - memory.reserve_bytes
            errors.append(counted / found - 1)
            rows.append(
                f"| {model} | {strategy} | {'yes' if is_checkpointed else 'no'} | {rank} | {found / MIB:.1f} | "
                f"{highest / MIB:.1f} | {counted / MIB:.1f} | {100 * errors[-1]:+.1f} % | "
                f"{memory.dense_bytes / MIB:.1f} |"
            )
    within = sum(abs(error) <= TARGET for error in errors)
    summary = (
        f"{within} of {len(errors)} within {100 * TARGET:.0f} %; median {100 * median(map(abs, errors)):.1f} %, "
        f"from {100 * min(errors):+.1f} to {100 * max(errors):+.1f} %."
    )
    return [
        "# The counted dense part beside torch's allocator",
        "",
        *str(__doc__).splitlines()[2:],
        "",
        f"Tables: {NUM_TABLES} of 1,000 x 64, pooling factor 1. MiB.",
        "",
        "| model | strategy | checkpointed | rank | allocated | highest step | ledger | error | dense part |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        summary,
    ]


def _job(model: str) -> DLRMTrainingJob:
    tables = [{"name": f"t{index}", "numEmbeddings": 1000, "embeddingDim": 64} for index in range(NUM_TABLES)]
    raw = {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": "memory"},
        "spec": {
            "model": {"embeddingTables": tables, **MODELS[model]},
            "training": {"pipeline": "None"},
        },
    }
    return validated(DLRMTrainingJob, raw, where=model)


def _request(job: DLRMTrainingJob) -> PlanRequest:
    tables = job.spec.model.inline_tables("memory")
    assert tables is not None, "they are in the job"
    topology = preset(DEVICE).topology(num_nodes=1, devices_per_node=WORLD_SIZE)
    request = plan_request(job, tables=tables, topology=topology).model_copy(
        update={"algorithm": Algorithm.SIZE_GREEDY}
    )
    return request.with_dense(dense_profile(job, tables, multi_tensor=False), where="dense profile")


def _plan(request: PlanRequest, strategy: DenseStrategy, checkpointing: CheckpointingChoice) -> Plan:
    """Return a plan whose dense part is counted for gloo on a CPU."""
    assert request.dense is not None
    bundle = bundled_bundle(DEVICE)
    named = tuple(UnitChoice(module=part, strategy=strategy) for part in PARTS)
    options = UnitOptions(
        request.dense,
        request.topology,
        costs=bundle,
        choices=DenseChoices(units=named, checkpointing=checkpointing),
        groups=(DenseGroup.NODE,),
    )
    layouts = Layouts(request.dense, options, copies_transfers=True)
    (chosen,) = layouts.candidates
    if chosen.is_plain:
        return search(request, bundle=bundle)
    plan = search(request.model_copy(update={"dense_memory": chosen.memory}), bundle=bundle)
    return plan.model_copy(update={"dense": layouts.layout(chosen, source=f"simulated:{DEVICE}")})


if __name__ == "__main__":
    main(sys.argv[1:])
