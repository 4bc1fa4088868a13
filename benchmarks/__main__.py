"""Runs the benchmarks one after the other, each on one thread. About an hour in all.

    python -m benchmarks [SCRIPT ...]

README.md says what each proves. Scripts that print their result have it written here.
"""

import argparse
import os
import subprocess
import sys

from benchmarks.results_file import result_path

WRITING = (
    "task_pool",
    "zipf_fit",
    "search_quality",
    "search_time",
    "never_dearer",
    "robustness",
    "mixed_placements",
    "held_out_placements",
    "optimality",
    "long_searches",
    "command_times",
    "plan_times",
    "shard_tolerance",
    "profiler_error",
    "reporter_overhead",
    "memory_error",
)
PRINTING = {"simulator_vs_published": "any", "prediction_error": None}
"""The scripts that print, with the hardware their result depends on; None is this machine."""


def main() -> None:
    """Run the scripts; stop at the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"of {', '.join([*WRITING, *PRINTING])}; all")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    for script in parser.parse_args().scripts or [*WRITING, *PRINTING]:
        command = [sys.executable, "-m", f"benchmarks.{script}"]
        if script not in PRINTING:
            subprocess.run(command, check=True, env=environment)  # noqa: S603 - a script of this folder
            continue
        printed = subprocess.run(command, check=True, env=environment, stdout=subprocess.PIPE).stdout  # noqa: S603
        path = result_path(script.replace("_", "-"), PRINTING[script])
        path.write_bytes(printed)
        print(path)


if __name__ == "__main__":
    main()
