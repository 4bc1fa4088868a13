"""Jobs on one GPU through `neuroshard run`: parts of a step, samples per second, and the ledger next to the peak."""

import json
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.rows import CPU, DATA, ROOT, WORK, attempt, emit
from benchmarks.process_family import kill_family

LEAST_SECONDS = 12.0
"""A job is not begun where less is left."""
_MOST_SECONDS = 70.0
NEUROSHARD = "from neuroshard_cli.main import main; main()"
"""The command `neuroshard` of a checkout that may not be installed."""


def _job(name: str, **changes: Any) -> dict[str, Any]:
    """Return a job on one GPU: a DLRM with one-hot and multi-hot features."""
    scale = 1 if CPU else 25
    tables = [
        {
            "name": f"t{index}",
            "numEmbeddings": rows * scale,
            "embeddingDim": 64 if CPU else 128,
            **({} if pooling == 1 else {"poolingFactor": str(pooling)}),
        }
        for index, (rows, pooling) in enumerate(
            ((40_000, 1), (20_000, 3), (10_000, 1), (5_000, 10), (1_000, 1), (500, 1), (100, 5), (10, 1))
        )
    ]
    batch = 128 if CPU else changes.get("model", {}).get("batchSizePerDevice", 8192)
    steps = 20 if CPU else changes.pop("steps", 300)
    changes.pop("steps", None)
    training = {
        "maxSteps": steps,
        "logEverySteps": 10 if CPU else 100,
        **changes.pop("training", {}),
    }
    model = {
        "embeddingTables": tables,
        "batchSizePerDevice": batch,
        "numDenseFeatures": 13,
        "denseArchLayerSizes": [64] if CPU else [512, 256],
        "overArchLayerSizes": [64] if CPU else [1024, 1024, 512, 256],
        **changes.pop("model", {}),
    }
    trainer: dict[str, Any] = {"numNodes": 1, "numProcPerNode": 1}
    if not CPU:
        trainer["resourcesPerNode"] = {"limits": {"nvidia.com/gpu": 1}}
    data = {
        "numSamples": batch * (steps + 20) * 10 // 9 + batch,
        "validationPercent": 1,
    }
    return {
        "apiVersion": "training.neuroshard.dev/v1alpha1",
        "kind": "DLRMTrainingJob",
        "metadata": {"name": name},
        "spec": {
            "model": model,
            "trainer": trainer,
            "data": {**data, **changes.pop("data", {})},
            "training": training,
            "experimental": {"data": {"readerProcesses": 1 if CPU else 10}, **changes.pop("experimental", {})},
            **changes,
        },
    }


def _equal_tables(count: int, rows: int, **more: str) -> list[dict[str, Any]]:
    """Return tables of 128 columns that differ by name alone."""
    return [
        {"name": f"t{index}", "numEmbeddings": 1000 if CPU else rows, "embeddingDim": 128, **more}
        for index in range(count)
    ]


def bundle() -> Path:
    """Return the bundled cost models of the GPU that is here."""
    name = "" if CPU else torch.cuda.get_device_name(0).lower()
    return (
        ROOT
        / "costs/neuroshard_costs/bundles"
        / ("h200-141gb" if "h200" in name else "a100-80gb" if "a100" in name else "h100-80gb")
    )


def _run(job: dict[str, Any], *, limit_s: float) -> None:
    name = job["metadata"]["name"]
    file, folder = WORK / f"{name}.json", WORK / f"run-{name}"
    WORK.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(job))
    command = [sys.executable, "-W", "ignore", "-c", NEUROSHARD, "run", str(file)]
    command += ["--bundle", str(bundle()), "--run-dir", str(folder), "--port", "29613"]
    begun = time.monotonic()
    DATA.mkdir(parents=True, exist_ok=True)
    with (DATA / "jobs.log").open("a") as log:
        log.write(f"==== {name}\n")
        log.flush()
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603 - our own command
        try:
            code: Any = process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            kill_family(process)  # the next measurement needs the GPU alone
            code = "out of time"
    logs = folder / "logs"
    if logs.is_dir():
        shutil.copytree(logs, DATA / "jobs" / name, dirs_exist_ok=True)
    for checkpoint in folder.rglob("checkpoints"):
        shutil.rmtree(checkpoint)
    row: dict[str, Any] = {"job": name, "exit": code, "seconds": round(time.monotonic() - begun, 1)}
    plan, report = folder / "plan.json", next(folder.rglob("step-report.json"), None)
    if plan.exists():
        found = json.loads(plan.read_text())
        row["ledger"] = found.get("memory")
        row["predicted"] = found.get("predicted")
    if code != 0:
        row["error"] = f"ended with {code}; jobs.log has its output"
    if report is not None:
        row["step_report"] = json.loads(report.read_text())
    emit(**row)


def jobs(budget_s: float, only: str) -> None:
    """Run jobs, each with a row of step report, predicted cost, and ledger."""
    ends = time.monotonic() + budget_s
    work = [
        _job("first", steps=50, training={"logEverySteps": 7}),
        # Enough lookups that kernels, not the host that launches them, decide the times.
        _job(
            "heavy",
            steps=60,
            model={
                "batchSizePerDevice": 128 if CPU else 65_536,
                "embeddingTables": _equal_tables(8, 1_000_000, poolingFactor="20"),
            },
        ),
        _job("tf32-pipeline"),
        _job("bf16-pipeline", training={"precision": "BF16"}),
        _job("tf32-plain", experimental={"pipeline": "None"}),
        _job(
            "adam-large", steps=120, model={"embeddingOptimizer": "Adam", "batchSizePerDevice": 128 if CPU else 16384}
        ),
        _job("fp16-weights", steps=120, model={"embeddingTables": _equal_tables(4, 2_000_000, dataType="FP16")}),
        _job("dcnv2", steps=120, model={"architecture": "DCNv2"}),
    ]
    if CPU:
        only = "first"
    if only:
        named = {each["metadata"]["name"]: each for each in work}
        work = [named[each] for each in only.split(",")]
    for job in work:
        left = ends - time.monotonic()
        if left < LEAST_SECONDS and not CPU:
            emit(skipped=job["metadata"]["name"], why="out of time")
            continue
        limit_s = 600.0 if CPU else min(_MOST_SECONDS, left)
        attempt(job["metadata"]["name"], partial(_run, job, limit_s=limit_s))
