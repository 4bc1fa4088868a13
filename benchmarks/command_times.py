"""What a whole `neuroshard plan` takes from start to exit: processor time, time by the clock, and memory.

    OMP_NUM_THREADS=1 python -m benchmarks.command_times [--without-largest]

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
from neuroshard_api.documents.tables import TableSet
from neuroshard_planner.workload_store import read_workload

from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE, GLOBAL_BATCH_SIZE, SEED, draw_pool, sampled_tables
from benchmarks.timed_command import Times, run_timed

DEVICES_PER_NODE = 8
REPEATS = 5
PUBLIC, NUM_PUBLIC_TABLES = "mlperf-dlrm-dcnv2", 26
MOST_REPEATED_TABLES = 1_000
LEAST_BATCH_SIZE, MOST_BATCH_SIZE = 512, 8192  # samples per device


class Aim(NamedTuple):
    """What a whole command should take at most."""

    processor_s: float
    peak_gb: float = float("inf")

    def __str__(self) -> str:
        """Return both limits, memory only where there is one."""
        return f"{self.processor_s:g} s" + (f", {self.peak_gb:g} GB" if isfinite(self.peak_gb) else "")


AIMS = {(26, 8): Aim(1), (1_000, 1): Aim(1), (400, 8): Aim(1.5), (1_000, 128): Aim(3), (10_000, 1_024): Aim(60, 0.5)}
"""By tables and devices; 26 tables are the public workload."""


def table_set(num_tables: int, num_devices: int) -> TableSet:
    """Return the public workload, or as many tables of the pool; for one device with a hundredth of their rows."""
    if num_tables == NUM_PUBLIC_TABLES:
        return read_workload(PUBLIC)
    drawn = sampled_tables(draw_pool(), num_tables, np.random.default_rng(SEED), name=f"{num_tables} tables")
    if num_devices > 1:
        return drawn
    short = [each.model_copy(update={"num_embeddings": -(-each.num_embeddings // 100)}) for each in drawn.tables]
    return drawn.model_copy(update={"tables": tuple(short)})


def measure(tables: Path, num_devices: int, scratch: Path) -> Times:
    """Plan once in a process of its own."""
    nodes = max(1, num_devices // DEVICES_PER_NODE)
    command = [sys.executable, "-c", "from neuroshard_cli.main import main; main()", "plan", str(tables)]
    command += ["--devices", str(num_devices), "--nodes", str(nodes), "--device-type", DEVICE_TYPE]
    batch_size = min(max(GLOBAL_BATCH_SIZE // num_devices, LEAST_BATCH_SIZE), MOST_BATCH_SIZE)
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
    parser.add_argument("--without-largest", action="store_true", help="leave out 10,000 tables")
    largest = MOST_REPEATED_TABLES if parser.parse_args().without_largest else 10_000
    lines = [
        "# Time of a whole plan command",
        "",
        f"`neuroshard plan` with the bundled models of {DEVICE_TYPE}, from the start of the interpreter to its end,",
        f"median and least of {REPEATS} runs after one that is not measured (largest set: one). 26 tables are",
        f"{PUBLIC}; the others are drawn from the pool of the task distribution, with the devices' whole",
        "memory (for one device with a hundredth of the rows). Python's modules are compiled, as pip and the images",
        "leave them. Peak memory is that of the largest run so far. The aims are for processor time and peak memory on",
        "an idle machine. Other work raises processor time too; the least is nearest to an idle machine's and decides",
        "whether an aim is met.",
        "",
        "| tables | devices | processor time | least | by the clock | peak memory | aim | met |",
        "|---|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for (num_tables, num_devices), aim in AIMS.items():
            if num_tables > largest:
                continue
            tables = scratch / "tables.json"
            tables.write_text(table_set(num_tables, num_devices).to_json())
            is_repeated = num_tables <= MOST_REPEATED_TABLES
            runs = [measure(tables, num_devices, scratch) for _ in range(1 + REPEATS if is_repeated else 1)]
            runs = runs[1:] if is_repeated else runs
            peak_gb = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e9
            spent_s = [run.processor_s for run in runs]
            is_met = min(spent_s) <= aim.processor_s and peak_gb <= aim.peak_gb
            lines.append(
                f"| {num_tables:,} | {num_devices:,} | {median(spent_s):.2f} s | {min(spent_s):.2f} s "
                f"| {median(run.clock_s for run in runs):.2f} s | {peak_gb:.2f} GB | {aim} "
                f"| {'yes' if is_met else 'no'} |"
            )
            print(lines[-1], file=sys.stderr)
    print(write_result("command-times", lines))


if __name__ == "__main__":
    main()
