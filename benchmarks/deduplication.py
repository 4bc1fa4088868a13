"""What leaving out repeated lists gives on this CPU: steps, reading, and storage, next to the duplication factor.

python -m benchmarks.deduplication DATA
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.process.host_memory import keep_freed_memory
from neuroshard_trainer.data.collation import BatchMaker, Make
from neuroshard_trainer.data.deduplication import Deduplicated
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import Sessions

from benchmarks import movielens_log
from benchmarks.deduplicated_steps import (
    BATCH_SIZE,
    CHANGES,
    COLUMNS,
    MOVIELENS,
    RUN,
    STEPS,
    TABLES,
    USER,
    log_of,
    source_of,
)
from benchmarks.forms import CLOCK, PLAIN, PROCESSOR, STEP, embedding_ms
from benchmarks.interleaved_loops import measured_blocks
from benchmarks.movielens_log import movielens_tables, write_movielens_log
from benchmarks.results_file import write_result
from benchmarks.session_log import ROW_GROUP_ROWS, SESSION, TIME, write_session_log
from benchmarks.sharded_training import NUM_DENSE

LOG_SAMPLES = 98_304
MEAN_SAMPLES = "8"
LOG_CHANGES = ("0.05", "0.25")
REPEATS = 5
HEAD = f"""# Training, reading, and storing without repeated lists

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
        lines = [*HEAD.splitlines(), "", "## Steps", "", *step_lines(folder / "movielens")]
        lines += ["", "## Storage and reading", "", *log_lines(folder)]
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


def log_lines(folder: Path) -> list[str]:
    """Return the table of logs in the order of time and clustered; ``folder`` has those of MovieLens."""
    what = (
        f"Synthetic: a log of {LOG_SAMPLES:,} samples, sessions of {MEAN_SAMPLES} samples in the mean before "
        f"blocks of 4,096 "
        "cut them, 384 open at a time. MovieLens-100K: 100,000 ratings of 2,793 sessions. Parquet, zstd. Reading: "
        "from Parquet "
        f"to batches of a rank in a shuffled order (by time: of samples; clustered: of runs of {RUN}), in "
        f"processor time of one "
        "core."
    )
    lines = [
        what,
        "",
        "| samples | order | MB | factor in batches | samples per second read | and repeats left out |",
        "|---|---|---|---|---|---|",
    ]
    movielens, synthetic = (
        movielens_tables(COLUMNS),
        {name: f"synthetic, chance of a change {name}" for name in LOG_CHANGES},
    )
    for change, name in synthetic.items():
        log = folder / f"{change}.parquet"
        source = source_of(change, num_samples=LOG_SAMPLES, samples_per_session=MEAN_SAMPLES)
        write_session_log(log, source, features_of(TABLES.tables))
        cluster(log, log.with_suffix(""), window=str(LOG_SAMPLES))
        lines += log_rows(name, log, TABLES, USER, num_dense=NUM_DENSE)
    return lines + log_rows(
        MOVIELENS, folder / "movielens.parquet", movielens, movielens_log.USER, num_dense=movielens_log.NUM_DENSE
    )


def log_rows(name: str, log: Path, tables: TableSet, group: Sequence[str], *, num_dense: int) -> list[str]:
    """Return the rows of a log, and of the folder of the same name in which it is clustered."""
    rows = []
    for order, place, run in (("time", log, 1), ("clustered", log.with_suffix(""), RUN)):
        files = [place] if place.is_file() else sorted(place.glob("*.parquet"))
        size = sum(file.stat().st_size for file in files) / 1e6
        rates, factor = rates_of(files, tables, group, run=run, num_dense=num_dense)
        rows.append(f"| {name} | {order} | {size:.2f} | {factor:.2f} | {rates[0]} | {rates[1]} |")
    return rows


def cluster(log: Path, out: Path, *, window: str) -> None:
    """Cluster a log by its sessions, as a user does."""
    command = [
        sys.executable,
        "-c",
        "from neuroshard_cli.main import main; main()",
        "cluster-sessions",
        str(log),
        "--out",
        str(out),
    ]
    columns = ["--session", SESSION, "--time", TIME, "--window", window]
    columns += ["--row-group-rows", str(ROW_GROUP_ROWS)]
    subprocess.run([*command, *columns], check=True, env=dict(os.environ), stdout=subprocess.DEVNULL)  # noqa: S603


def rates_of(
    files: Sequence[Path], tables: TableSet, group: Sequence[str], *, run: int, num_dense: int
) -> tuple[list[str], float]:
    """Return samples per second of whole batches and of those without repeats, and samples over distinct ones."""
    features = features_of(tables.tables)
    keys = [feature.name for feature in features]
    source = log_of(files, tables, num_dense=num_dense)
    order = SampleOrder(
        source.block_sizes, validation_percent=0, seed=0, shuffle=True, sessions=Sessions(source=source, run=run)
    )
    maker = BatchMaker(source, order, features, rank=0, world_size=1, batch_size=BATCH_SIZE)
    positions = range(0, order.num_training - BATCH_SIZE + 1, BATCH_SIZE)
    without = Deduplicated(make=maker.training, groups=(tuple(keys.index(name) for name in group),))
    distinct = [without(position).num_distinct[0] for position in positions]
    rates = [[rate(make, positions) for _ in range(REPEATS)] for make in (maker.training, without)]
    return [f"{median(each):,.0f}" for each in rates], len(positions) * BATCH_SIZE / sum(distinct)


def rate(make: Make, positions: range) -> float:
    """Return samples per second of processor time."""
    began = time.process_time()
    for position in positions:
        make(position)
    return len(positions) * BATCH_SIZE / (time.process_time() - began)


def _spread(ratios: Sequence[float]) -> str:
    low, high = np.quantile(ratios, (0.25, 0.75))
    return f"{median(ratios):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
