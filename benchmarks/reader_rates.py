"""How fast one core reads each format, and how long a start on 1 TB of text takes with an index.

python -m benchmarks.reader_rates
python -m benchmarks.reader_rates --parts FOLDER --minutes 4     # some formats; again, until all are measured
"""

import argparse
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from neuroshard_api.documents.preprocessing import Missing
from neuroshard_api.documents.tables import IdRule, Table
from neuroshard_api.process.host_memory import keep_freed_memory
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.criteo import CriteoSource
from neuroshard_trainer.data.criteo_binary import CriteoBinarySource
from neuroshard_trainer.data.criteo_lines import FEATURES
from neuroshard_trainer.data.csv_source import CsvSource
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.line_index import INDEX_SUFFIX, LINES_PER_BLOCK, LineIndex, keep_index
from neuroshard_trainer.data.npz import NpzSource
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.parquet import ParquetSource
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.source import SampleSource
from pyarrow import csv

from benchmarks.kept_parts import add_options, kept_parts
from benchmarks.results_file import cpu_model, hardware_slug, write_result

NUM_SAMPLES = 400_000
WORLD_SIZE = 8
BATCH_SIZES = (8192, 2048)
REPEATS = 5
NUM_ROWS = 1_000_000
ROW_GROUPS = (2_048, 8_192, 100_000)
ZIPF_EXPONENT = 1.2
"""Of texts."""
DAYS, DAY_BYTES, LINE_BYTES = 24, 43_000_000_000, 260
"""Of the index that stands for 1 TB: sparse files of the size of Criteo's days, and blocks of mean lines."""
TABLES = tuple(Table(name=name, num_embeddings=NUM_ROWS, embedding_dim=16) for name in FEATURES)
_MIX = 2_654_435_761
"""Knuth's factor, which spreads ranks over texts."""

HEAD = """# Reading rates

Machine: {machine}, two cores; load average during the run: {load:.1f}, so processor time of one thread is given, which
other work disturbs through shared caches and hardware threads alone. {samples:,} samples of 26 one-hot features (5 % of
the hashes missing in CriteoTSV) and 13 dense ones, texts of 8 characters (hashed; Zipf-distributed with exponent
{zipf} unless they do not repeat), files in the page cache; one of {ranks} ranks makes its batches in the shuffled order
with nothing held out, from reading to collated tensors; medians of {repeats} passes, least and most in brackets. At
2,048 samples per rank, a row group of 8,192 is decoded by each of the four ranks that share it, whole for a
quarter of its samples."""


@dataclass(frozen=True)
class Case:
    """One row of the result."""

    name: str
    open: Callable[[], SampleSource]
    aim: str = ""


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    with kept_parts(options) as kept:
        folder = kept.folder / "files"
        if not folder.exists():
            unfinished = kept.folder / "unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            write_files(unfinished)
            unfinished.rename(folder)
        parts: dict[str, Callable[[], list[str]]] = {case.name: partial(rows, case) for case in cases(folder)}
        parts["start"] = lambda: start_lines(kept.folder)
        found = kept.measured(parts)
    if found is None:
        return
    start = found.pop("start")
    lines = ["", "| format | samples per rank and step | samples per second and core | aim |", "|---|---|---|---|"]
    lines += [*(line for each in found.values() for line in each), "", *start]
    head = HEAD.format(
        zipf=ZIPF_EXPONENT,
        machine=cpu_model(),
        load=os.getloadavg()[0],
        samples=NUM_SAMPLES,
        ranks=WORLD_SIZE,
        repeats=REPEATS,
    )
    print(write_result("reader-rates", [*head.splitlines(), *lines], hardware=hardware_slug()))


def rows(case: Case) -> list[str]:
    """Return the lines of a format."""
    return [row(case, batch_size) for batch_size in BATCH_SIZES]


def row(case: Case, batch_size: int) -> str:
    """Return a line of the table."""
    rates = [rate(case.open(), batch_size) for _ in range(REPEATS)]
    cells = [case.name, f"{batch_size:,}", f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})", case.aim]
    return f"| {' | '.join(cells)} |"


def rate(source: SampleSource, batch_size: int) -> float:
    """Return the samples of one rank per second of processor time."""
    features = features_of(TABLES)
    order = SampleOrder(source.block_sizes, validation_percent=0, seed=0, shuffle=True)
    maker = BatchMaker(source, order, features, rank=3, world_size=WORLD_SIZE, batch_size=batch_size)
    positions = range(0, order.num_training - maker.global_batch_size + 1, maker.global_batch_size)
    maker.training(0)
    began = time.process_time()
    for position in positions:
        maker.training(position)
    return len(positions) * batch_size / (time.process_time() - began)


