"""How devices are divided among variants: the choice next to all divisions, and its order next to trainings on a CPU.

    python -m benchmarks.sweep_choice

The first part prices five public sets on 1 to 16 H100 (simulated) for 2 to 8 equal variants, and compares the chosen
division with every choice of sizes. The second measures this CPU, trains four variants of a small model on one and on
two processes each, in turns, and compares processor time with the prices.
"""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import combinations_with_replacement
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from neuroshard_api.job.job_file import read_job_file
from neuroshard_dlrm.device_counts import planned_counts
from neuroshard_dlrm.devices import find_preset
from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.requests import read_source, request_of
from neuroshard_dlrm.sweeps import on_part
from neuroshard_report.explain.divisions import PartTimes, Room, best_division, in_turns

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.timed_command import run_timed

WORKLOADS = ("criteo-kaggle", "mlperf-dlrm-v1", "mlperf-dlrm-dcnv2", "nvidia-synthetic-tiny", "nvidia-synthetic-small")
DEVICES = (1, 4, 8, 16)
VARIANTS = (2, 4, 8)
SAMPLES_PER_DEVICE = 8192
"""On all devices; on a part more."""
NUM_STEPS, GLOBAL_BATCH = 120, 2048
RATES = ("0.001", "0.002", "0.004", "0.008")
SIZES = (1, 2)
NEUROSHARD = str(Path(sys.executable).with_name("neuroshard"))


def main() -> None:
    """Price, train, and write the result."""
    choices = [row for workload in WORKLOADS for row in choice_rows(workload)]
    load = os.getloadavg()[0]
    lines = [
        "# How devices are divided among variants",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores, load {load:.1f}.",
        "",
        "## The choice next to every choice of sizes",
        "",
        f"Equal variants, {SAMPLES_PER_DEVICE:,} samples per device where a variant has all of them; steps of the",
        "embedding part and the host, without a dense part, simulated H100. Gain: over one variant after the other on",
        "all devices. The last column is the time of the chosen division over the least of all sizes.",
        "",
        "| tables | devices | variants | chosen: devices of each | ms for a step of all | gain | over the best |",
        "|---|---|---|---|---|---|---|",
        *choices,
        "",
        *trained_lines(),
    ]
    print(write_result("sweep-choice", lines, hardware=hardware_slug(), packages=("numpy", "torch", "torchrec")))


