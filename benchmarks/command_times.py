"""What a whole `neuroshard plan` takes from start to exit: processor time, time by the clock, and memory.

    OMP_NUM_THREADS=1 python -m benchmarks.command_times [--sets 10] [--most-tables 10000]

Writes benchmarks/results/command-times_<hardware>_<date>.md.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from math import isfinite
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE, GLOBAL_BATCH_SIZE, LEAST_BATCH_SIZE_PER_DEVICE, random_tables
from benchmarks.timed_command import Times, run_timed

DEVICES_PER_NODE = 8
FIRST_SEED = 71_300
"""Of the sets; other benchmarks have others."""
MOST_REPEATED_TABLES = 1_000
MOST_BATCH_SIZE = 8192  # samples per device


class Aim(NamedTuple):
    """What a whole command should take at most."""

    processor_s: float
    peak_gb: float = float("inf")

    def __str__(self) -> str:
        """Return both limits, memory only where there is one."""
        return f"{self.processor_s:g} s" + (f", {self.peak_gb:g} GB" if isfinite(self.peak_gb) else "")


AIMS = {
    (26, 8): Aim(0.8),
    (26, 16): Aim(1),
    (100, 8): Aim(1),
    (200, 64): Aim(3),
    (1_000, 128): Aim(5, 0.3),
    (10_000, 1_024): Aim(60, 0.5),
}
"""By tables and devices, ascending."""


def measure(num_tables: int, num_devices: int, *, seed: int, scratch: Path) -> Times:
    """Plan a random set once in a process of its own."""
    tables = scratch / "tables.json"
    drawn = random_tables(num_tables, num_devices, np.random.default_rng(seed), name=f"{num_tables} tables")
    tables.write_text(drawn.to_json())
    nodes = max(1, num_devices // DEVICES_PER_NODE)
    command = [sys.executable, "-c", "from neuroshard_cli.main import main; main()", "plan", str(tables)]
    command += ["--devices", f"{nodes}x{num_devices // nodes}", "--device-type", DEVICE_TYPE]
    batch_size = min(max(GLOBAL_BATCH_SIZE // num_devices, LEAST_BATCH_SIZE_PER_DEVICE), MOST_BATCH_SIZE)
    command += ["--batch-size", str(batch_size)]
    _, times = run_timed(
        [*command, "--out", str(scratch / "plan.json")],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment(scratch),
    )
    return times


def environment(scratch: Path) -> dict[str, str]:
    """Return the variables of a command whose modules are compiled once, as pip and the images leave them."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"OMP_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": str(scratch / "bytecode")}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=10, help="of each size; of the largest, one")
    parser.add_argument("--most-tables", type=int, default=10_000, help="of a size; larger ones are left out")
    arguments = parser.parse_args()
    lines = [
        "# Time of a whole plan command",
        "",
        f"`neuroshard plan` with the bundled models of {DEVICE_TYPE}, from the start of the interpreter to its end, on",
        f"{arguments.sets} random sets of each size (100 to 40 million rows, widths 16 to 128; of the largest, one),",
        "in the default sharding types with the devices' whole memory: median (least to most) over the sets, one run",
        "of each. The levers that a plan names count. Python's modules are compiled, as pip and the images leave them.",
        "Peak memory is that of the largest run so far. The aims are for medians on an idle machine; other work raises",
        "processor time too.",
        "",
        "| tables | devices | processor time | by the clock | peak memory | aim | met |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        measure(*next(iter(AIMS)), seed=FIRST_SEED, scratch=scratch)  # compiles the modules
        for (num_tables, num_devices), aim in AIMS.items():
            if num_tables > arguments.most_tables:
                continue
            count = arguments.sets if num_tables <= MOST_REPEATED_TABLES else 1
            seeds = range(FIRST_SEED, FIRST_SEED + count)
            runs = [measure(num_tables, num_devices, seed=seed, scratch=scratch) for seed in seeds]
            peak_gb = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e9
            spent_s = [run.processor_s for run in runs]
            is_met = median(spent_s) <= aim.processor_s and peak_gb <= aim.peak_gb
            lines.append(
                f"| {num_tables:,} | {num_devices:,} | {median(spent_s):.2f} s ({min(spent_s):.2f} to "
                f"{max(spent_s):.2f}) | {median(run.clock_s for run in runs):.2f} s | {peak_gb:.2f} GB | {aim} "
                f"| {'yes' if is_met else 'no'} |"
            )
            print(lines[-1], file=sys.stderr)
    print(write_result("command-times", lines))


if __name__ == "__main__":
    main()
