"""Ways to train variants of a small model on two processes of a CPU: one after the other, in parts, together, and both.

    python -m benchmarks.variants [--steps N]

Each way trains four variants by the trainer, in turns with the others. Compared is the processor time of all processes,
less that of a training of one step of the same processes and variants.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from neuroshard_api.documents.progress import TrainingProgress

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sweep_choice import GLOBAL_BATCH, NEUROSHARD, RATES, written_job
from benchmarks.timed_command import run_timed

Way = tuple[int, int]
"""Processes of a part, and variants that train together on it."""
WAYS: dict[Way, str] = {
    (2, 1): "one after the other on two processes",
    (1, 1): "parts: two at a time on one process each",
    (2, 4): "together on two processes",
    (1, 2): "both: two together on one process each",
}
ONE_BY_ONE: Way = (2, 1)


def main() -> None:
    """Train in each way, and write the result."""
    parser = argparse.ArgumentParser(description="Compare ways to train variants.")
    parser.add_argument("--steps", type=int, default=120, help="steps of each training; default: 120")
    steps: int = parser.parse_args().steps
    load = os.getloadavg()[0]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        base = yaml.safe_load(written_job(folder).read_text(encoding="utf-8"))
        start_s = {way: trained(folder, base, way, RATES[: way[1]], steps=1)[0] for way in WAYS}
        spent_s, losses = dict.fromkeys(WAYS, 0.0), {way: dict[str, float]() for way in WAYS}
        for number in range(len(RATES)):
            for way in WAYS:
                size = way[1]
                if number % size:
                    continue
                taken_s, found = trained(folder, base, way, RATES[number : number + size], steps=steps)
                spent_s[way] += taken_s - start_s[way]
                losses[way] |= found
    furthest = max(abs(losses[way][rate] - losses[ONE_BY_ONE][rate]) for way in WAYS for rate in RATES)
    lines = [
        "# Ways to train four variants on two processes of a CPU",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores, load {load:.1f}.",
        "",
        f"26 tables of 16 columns, {GLOBAL_BATCH:,} synthetic samples a step, {steps} steps, without evaluation, four",
        "learning rates of the dense part. Processor seconds of all processes of a way, less those of trainings of one",
        "step, their start; by the clock a busy machine would say nothing. Gain: over one after the other.",
        "",
        "| way | processor, s | gain | start of one training, s | trainings |",
        "|---|---|---|---|---|",
        *(
            f"| {name} | {spent_s[way]:.1f} | {spent_s[ONE_BY_ONE] / spent_s[way]:.2f} | {start_s[way]:.1f} "
            f"| {len(RATES) // way[1]} |"
            for way, name in WAYS.items()
        ),
        "",
        f"The last losses of a variant differ by at most {furthest:.1e} between the ways.",
        "",
        "μ-TWO (Purandare et al., MLSys 2023) publishes up to 3 times the speed for models fused on one GPU, whose",
        "launches and idle time they share. A core has neither: what is saved here is reading once, exchanges, and",
        "Python's part of a step.",
    ]
    print(write_result("variants", lines, hardware=hardware_slug(), packages=("torch", "torchrec", "fbgemm-gpu-cpu")))


def trained(
    folder: Path, base: dict[str, Any], way: Way, rates: Sequence[str], *, steps: int
) -> tuple[float, dict[str, float]]:
    """Train variants with these rates together, and return the processor seconds, and the last loss of each rate."""
    processes, size = way
    name = f"{processes}-{size}-{rates[0]}-{steps}"
    spec = base["spec"]
    training = {"maxSteps": steps, "logEverySteps": steps}
    spec = {
        **spec,
        "model": {**spec["model"], "batchSizePerDevice": GLOBAL_BATCH // processes},
        "profiler": {"policy": "Never", "deviceType": "h100-80gb"},
        "trainer": {"numProcPerNode": processes},
        "training": training,
    }
    names = {f"v{number}": rate for number, rate in enumerate(rates)}
    if size == 1:
        spec["training"] = {**training, "denseLearningRate": rates[0]}
    else:
        own = [{"name": each, "training": {"denseLearningRate": rate}} for each, rate in names.items()]
        spec["variants"] = own
    job, plan, run_dir = folder / f"{name}.yaml", folder / f"{processes}-{size}-plan.json", folder / f"run-{name}"
    job.write_text(yaml.safe_dump({**base, "spec": spec}), encoding="utf-8")
    if not plan.exists():
        run_timed([NEUROSHARD, "plan", str(job), "--out", str(plan)], capture_output=True, text=True, check=True)
    launcher = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node", str(processes)]
    command = [*launcher, "-m", "neuroshard_trainer", str(job), "--plan", str(plan), "--run-dir", str(run_dir)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    _, times = run_timed(command, capture_output=True, text=True, check=True, env=environment)
    metrics = TrainingProgress.read(run_dir / "progress.json").metrics
    found = {rate: metrics["loss" if size == 1 else f"{each}/loss"] for each, rate in names.items()}
    return times.processor_s, found


if __name__ == "__main__":
    main()
