"""What readers and disks save on a log clustered by session, with a list in every row and with lists stored once.

    python -m benchmarks.session_reading DATA
    python -m benchmarks.session_reading DATA --parts FOLDER --minutes 4     # some logs; again, until all are measured

A log takes about a minute.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.process.host_memory import keep_freed_memory
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.deduplication import WithoutRepeats
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import Sessions

from benchmarks import movielens_log
from benchmarks.deduplicated_steps import BATCH_SIZE, COLUMNS, MOVIELENS, RUN, TABLES, USER, log_of, source_of
from benchmarks.kept_parts import add_options, kept_parts
from benchmarks.movielens_log import movielens_tables, write_movielens_log
from benchmarks.results_file import write_result
from benchmarks.session_log import cluster, write_session_log
from benchmarks.sharded_training import NUM_DENSE

LOG_SAMPLES = 98_304
MEAN_SAMPLES = "8"
CHANGES = ("1", "0.25", "0.05")
PASSES = 9
HEAD = f"""# Storing and reading logs of sessions

Synthetic: {LOG_SAMPLES:,} samples, sessions of {MEAN_SAMPLES} samples in the mean before blocks of 4,096 cut them,
384 open at a time; four user tables of 20 lookups whose lists repeat together, four item tables of one lookup whose
lists do not. MovieLens-100K: 100,000 ratings of 2,793 sessions. Parquet, zstd, clustered by
`neuroshard cluster-sessions`. Reading: from Parquet to the batches of a rank, {BATCH_SIZE:,} samples each, in a
shuffled order (by time: of samples; by session: of runs of {RUN}), in processor time of one core; medians of {PASSES}
passes, in which all rows of a log take turns. Ratios are to the log by time with all lists in the same pass, in
brackets the middle half. RecD (Zhao et al., MLSys 2023) reports 1.79 times the preprocessing and 3.71 times less
storage, of other logs on other machines."""


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder ml-100k of the package recbole")
    add_options(parser)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    with kept_parts(options) as kept:
        parts: dict[str, Callable[[], list[str]]] = {
            change: partial(synthetic_rows, change, kept.folder) for change in CHANGES
        }
        parts[MOVIELENS] = lambda: movielens_rows(options.data, kept.folder)
        found = kept.measured(parts)
    if found is None:
        return
    lines = [
        *HEAD.splitlines(),
        "",
        "| samples | order | lists | MB | factor in batches | batches | samples per second | ratio |",
        "|---|---|---|---|---|---|---|---|",
        *(line for rows in found.values() for line in rows),
    ]
    print(write_result("session-reading", lines, packages=("numpy", "torch", "pyarrow", "duckdb")))


def synthetic_rows(change: str, folder: Path) -> list[str]:
    """Return the rows of a synthetic log, which is written below a folder."""
    log = folder / f"{change}.parquet"
    source = source_of(change, num_samples=LOG_SAMPLES, samples_per_session=MEAN_SAMPLES)
    write_session_log(log, source, features_of(TABLES.tables))
    name = f"synthetic, chance of a change {change}"
    return rows_of(name, log, TABLES, USER, window=str(LOG_SAMPLES), num_dense=NUM_DENSE)


def movielens_rows(data: Path, folder: Path) -> list[str]:
    """Return the rows of MovieLens' log, which is written below a folder."""
    log = folder / "movielens.parquet"
    write_movielens_log(log, data)
    return rows_of(
        MOVIELENS,
        log,
        movielens_tables(COLUMNS),
        movielens_log.USER,
        window="1000000000",
        num_dense=movielens_log.NUM_DENSE,
    )


def rows_of(name: str, log: Path, tables: TableSet, group: Sequence[str], *, window: str, num_dense: int) -> list[str]:
    """Return the rows of a log in its three forms, with all lists in the batches and without repeats."""
    every, once = log.with_suffix(".every"), log.with_suffix(".once")
    cluster(log, every, window=window, all_lists=True)
    cluster(log, once, window=window)
    forms = (("time", "in every row", log, 1), ("session", "in every row", every, RUN), ("session", "once", once, RUN))
    readings = [
        Reading(tables, group, place, run=run, num_dense=num_dense, leaves_out=leaves_out)
        for _, _, place, run in forms
        for leaves_out in (False, True)
    ]
    rates = np.array([[each.rate() for each in readings] for _ in range(PASSES)])
    ratios = rates / rates[:, :1]
    lines = []
    for index, reading in enumerate(readings):
        order, lists, _, _ = forms[index // 2]
        low, middle, high = np.quantile(ratios[:, index], (0.25, 0.5, 0.75))
        cells = [
            name,
            order,
            lists,
            f"{sum(file.stat().st_size for file in reading.files) / 1e6:.2f}",
            f"{reading.factor():.2f}",
            "repeats left out" if index % 2 else "all lists",
            f"{median(rates[:, index]):,.0f}",
            f"{middle:.2f} ({low:.2f} to {high:.2f})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


class Reading:
    """A log that is read batch by batch."""

    def __init__(
        self, tables: TableSet, group: Sequence[str], place: Path, *, run: int, num_dense: int, leaves_out: bool
    ) -> None:
        self.files = [place] if place.is_file() else sorted(place.glob("*.parquet"))
        features = features_of(tables.tables)
        keys = [feature.name for feature in features]
        source = log_of(self.files, tables, num_dense=num_dense)
        order = SampleOrder(
            source.block_sizes, validation_percent=0, seed=0, shuffle=True, sessions=Sessions(source=source, run=run)
        )
        maker = BatchMaker(source, order, features, rank=0, world_size=1, batch_size=BATCH_SIZE)
        self._without = maker.collating(WithoutRepeats(groups=(tuple(keys.index(name) for name in group),)))
        self._maker = self._without if leaves_out else maker
        self._positions = range(0, order.num_training - BATCH_SIZE + 1, BATCH_SIZE)

    def rate(self) -> float:
        """Return samples per second of processor time."""
        began = time.process_time()
        for position in self._positions:
            self._maker.training(position)
        return len(self._positions) * BATCH_SIZE / (time.process_time() - began)

    def factor(self) -> float:
        """Return samples over distinct ones of the group."""
        distinct = [self._without.training(position).num_distinct[0] for position in self._positions]
        return len(self._positions) * BATCH_SIZE / sum(distinct)


if __name__ == "__main__":
    main()
