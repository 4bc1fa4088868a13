"""Memory that real training takes from torch's allocator on two processes of a CPU, and the ledger of its plans."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from neuroshard_api.documents.document import validated
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import DeviceMemory
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Pipeline, PlanRequest
from neuroshard_api.job.plan_request import plan_request
from neuroshard_api.job.training_job import API_VERSION, KIND, DLRMTrainingJob
from neuroshard_costs.memory_ledger import MemoryLedger, tables_memory
from neuroshard_trainer.dense_profile import dense_profile

from benchmarks.sharded_training import WORLD_SIZE, torchrun

DEVICE = "h100-80gb"  # whose cost models search the plans; they decide no byte of them


def training_job(tables: Sequence[Mapping[str, Any]], model: Mapping[str, Any], *, where: str) -> DLRMTrainingJob:
    """Return a job without a pipeline.

    Args:
        tables: of spec.model.embeddingTables.
        model: other fields of spec.model.
        where: names the model in errors.
    """
    spec = {"model": {"embeddingTables": list(tables), **model}, "experimental": {"pipeline": "None"}}
    raw = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "memory"}, "spec": spec}
    return validated(DLRMTrainingJob, raw, where=where)


def counted_request(job: DLRMTrainingJob) -> PlanRequest:
    """Return the request of a job on two devices, with its dense part counted."""
    tables = job.spec.model.inline_tables("memory")
    assert tables is not None, "they are in the job"
    topology = preset(DEVICE).topology(num_nodes=1, devices_per_node=WORLD_SIZE)
    request = plan_request(job, tables=tables, topology=topology)
    return request.with_dense(dense_profile(job, tables, multi_tensor=False), where="dense profile")


def ledger_on_cpu(plan: GivenPlan) -> Sequence[DeviceMemory]:
    """Return the ledger of the same shards on processes of a CPU, without a pipeline."""
    topology = plan.request.topology
    device = topology.device.model_copy(update={"name": "cpu-benchmark"})
    update = {"topology": topology.model_copy(update={"device": device}), "pipeline": Pipeline.NONE}
    return tables_memory(MemoryLedger(plan.resolved.model_copy(update=update)), plan.tables)


def counted_bytes(memory: DeviceMemory) -> int:
    """Return the ledger's bytes that training allocates: all but the reserve."""
    return memory.used_bytes - memory.reserve_bytes


def peak_bytes(trained: Sequence[tuple[DLRMTrainingJob, GivenPlan]]) -> list[list[list[int]]]:
    """Train each job under its plan, and return the peaks of the allocated bytes, by rank, plan, and step."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, files = Path(scratch), []
        for index, (job, plan) in enumerate(trained):
            for kind, text in (("job", job.to_json()), ("plan", plan.to_json())):
                files.append(folder / f"{index}.{kind}.json")
                files[-1].write_text(text, encoding="utf-8")
        command = [
            sys.executable,
            *torchrun(Path(__file__).with_name("allocated_memory.py"), *map(str, files), scratch),
        ]
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})  # noqa: S603 - a script of this folder
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD_SIZE)]


def errors_text(errors: Sequence[float], *, target: float) -> str:
    """Return a sentence on the errors of ledgers against the allocated memory.

    Args:
        errors: counted over allocated, less 1.
        target: absolute error that counts as near.
    """
    within = sum(abs(error) <= target for error in errors)
    return (
        f"{within} of {len(errors)} within {100 * target:.0f} %; median {100 * median(map(abs, errors)):.1f} %, "
        f"from {100 * min(errors):+.1f} to {100 * max(errors):+.1f} %."
    )
