"""Ways to train variants of a small model on two processes of a CPU: one after the other, in parts, together, and both.

    python -m benchmarks.variants [--movielens FOLDER] [--steps N]

Each way trains four variants by the trainer, in turns with the others. Compared is the processor time of all processes,
and the time by the clock, with what `neuroshard sweep` predicts for the way by cost models of this CPU: times by the
clock, in which processes also wait for each other. Each training's start is taken off by one of one step right before
it, of the same processes and variants. FOLDER has MovieLens-100K as RecBole packs it.
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from neuroshard_api.documents.progress import TrainingProgress

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.timed_command import Times, run_timed

NEUROSHARD = str(Path(sys.executable).with_name("neuroshard"))
EXAMPLE = Path(__file__).parents[1] / "examples" / "02-movielens.yaml"
GLOBAL_BATCH = 2048
PROCESSES = 2
MOST_EPOCHS = 1000
"""Enough for the steps of any data set."""
RATES = ("0.001", "0.002", "0.004", "0.008")
Way = tuple[int, int]
"""Processes of a part, and variants that train together on it."""
WAYS: dict[Way, str] = {
    (2, 1): "one after the other on two processes",
    (1, 1): "parts: two at a time on one process each",
    (2, 4): "together on two processes",
    (1, 2): "both: two together on one process each",
}
ONE_BY_ONE: Way = (2, 1)
AIMS: dict[Way, float] = {(1, 1): 1.4, (2, 4): 1.4, (1, 2): 1.6}


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What the ways took."""

    predicted_ms: Mapping[Way, float]
    spent_s: Mapping[Way, float]
    """Processor seconds, without the start of the trainings."""
    clock_s: Mapping[Way, float]
    """Seconds by the clock, likewise, where trainings on parts of the processes run at once."""
    start_s: Mapping[Way, float]
    """Processor seconds of the start of one training, the mean of all."""
    furthest: float
    """Largest difference of a variant's last loss from that of one after the other."""

    def gain(self, way: Way) -> float:
        """Return the measured gain over one after the other."""
        return self.spent_s[ONE_BY_ONE] / self.spent_s[way]

    def clock_gain(self, way: Way) -> float:
        """Return the same by the clock."""
        return self.clock_s[ONE_BY_ONE] / self.clock_s[way]

    def predicted_gain(self, way: Way) -> float:
        """Return the predicted gain over one after the other."""
        return self.predicted_ms[ONE_BY_ONE] / self.predicted_ms[way]

    def lines(self) -> list[str]:
        """Return the table, and what it says of the aims and the order."""
        missed = [WAYS[way] for way, aim in AIMS.items() if self.gain(way) < aim]
        predicted, by_clock, by_work = (
            sorted(WAYS, key=key) for key in (self.predicted_gain, self.clock_gain, self.gain)
        )
        order, of_work = ("as predicted" if predicted == found else "not as predicted" for found in (by_clock, by_work))
        return [
            (
                "| way | predicted, ms | predicted gain | clock, s | gain by the clock | processor, s | gain "
                "| start of one training, s | trainings |"
            ),
            "|---|---|---|---|---|---|---|---|---|",
            *(
                f"| {name} | {self.predicted_ms[way]:.1f} | {self.predicted_gain(way):.2f} | {self.clock_s[way]:.1f} "
                f"| {self.clock_gain(way):.2f} | {self.spent_s[way]:.1f} | {self.gain(way):.2f} "
                f"| {self.start_s[way]:.1f} | {len(RATES) // way[1]} |"
                for way, name in WAYS.items()
            ),
            "",
            f"Below its aim: {', '.join(missed) or 'none'}. Order of the ways: {order} by the clock, {of_work} by",
            f"processor time. The last losses of a variant differ by at most {self.furthest:.1e} between the ways.",
            "",
        ]


