"""Time of `neuroshard estimate` for 30 numbers and kinds of devices, and whether its lines are the plans of these.

    python -m benchmarks.device_counts

Five public sets, three kinds, ten numbers from 4 to 128. Three lines of each set are planned again by the command
`plan`.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.results_file import cpu_model, hardware_slug, write_result

WORKLOADS = ("criteo-kaggle", "mlperf-dlrm-v1", "mlperf-dlrm-dcnv2", "criteo-1tb-uncapped", "nvidia-synthetic-tiny")
KINDS = ("a100-80gb", "h100-80gb", "h200-141gb")
NUMBERS = "4..128,6,12,24,48"
NUM_PLANNED_AGAIN = 3


def main() -> None:
    """Run the commands, and write the result."""
    load = os.getloadavg()[0]
    rows = []
    for workload in WORKLOADS:
        asked = ("--devices", NUMBERS, "--device-types", ",".join(KINDS))
        wall_s, processor_s, found = timed("estimate", workload, *asked)
        points = found["points"]
        fitting = [point for point in points if point["plan"] is not None]
        step = max(1, len(fitting) // NUM_PLANNED_AGAIN)
        again = fitting[step // 2 :: step][:NUM_PLANNED_AGAIN]
        off = max((error_of(workload, point) for point in again), default=0.0)
        times = f"{wall_s:.1f} s | {processor_s:.1f} s"
        rows.append(f"| {workload} | {len(points)} | {len(fitting)} | {times} | {100 * off:.2f} % |")
    lines = [
        "# Time of estimates for many numbers and kinds of devices",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores, load {load:.1f} at the start. One run each, start included;",
        f"`--devices {NUMBERS}` of {', '.join(KINDS)}.",
        "",
        "The last column is the largest difference of an embedding part from that of `neuroshard plan` for the same",
        f"devices, over {NUM_PLANNED_AGAIN} lines of each set.",
        "",
        "| tables | lines | of these with a plan | wall | processor | next to `plan` |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    print(write_result("device-counts", lines, hardware=hardware_slug(), packages=("numpy",)))


def timed(*arguments: str) -> tuple[float, float, Any]:
    """Run a command of ``neuroshard``; return wall and processor seconds, and the JSON that it prints."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [str(Path(sys.executable).with_name("neuroshard")), *arguments, "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 - the project's own
    wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(ended.stdout)


def error_of(workload: str, point: dict[str, Any]) -> float:
    """Return by which share a line differs from the plan for its devices."""
    devices = ("--devices", str(point["num_devices"]), "--device-type", point["device_type"])
    _, _, found = timed("plan", workload, *devices, "--batch-size", str(point["samples_per_device"]))
    alone_ms = float(found["predicted"]["total_ms"])
    return abs(float(point["plan"]["embedding_ms"]) - alone_ms) / alone_ms


if __name__ == "__main__":
    main()
