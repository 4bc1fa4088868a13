"""What leaving out repeated lists gives on this CPU: steps, reading, and storage, beside the duplication factor.

python -m benchmarks.deduplication
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from neuroshard_api.host_memory import keep_freed_memory
from neuroshard_trainer.data.collation import BatchMaker, Make
from neuroshard_trainer.data.deduplication import Deduplicated
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.parquet import ParquetSource
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import Sessions

from benchmarks.deduplicated_steps import BATCH_SIZE, CHANGES, RUN, STEPS, TABLES, USER, source_of
from benchmarks.interleaved_loops import measured_blocks
from benchmarks.results_file import write_result
from benchmarks.session_log import LABEL, ROW_GROUP_ROWS, SESSION, TIME, write_session_log
from benchmarks.sharded_training import NUM_DENSE

LOG_SAMPLES = 98_304
MEAN_SAMPLES = "8"
LOG_CHANGES = ("0.05", "0.25")
REPEATS = 5
HEAD = f"""# Training, reading, and storing without repeated lists

Synthetic sessions: four user tables of 20 lookups whose lists repeat together, four item tables of one lookup whose
lists do not, 64 columns, Zipf exponent 0.85. Steps: two processes with gloo, one core each, {BATCH_SIZE:,} samples
each, row-wise Adagrad, a small dense part; {STEPS} steps on all lists and without repeats in turns, medians of the
ratios of neighbors."""


def main() -> None:
    """Measure and write the result."""
    keep_freed_memory()
    lines = [*HEAD.splitlines(), "", "## Steps", "", *step_lines(), "", "## Storage and reading", "", *log_lines()]
    print(write_result("deduplication", lines, packages=("numpy", "torch", "torchrec", "pyarrow", "duckdb")))


def step_lines() -> list[str]:
    """Return the table of steps."""
    found = measured_blocks(Path(__file__).with_name("deduplicated_steps.py"), TABLES)
    lines = [
        "| factor | step on all lists, ms | without repeats, ms | ratio by the clock | ratio of processor time |",
        "|---|---|---|---|---|",
    ]
    for change in CHANGES:
        plain, without = (np.array(found[change][form]) for form in ("plain", "without"))
        ratios = without / plain
        cells = [
            f"{found[change]['factor']:.2f}",
            *(f"{median(each[:, 0]):.1f}" for each in (plain, without)),
            *(_spread(ratios[:, column].tolist()) for column in (0, 1)),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, "", "In brackets: the middle half of the ratios. Finding repeats is not in a step: readers do it."]


def log_lines() -> list[str]:
    """Return the table of logs in the order of time and clustered."""
    what = (
        f"A log of {LOG_SAMPLES:,} samples, sessions of {MEAN_SAMPLES} samples in the mean before blocks of 4,096 cut "
        "them, 384 open at a time; Parquet, zstd. Reading: from Parquet to batches of a rank in a shuffled order (by "
        f"time: of samples; clustered: of runs of {RUN}), in processor time of one core."
    )
    lines = [
        what,
        "",
        "| chance of a change | order | MB | factor in batches | samples per second read | and repeats left out |",
        "|---|---|---|---|---|---|",
    ]
    for change in LOG_CHANGES:
        with tempfile.TemporaryDirectory() as scratch:
            by_time = Path(scratch) / "log.parquet"
            source = source_of(change, num_samples=LOG_SAMPLES, samples_per_session=MEAN_SAMPLES)
            write_session_log(by_time, source, features_of(TABLES.tables))
            clustered = Path(scratch) / "clustered"
            cluster(by_time, clustered)
            for name, files, run in (("time", [by_time], 1), ("clustered", sorted(clustered.glob("*.parquet")), RUN)):
                size = sum(file.stat().st_size for file in files) / 1e6
                rates, factor = rates_of(files, run=run)
                lines.append(f"| {change} | {name} | {size:.1f} | {factor:.2f} | {rates[0]} | {rates[1]} |")
    return lines


def cluster(log: Path, out: Path) -> None:
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
    columns = ["--session", SESSION, "--time", TIME, "--window", str(LOG_SAMPLES)]
    columns += ["--row-group-rows", str(ROW_GROUP_ROWS)]
    subprocess.run([*command, *columns], check=True, env=dict(os.environ), stdout=subprocess.DEVNULL)  # noqa: S603


def rates_of(files: Sequence[Path], *, run: int) -> tuple[list[str], float]:
    """Return samples per second of whole batches and of those without repeats, and samples over distinct ones."""
    features = features_of(TABLES.tables)
    source = ParquetSource(
        [DataFile(str(file)) for file in files],
        features,
        label_column=LABEL,
        dense_columns=[f"dense_{column}" for column in range(NUM_DENSE)],
        session_column=SESSION,
        time_column=TIME,
    )
    order = SampleOrder(
        source.block_sizes, validation_percent=0, seed=0, shuffle=True, sessions=Sessions(source=source, run=run)
    )
    maker = BatchMaker(source, order, features, rank=0, world_size=1, batch_size=BATCH_SIZE)
    positions = range(0, order.num_training - BATCH_SIZE + 1, BATCH_SIZE)
    without = Deduplicated(make=maker.training, groups=(tuple(range(len(USER))),))
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
