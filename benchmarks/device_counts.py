"""Time of `neuroshard estimate` for 30 numbers and kinds of devices, and whether its lines are the plans of these.

    python -m benchmarks.device_counts

Five public sets, three kinds, ten numbers from 4 to 128. Three lines of each set are planned again by the command
`plan`.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.timed_command import Times, run_timed

WORKLOADS = ("criteo-kaggle", "mlperf-dlrm-v1", "mlperf-dlrm-dcnv2", "criteo-1tb-uncapped", "nvidia-synthetic-tiny")
KINDS = ("a100-80gb", "h100-80gb", "h200-141gb")
NUMBERS = "4..128,6,12,24,48"
NUM_PLANNED_AGAIN = 3


def main() -> None:
    """Run the commands, and write the result."""
    load = os.getloadavg()[0]
    rows = []
    for workload in WORKLOADS:
        asked = ("--devices", NUMBERS, "--device-type", ",".join(KINDS))
        found, taken = printed("estimate", workload, *asked)
        points = found["points"]
        fitting = [point for point in points if point["plan"] is not None]
        step = max(1, len(fitting) // NUM_PLANNED_AGAIN)
        again = fitting[step // 2 :: step][:NUM_PLANNED_AGAIN]
        off = max((error_of(workload, point) for point in again), default=0.0)
        times = f"{taken.clock_s:.1f} s | {taken.processor_s:.1f} s"
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


def printed(*arguments: str) -> tuple[Any, Times]:
    """Run a command of ``neuroshard``; return the JSON that it prints, and its times."""
    command = [str(Path(sys.executable).with_name("neuroshard")), *arguments, "--json"]
    ended, times = run_timed(command, capture_output=True, text=True, check=True)
    return json.loads(ended.stdout), times


def error_of(workload: str, point: dict[str, Any]) -> float:
    """Return by which share a line differs from the plan for its devices."""
    devices = ("--devices", str(point["num_devices"]), "--device-type", point["device_type"])
    found, _ = printed("plan", workload, *devices, "--batch-size", str(point["samples_per_device"]))
    alone_ms = float(found["predicted"]["total_ms"])
    return abs(float(point["plan"]["embedding_ms"]) - alone_ms) / alone_ms


if __name__ == "__main__":
    main()