def choice_rows(workload: str) -> Iterator[str]:
    """Yield a row for each number of devices and of variants."""
    for devices in DEVICES:
        per_node = min(devices, find_preset("h100-80gb").devices_per_node)
        room = Room(num_nodes=devices // per_node, devices_per_node=per_node)
        times = part_times(workload, room)
        if all(each is None for each in times):
            yield f"| {workload} | {devices} | any | no room | | | |"
            continue
        for count in VARIANTS:
            found = best_division([times] * count, room)
            assert found is not None, "a part has room"
            best = min(total_of(sizes, times, room) for sizes in all_sizes(times, room, count))
            whole_ms = times[-1]
            gain = "-" if whole_ms is None else f"{count * whole_ms / found.total:.2f}"
            sizes = ", ".join(map(str, sorted(found.sizes.values())))
            numbers = f"{found.total:.3f} | {gain} | {found.total / best:.3f}"
            yield f"| {workload} | {devices} | {count} | {sizes} | {numbers} |"


def part_times(workload: str, room: Room) -> PartTimes:
    """Return the milliseconds of a step on a part of each size; the samples of all devices stay."""
    source, of_all = read_source(workload), SAMPLES_PER_DEVICE * room.num_devices
    requests = [
        request_of(
            source,
            RequestOptions(tables=workload, devices=size, device_type="h100-80gb", batch_size=of_all // size),
            algorithm=None,
        )
        for size in room.sizes
    ]
    counts = dict(planned_counts(requests, bundle=None, prices={}))
    return [counts[place].step_ms for place in range(len(requests))]


def all_sizes(times: PartTimes, room: Room, count: int) -> Iterator[tuple[int, ...]]:
    """Yield every choice of sizes of equal variants."""
    fitting = [size for size, time_ms in zip(room.sizes, times, strict=True) if time_ms is not None]
    return combinations_with_replacement(fitting, count)


def total_of(sizes: Sequence[int], times: PartTimes, room: Room) -> float:
    """Return the time until all variants have trained a step."""
    taken = [times[room.sizes.index(size)] or 0.0 for size in sizes]
    return in_turns(sizes, taken, room).total


def trained_lines() -> list[str]:
    """Return predicted and measured times of variants on one and on two processes of this CPU."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        file = written_job(folder)
        room = Room(num_nodes=1, devices_per_node=max(SIZES))
        predicted = predicted_ms(file, folder)
        processor_s = dict.fromkeys(SIZES, 0.0)
        start_s = {
            size: run_of(file, folder, size, room=room, name="start", training={"maxSteps": 1}) for size in SIZES
        }
        for rate in RATES:
            for size in SIZES:
                own = {"denseLearningRate": rate, "maxSteps": NUM_STEPS}
                processor_s[size] += (
                    run_of(file, folder, size, room=room, name=f"rate-{rate}", training=own) - start_s[size]
                )
    lines = [
        "## Four variants on two processes of this CPU",
        "",
        f"26 tables of 16 columns, {GLOBAL_BATCH:,} synthetic samples a step, {NUM_STEPS} steps, without evaluation.",
        "Predicted: milliseconds of two devices for a step of all four, by cost models and dense parts measured here.",
        "Measured: processor seconds of all processes of the four `neuroshard run`, less those of runs of one step,",
        "their start; by the clock a busy machine would say nothing.",
        "",
        "| way | predicted, ms | measured, s | start of one, s |",
        "|---|---|---|---|",
    ]
    names = {1: "two at a time on one process each", 2: "one after the other on both"}
    lines += [
        f"| {names[size]} | {predicted[size]:.1f} | {processor_s[size]:.1f} | {start_s[size]:.1f} |" for size in SIZES
    ]
    gains = predicted[2] / predicted[1], processor_s[2] / processor_s[1]
    order = "equal" if (gains[0] > 1) == (gains[1] > 1) else "not equal"
    return [*lines, "", f"Gain of parts: predicted {gains[0]:.2f}, measured {gains[1]:.2f}; the order is {order}."]


def written_job(folder: Path) -> Path:
    """Write the job, and return its file."""
    tables: list[dict[str, Any]] = [
        {"name": f"t{place}", "numEmbeddings": 1000 * (1 + place % 7), "embeddingDim": 16} for place in range(26)
    ]
    spec = {
        "model": {
            "embeddingTables": tables,
            "batchSizePerDevice": GLOBAL_BATCH // max(SIZES),
            "denseArchLayerSizes": [64],
            "overArchLayerSizes": [64],
        },
        "profiler": {"budgetSeconds": 60},
        "trainer": {"numProcPerNode": max(SIZES)},
        "data": {"numSamples": 2 * NUM_STEPS * GLOBAL_BATCH, "validationPercent": 0},
        "experimental": {"data": {"readerProcesses": 0}},
        "training": {"maxSteps": NUM_STEPS},
    }
    job = {
        "apiVersion": "training.neuroshard.dev/v1alpha1",
        "kind": "DLRMTrainingJob",
        "metadata": {"name": "small"},
        "spec": spec,
    }
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path


def predicted_ms(file: Path, folder: Path) -> dict[int, float]:
    """Return the price of each way as ``neuroshard sweep --run`` has it: its trainings are of one step."""
    asked = ("--devices", str(max(SIZES)), "--set", f"spec.training.denseLearningRate={','.join(RATES)}")
    short = folder / "short.yaml"
    short.write_text(file.read_text(encoding="utf-8").replace(f"maxSteps: {NUM_STEPS}", "maxSteps: 1"))
    command = [NEUROSHARD, "sweep", str(short), *asked, "--out", str(folder / "sweep"), "--run", "--json"]
    ended, _ = run_timed(command, capture_output=True, text=True, check=True)
    ways = json.loads(ended.stdout)["ways"]
    return {way["sizes"][0]: way["total_ms"] for way in ways if len(set(way["sizes"])) == 1}


def run_of(file: Path, folder: Path, size: int, *, room: Room, name: str, training: dict[str, Any]) -> float:
    """Train a variant on that many processes, and return the processor seconds of all its processes."""
    document = on_part(read_job_file(file), size, room).document
    document = {**document, "spec": {**document["spec"], "training": training}}
    path = folder / f"{name}-{size}.yaml"
    path.write_text(yaml.safe_dump(dict(document)), encoding="utf-8")
    bundle, run_dir = folder / "sweep" / "runs" / "profile", folder / f"run-{name}-{size}"
    command = [NEUROSHARD, "run", str(path), "--run-dir", str(run_dir), "--bundle", str(bundle)]
    _, times = run_timed(command, capture_output=True, text=True, check=True)
    return times.processor_s


if __name__ == "__main__":
    main()