def main() -> None:
    """Train in each way, and write the result."""
    parser = argparse.ArgumentParser(description="Compare ways to train variants.")
    parser.add_argument("--steps", type=int, default=400, help="steps of each training; default: 400")
    parser.add_argument(
        "--movielens", type=Path, metavar="FOLDER", help="the data set; default: synthetic samples only"
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    sections = ["## Synthetic samples, 26 tables", "", *measured(synthetic_spec(options.steps), options.steps).lines()]
    if options.movielens is not None:
        spec = movielens_spec(options.movielens.resolve())
        sections += ["## MovieLens-100K", "", *measured(spec, options.steps).lines()]
    lines = [
        "# Ways to train four variants on two processes of a CPU",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores, load {load:.1f} to {os.getloadavg()[0]:.1f}.",
        "",
        f"{GLOBAL_BATCH:,} samples a step, {options.steps} steps, without evaluation, four learning rates of the dense",
        "part. Seconds of all processes of a way, less those of trainings of one step right before, their start. By",
        "the clock, trainings on one process count half, since two run at once; on a busy machine that says nothing.",
        "Predicted: a step of all four by the clock, as `neuroshard sweep` prices it by cost models of this CPU, with",
        "the waits of processes for each other, which take no processor time. Gain: over one after the other. Aims,",
        "of processor time: 1.4 for parts and for together, 1.6 for both.",
        "",
        *sections,
        "μ-TWO (Purandare et al., MLSys 2023) publishes up to 3 times the speed for models fused on one GPU, whose",
        "launches and idle time they share. A core has neither: what is saved here is reading once, exchanges, and",
        "Python's part of a step.",
    ]
    print(write_result("variants", lines, hardware=hardware_slug(), packages=("torch", "torchrec", "fbgemm-gpu-cpu")))


def synthetic_spec(steps: int) -> dict[str, Any]:
    """Return the spec of a job on synthetic samples."""
    tables = [{"name": f"t{place}", "numEmbeddings": 1000 * (1 + place % 7), "embeddingDim": 16} for place in range(26)]
    return {
        "model": {"embeddingTables": tables, "denseArchLayerSizes": [64], "overArchLayerSizes": [64]},
        "data": {"numSamples": 2 * steps * GLOBAL_BATCH, "validationPercent": 0},
    }


def movielens_spec(folder: Path) -> dict[str, Any]:
    """Return the spec of the example, without its evaluations, on a folder with the data set."""
    spec = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))["spec"]
    return {"model": spec["model"], "data": {**spec["data"], "path": str(folder), "validationPercent": 0}}


def measured(spec: dict[str, Any], steps: int) -> Measured:
    """Train a job in each way, and return the times."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        base = {
            "apiVersion": "training.neuroshard.dev/v1alpha1",
            "kind": "DLRMTrainingJob",
            "metadata": {"name": "small"},
            "spec": {**spec, "experimental": {"data": {"readerProcesses": 0}}},
        }
        predicted_ms = predicted(folder, base)
        start_s, spent_s, clock_s = (dict.fromkeys(WAYS, 0.0) for _ in range(3))
        losses = {way: dict[str, float]() for way in WAYS}
        for number in range(len(RATES)):
            for way in WAYS:
                size = way[1]
                if number % size:
                    continue
                start, _ = trained(folder, base, way, RATES[number : number + size], steps=1)
                whole, found = trained(folder, base, way, RATES[number : number + size], steps=steps)
                start_s[way] += start.processor_s * size / len(RATES)
                spent_s[way] += whole.processor_s - start.processor_s
                clock_s[way] += (whole.clock_s - start.clock_s) * way[0] / PROCESSES
                losses[way] |= found
    furthest = max(abs(losses[way][rate] - losses[ONE_BY_ONE][rate]) for way in WAYS for rate in RATES)
    return Measured(predicted_ms=predicted_ms, spent_s=spent_s, clock_s=clock_s, start_s=start_s, furthest=furthest)


def predicted(folder: Path, base: dict[str, Any]) -> dict[Way, float]:
    """Return the price of each way as ``neuroshard sweep --run`` has it: its trainings are of one step."""
    spec = {
        **base["spec"],
        "model": {**base["spec"]["model"], "batchSizePerDevice": GLOBAL_BATCH // PROCESSES},
        "profiler": {"budgetSeconds": 60},
        "trainer": {"numProcPerNode": PROCESSES},
        "training": {"maxSteps": 1},
    }
    job = folder / "priced.yaml"
    job.write_text(yaml.safe_dump({**base, "spec": spec}), encoding="utf-8")
    asked = ("--devices", str(PROCESSES), "--set", f"spec.training.denseLearningRate={','.join(RATES)}")
    command = [NEUROSHARD, "sweep", str(job), *asked, "--out", str(folder / "sweep"), "--run", "--json"]
    ended, _ = run_timed(command, capture_output=True, text=True, check=True)
    found = json.loads(ended.stdout)["ways"]
    return {(way["sizes"][0], way["together"]): way["total_ms"] for way in found if len(set(way["sizes"])) == 1}


def trained(
    folder: Path, base: dict[str, Any], way: Way, rates: Sequence[str], *, steps: int
) -> tuple[Times, dict[str, float]]:
    """Train variants with these rates together, and return the times, and the last loss of each rate."""
    processes, size = way
    name = f"{processes}-{size}-{rates[0]}-{steps}"
    spec = base["spec"]
    training = {"maxSteps": steps, "epochs": MOST_EPOCHS, "logEverySteps": steps}
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
    return times, found


if __name__ == "__main__":
    main()
