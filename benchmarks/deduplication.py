"""What leaving out repeated lists gives on this CPU: steps, next to the duplication factor.

    python -m benchmarks.deduplication DATA
    python -m benchmarks.deduplication DATA --parts FOLDER --minutes 4     # some parts; again, until all are measured

A part takes about a minute.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from neuroshard_api.process.host_memory import keep_freed_memory

from benchmarks.deduplicated_steps import (
    BATCH_SIZE,
    CHANGES,
    COLUMNS,
    CROSSED,
    CROSSED_STEPS,
    CROSSED_TABLES,
    MOVIELENS,
    STEPS,
    TABLES,
)
from benchmarks.forms import CLOCK, ONCE, PLAIN, PROCESSOR, STEP, embedding_ms
from benchmarks.interleaved_loops import measured_blocks
from benchmarks.kept_parts import add_options, kept_parts
from benchmarks.movielens_log import movielens_tables, write_movielens_log
from benchmarks.results_file import write_result
from benchmarks.session_log import cluster

HEAD = f"""# Training without repeated lists

Synthetic: sessions with four user tables of 20 lookups whose lists repeat together, four item tables of one lookup
whose lists do not, Zipf exponent 0.85. MovieLens-100K: its users' features and histories repeat in sessions, films do
not, and films and histories share a table. Tables have 64 columns. Steps: two processes with gloo, one core each,
{BATCH_SIZE:,} samples each, row-wise Adagrad, a small dense part; {STEPS} steps on all lists and in the forms without
repeats in turns, medians of the ratios of neighbors. The form grouped takes whole tables, and the group of MovieLens
has none. DCNv2: 13 user tables of 3 lookups and 13 item tables of one, three cross layers of rank 128, {CROSSED_STEPS}
steps; `{ONCE}` computes the users' part of the first product with all features once per list."""
SCRIPT = Path(__file__).with_name("deduplicated_steps.py")


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder ml-100k of the package recbole")
    add_options(parser)
    options = parser.parse_args()
    keep_freed_memory()
    with kept_parts(options) as kept:
        parts: dict[str, Callable[[], Any]] = {name: partial(measured_blocks, SCRIPT, TABLES, name) for name in CHANGES}
        parts[CROSSED] = partial(measured_blocks, SCRIPT, CROSSED_TABLES, CROSSED)
        parts[MOVIELENS] = lambda: movielens_steps(options.data, kept.folder)
        found = kept.measured(parts)
    if found is None:
        return
    lines = [*HEAD.splitlines(), "", *step_lines(found)]
    print(write_result("deduplication", lines, packages=("numpy", "torch", "torchrec", "pyarrow", "duckdb")))


def movielens_steps(data: Path, folder: Path) -> Any:  # noqa: ANN401 - as measured_blocks
    """Measure steps on the clustered log of MovieLens, which is written below a folder."""
    write_movielens_log(folder / "movielens.parquet", data)
    cluster(folder / "movielens.parquet", folder / "movielens", window="1000000000")
    return measured_blocks(SCRIPT, movielens_tables(COLUMNS), MOVIELENS, str(folder / "movielens"))


def step_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the table of steps, on synthetic samples and on the clustered log of MovieLens."""
    lines = [
        (
            "| samples | factor | form | step, ms | over all lists | of processor time | embedding part over all lists "
            "| of processor time |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in found:
        clock, processor = found[name][CLOCK], found[name][PROCESSOR]
        for form in clock:
            steps = [
                np.array([each[STEP] for each in times[form]]) / np.array([each[STEP] for each in times[PLAIN]])
                for times in (clock, processor)
            ]
            parts = [
                np.array([embedding_ms(each) for each in times[form]])
                / np.array([embedding_ms(each) for each in times[PLAIN]])
                for times in (clock, processor)
            ]
            cells = [
                "synthetic" if name in CHANGES else name,
                f"{found[name]['factor']:.2f}",
                form,
                f"{median(each[STEP] for each in clock[form]):.1f}",
                *(_spread(each.tolist()) for each in (*steps, *parts)),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "In brackets: the middle half of the ratios. Finding repeats is not in a step: readers do it."]


def _spread(ratios: Sequence[float]) -> str:
    low, high = np.quantile(ratios, (0.25, 0.75))
    return f"{median(ratios):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