def write_files(folder: Path) -> None:
    """Write the same samples in each format."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 2**32, size=(NUM_SAMPLES, 26))
    integers = rng.exponential(300, size=(NUM_SAMPLES, 13)).astype(np.int64)
    labels = rng.integers(0, 2, size=NUM_SAMPLES)
    hashes = np.char.mod("%08x", ids)
    hashes[rng.random(hashes.shape) < 0.05] = ""  # noqa: PLR2004 - the head says so
    cells = np.concatenate((labels[:, None].astype(str), integers.astype(str), hashes), axis=1)
    text = folder / "day_0.tsv"
    text.write_text("".join("\t".join(line) + "\n" for line in cells.tolist()))
    dense = np.log1p(integers).astype(np.float32)
    np.save(folder / "day_0_dense.npy", dense)
    np.save(folder / "day_0_labels.npy", labels.astype(np.int32)[:, None])
    np.save(folder / "day_0_sparse.npy", ids.astype(np.uint32).view(np.int32))
    rows = ids % NUM_ROWS
    arrays = {"label": labels, "dense": dense}
    for column, name in enumerate(FEATURES):
        arrays |= {f"{name}.values": rows[:, column], f"{name}.lengths": np.ones(NUM_SAMPLES, dtype=np.int32)}
    np.savez(folder / "part.npz", **arrays)  # type: ignore[arg-type]
    columns = {"label": labels, **{f"dense_{index}": dense[:, index] for index in range(13)}}
    columns |= {name: rows[:, column].astype(np.int32) for column, name in enumerate(FEATURES)}
    texts = {name: np.char.mod("%08x", rng.zipf(ZIPF_EXPONENT, NUM_SAMPLES) * _MIX % 2**32) for name in FEATURES}
    log = pa.table({**columns, **texts})
    pq.write_table(log, folder / "texts.parquet", row_group_size=ROW_GROUPS[1])
    distinct = {name: np.char.mod("%08x", ids[:, column]) for column, name in enumerate(FEATURES)}
    pq.write_table(pa.table({**columns, **distinct}), folder / "distinct.parquet", row_group_size=ROW_GROUPS[1])
    csv.write_csv(log, folder / "texts.csv", csv.WriteOptions(quoting_style="needed"))
    for size in ROW_GROUPS:
        pq.write_table(pa.table(columns), folder / f"{size}.parquet", row_group_size=size)


def cases(folder: Path) -> Sequence[Case]:
    """Return the readers of the files of a folder."""
    features, text = features_of(TABLES), folder / "day_0.tsv"
    hashed = features_of([table.model_copy(update={"id_rule": IdRule.HASH}) for table in TABLES])
    dense_columns = [f"dense_{index}" for index in range(13)]
    named: dict[str, Any] = {"label_column": "label", "dense_columns": dense_columns}

    def parquet(size: int) -> Case:
        file = DataFile(str(folder / f"{size}.parquet"))
        aim = "500,000" if size in ROW_GROUPS[:2] else ""
        return Case(
            f"Parquet, row groups of {size:,}",
            lambda: ParquetSource([file], features, **named),
            aim,
        )

    binary = [DataFile(str(folder / "day_0_dense.npy"))]
    return (
        Case(
            "CriteoTSV",
            lambda: CriteoSource([DataFile(str(text))], features, num_dense=13, spare=folder),
            "300,000",
        ),
        Case(
            "CriteoBinary",
            lambda: CriteoBinarySource(binary, features, num_dense=13, multi_hot=False),
            "2,000,000",
        ),
        *(parquet(size) for size in ROW_GROUPS),
        Case(
            f"Parquet of texts, row groups of {ROW_GROUPS[1]:,}",
            lambda: ParquetSource([DataFile(str(folder / "texts.parquet"))], hashed, **named),
            "500,000",
        ),
        Case(
            f"Parquet of texts that do not repeat, row groups of {ROW_GROUPS[1]:,}",
            lambda: ParquetSource([DataFile(str(folder / "distinct.parquet"))], hashed, **named),
            "500,000",
        ),
        Case(
            "CSV of texts",
            lambda: CsvSource(
                [DataFile(str(folder / "texts.csv"))], hashed, missing=Missing.ERROR, spare=folder, **named
            ),
        ),
        Case(
            "NPZ",
            lambda: NpzSource([DataFile(str(folder / "part.npz"))], features, num_dense=13, label="label"),
        ),
    )


def start_lines(folder: Path) -> list[str]:
    """Return the time of a start on 1 TB of text with an index."""
    days = [folder / "days" / f"day_{day}" for day in range(DAYS)]
    days[0].parent.mkdir(exist_ok=True)
    num_lines = DAY_BYTES // LINE_BYTES
    offsets = np.append(np.arange(0, num_lines, LINES_PER_BLOCK) * LINE_BYTES, DAY_BYTES)
    for day in days:
        day.touch()
        os.truncate(day, DAY_BYTES)
        index = LineIndex(offsets=offsets, num_lines=num_lines)
        keep_index(index, day.with_name(day.name + INDEX_SUFFIX), DataFile(str(day)))
    began = time.perf_counter()
    source = CriteoSource([DataFile(str(day)) for day in days], features_of(TABLES), num_dense=13, spare=folder)
    order = SampleOrder(source.block_sizes, validation_percent=10, seed=0, shuffle=True)
    seconds = time.perf_counter() - began
    files = f"{DAYS} sparse text files of {DAY_BYTES / 1e9:.0f} GB with their indexes"
    return [f"Start on {files}, {order.num_training:,} samples to train on: {seconds:.1f} s by the clock (aim: 10 s)."]


if __name__ == "__main__":
    main()
