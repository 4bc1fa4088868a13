"""What leaving out repeated lists gives on this CPU: steps, next to the duplication factor.

python -m benchmarks.deduplication DATA
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from neuroshard_api.process.host_memory import keep_freed_memory

from benchmarks.deduplicated_steps import (
    BATCH_SIZE,
    CHANGES,
    COLUMNS,
    MOVIELENS,
    STEPS,
    TABLES,
)
from benchmarks.forms import CLOCK, PLAIN, PROCESSOR, STEP, embedding_ms
from benchmarks.interleaved_loops import measured_blocks
from benchmarks.movielens_log import movielens_tables, write_movielens_log
from benchmarks.results_file import write_result
from benchmarks.session_log import cluster

HEAD = f"""# Training without repeated lists

Synthetic: sessions with four user tables of 20 lookups whose lists repeat together, four item tables of one lookup
whose lists do not, Zipf exponent 0.85. MovieLens-100K: its users' features and histories repeat in sessions, films do
not, and films and histories share a table. Tables have 64 columns. Steps: two processes with gloo, one core each,
{BATCH_SIZE:,} samples each, row-wise Adagrad, a small dense part; {STEPS} steps on all lists and in the forms without
repeats in turns, medians of the ratios of neighbors. The form grouped takes whole tables, and the group of MovieLens
has none."""


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder ml-100k of the package recbole")
    data = parser.parse_args().data
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_movielens_log(folder / "movielens.parquet", data)
        cluster(folder / "movielens.parquet", folder / "movielens", window="1000000000")
        lines = [*HEAD.splitlines(), "", *step_lines(folder / "movielens")]
    print(write_result("deduplication", lines, packages=("numpy", "torch", "torchrec", "pyarrow", "duckdb")))


def step_lines(movielens: Path) -> list[str]:
    """Return the table of steps, on synthetic samples and on the clustered log of MovieLens."""
    script = Path(__file__).with_name("deduplicated_steps.py")
    found = measured_blocks(script, TABLES)
    found |= measured_blocks(script, movielens_tables(COLUMNS), str(movielens))
    lines = [
        "| samples | factor | form | step, ms | over all lists | embedding part over all lists | of processor time |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in (*CHANGES, MOVIELENS):
        clock, processor = found[name][CLOCK], found[name][PROCESSOR]
        for form in clock:
            steps, plain = (np.array([each[STEP] for each in clock[key]]) for key in (form, PLAIN))
            parts = [
                np.array([embedding_ms(each) for each in times[form]])
                / np.array([embedding_ms(each) for each in times[PLAIN]])
                for times in (clock, processor)
            ]
            cells = [
                name if name == MOVIELENS else "synthetic",
                f"{found[name]['factor']:.2f}",
                form,
                f"{median(steps):.1f}",
                *(_spread(each.tolist()) for each in (steps / plain, *parts)),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "In brackets: the middle half of the ratios. Finding repeats is not in a step: readers do it."]


def _spread(ratios: Sequence[float]) -> str:
    low, high = np.quantile(ratios, (0.25, 0.75))
    return f"{median(ratios):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
