"""From a log to the metrics of an exported model: 2 million lines of Criteo's form, with broken ones, stage by stage.

python -m benchmarks.own_data
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from neuroshard_api.documents.preprocessing import Missing
from neuroshard_api.documents.tables import IdRule, Table
from neuroshard_costs.bundle import bundled_root
from neuroshard_profiler.data.data_set import DataSet
from neuroshard_trainer.data.criteo_lines import FEATURES
from neuroshard_trainer.data.csv_source import CsvSource
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.parquet import ParquetSource
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.source import SampleSource

from benchmarks.results_file import cpu_model, hardware_slug, write_result

NUM_LINES = 2_000_000
PART_LINES = 200_000
NUM_DENSE = 13
MISSING_SHARE = 0.05
VOCABULARIES = tuple(int(10 ** (2 + 3 * number / 25)) for number in range(26))
"""Ids of each feature: 100 to 100,000."""
ZIPF = 1.1
ROW_GROUP_ROWS = 8192
EMBEDDING_DIM = 16
MAX_STEPS = 30
EVALUATED = 100_000
REPEATS = 3
PARQUET_AIM = 500_000

HEAD = """# From a log to an exported model

Machine: {machine}, {cores} cores; load average at the end: {load:.1f}, since other work ran at the same time, so
that processor time says more than the clock. {lines:,} lines in Criteo's form: 13 integers and 26 hashes, of which
{missing:.0%} are missing, with {first:,} to {last:,} ids each by a Zipf distribution of exponent {zipf}, and labels
that follow from the ids with noise. One run of each stage; `run` plans with the bundled cost models of an H100,
which are simulated, and trains {steps} steps on one CPU process; `evaluate` reads {evaluated:,} samples. The job is
the one that `init` wrote, but for `maxSteps` and `evaluationSamples`."""

READING = """Reading the same samples from one process: a pass over all blocks of the trainer's source, in stored
order, from the file to arrays of rows, labels, and dense numbers; and a pass of `init` over ids, labels,
and numbers without its statistics. Parquet in row groups of {rows:,} with ids of 32 bits that are hashed
and dense numbers of FP32, CSV with ids as hexadecimal texts that are hashed. Samples per second of
processor time; medians of {repeats} passes, least and most in brackets. Aim for Parquet: {aim:,}."""


@dataclass(frozen=True)
class Timed:
    """A command that ended."""

    seconds: float
    cpu_seconds: float
    """Of the process and all that it waited for."""
    code: int
    out: str
    err: str


def main() -> None:
    """Measure and write the result."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        columns, hashes = written(folder)
        lines = ["", *stage_rows(folder), "", *broken_rows(folder), "", *reading_rows(folder, columns, hashes)]
    head = HEAD.format(
        machine=cpu_model(),
        cores=os.cpu_count(),
        load=os.getloadavg()[0],
        lines=NUM_LINES,
        missing=MISSING_SHARE,
        first=VOCABULARIES[0],
        last=VOCABULARIES[-1],
        zipf=ZIPF,
        steps=MAX_STEPS,
        evaluated=EVALUATED,
    )
    packages = ("numpy", "pyarrow", "torch", "torchrec", "fbgemm-gpu-cpu")
    print(write_result("own-data", [*head.splitlines(), *lines], hardware=hardware_slug(), packages=packages))


def written(folder: Path) -> tuple[pa.Table, pa.Table]:
    """Write the lines as text, and return the same samples as columns, and their hashes as integers.

    A missing hash is a null.
    """
    rng = np.random.default_rng(0)
    weights = rng.normal(0, 1.5, 26)
    hashes = [rng.integers(0, 2**32, size=count, dtype=np.uint32) for count in VOCABULARIES]
    texts = [pa.array(np.char.mod("%08x", each)) for each in hashes]
    leanings = [rng.normal(0, 1, count) for count in VOCABULARIES]
    parts, numbers = [], []
    with (folder / "day_0.tsv").open("wb") as stream:
        for _ in range(NUM_LINES // PART_LINES):
            integers = rng.exponential(300, size=(PART_LINES, NUM_DENSE)).astype(np.int64)
            logits = 0.001 * (integers[:, 0] - 300)
            named: dict[str, pa.Array] = {}
            integer: dict[str, pa.Array] = {}
            for column, (name, count) in enumerate(zip(FEATURES, VOCABULARIES, strict=True)):
                ids = np.minimum(rng.zipf(ZIPF, PART_LINES), 2**40) % count
                logits = logits + weights[column] / 5 * leanings[column][ids]
                chosen = pa.array(ids, mask=rng.random(PART_LINES) < MISSING_SHARE)
                named[name], integer[name] = texts[column].take(chosen), pa.array(hashes[column]).take(chosen)
            labels = (rng.random(PART_LINES) < 1 / (1 + np.exp(-logits))).astype(np.int64)
            dense = {f"dense_{index}": pa.array(integers[:, index]) for index in range(NUM_DENSE)}
            part = pa.table({"label": labels, **dense, **named})
            pyarrow.csv.write_csv(
                part,
                stream,
                pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none"),
            )
            parts.append(part)
            numbers.append(pa.table(integer))
    return pa.concat_tables(parts), pa.concat_tables(numbers)


def timed(command: Sequence[object], folder: Path) -> Timed:
    """Run a command in a folder, and return how it ended."""
    out, err = folder / "stdout", folder / "stderr"
    began = time.perf_counter()
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(  # noqa: S603 - our own commands
            list(map(str, command)),
            cwd=folder,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - began
    cpu_seconds = usage.ru_utime + usage.ru_stime
    sys.stderr.write(f"{' '.join(map(str, command[:6]))} {seconds:.1f} s, {cpu_seconds:.1f} s\n")
    return Timed(seconds, cpu_seconds, process.returncode, out.read_text("utf-8"), err.read_text("utf-8"))


NEUROSHARD = Path(sys.executable).parent / "neuroshard"


def stage_rows(folder: Path) -> Iterator[str]:
    """Yield the table of stages, and what the model is worth."""
    yield "| stage | by the clock, s | processor, s |"
    yield "|---|---|---|"
    init = succeeded([NEUROSHARD, "init", "day_0.tsv", "--embedding-dim", EMBEDDING_DIM], folder)
    yield row(f"`init` of {NUM_LINES:,} lines", init)
    (folder / "job.yaml").write_text(init.out, encoding="utf-8")
    yield row("`validate`", succeeded([NEUROSHARD, "validate", "job.yaml"], folder))
    gpus = ("--devices", 8, "--device-type", "h100-80gb")
    yield row("`plan` for 8 H100", succeeded([NEUROSHARD, "plan", "job.yaml", *gpus], folder))
    limits = f"  training:\n    maxSteps: {MAX_STEPS}\n"
    evaluation = f"  experimental:\n    data: {{evaluationSamples: {EVALUATED}}}\n"
    text = init.out.replace("  training:\n", evaluation + limits)
    (folder / "limited.yaml").write_text(text, encoding="utf-8")
    bundle = bundled_root() / "h100-80gb"
    run = succeeded([NEUROSHARD, "run", "limited.yaml", "--bundle", bundle, "--run-dir", "run", "--json"], folder)
    yield row(f"`run`: plan, and {MAX_STEPS} steps", run)
    export = [sys.executable, "-m", "neuroshard_trainer.export", "run/job.json", "--plan", "run/plan.json"]
    yield row("`export`", succeeded([*export, "--run-dir", "run/train", "--out", "served"], folder))
    evaluate = [NEUROSHARD, "evaluate", "served", "day_0.tsv", "--max-samples", EVALUATED, "--json"]
    found = succeeded(evaluate, folder)
    yield row(f"`evaluate` of {EVALUATED:,} samples", found)
    metrics = json.loads(found.out)
    size = (folder / "day_0.tsv").stat().st_size
    yield ""
    yield (
        f"`init` reads {size / 1e6:,.0f} MB at {NUM_LINES / init.cpu_seconds:,.0f} samples per second of processor "
        "time, its start and the statistics of 26 tables with it. The exported model has an AUC of "
        f"{metrics['auc']:.4f} and a normalized entropy of {metrics['normalized_entropy']:.4f} on the samples that "
        "`evaluate` read, of which it was trained on a part."
    )


def succeeded(command: Sequence[object], folder: Path) -> Timed:
    """Run a command that must end well."""
    found = timed(command, folder)
    if found.code:
        raise SystemExit(f"{' '.join(map(str, command))}: {found.code}\n{found.err}")
    return found


def row(name: str, found: Timed) -> str:
    """Return a line of the table of stages."""
    return f"| {name} | {found.seconds:,.1f} | {found.cpu_seconds:,.1f} |"


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "a cut line": lambda line: line[: len(line) // 2] + b"\n",
    "a tab too many": lambda line: line[:-1] + b"\t\n",
    "the label 2": lambda line: b"2" + line[1:],
    "a word for a number": lambda line: re.sub(rb"^(.)\t[^\t]*", rb"\g<1>\tmany", line),
    "a word for a hash": lambda line: line.rsplit(b"\t", 1)[0] + b"\tshoe\n",
    "an empty line": lambda _: b"\n",
}
"""What becomes of a line."""


def broken_rows(folder: Path) -> Iterator[str]:
    """Yield the sentences of `init` on the same lines with a broken one, by kind."""
    lines = (folder / "day_0.tsv").read_bytes().splitlines(keepends=True)
    at = NUM_LINES // 20
    yield (
        f"Line {at + 1:,} broken, one kind at a time: the trainer refuses a log with such a line, and so does `init`, "
        "which writes nothing."
    )
    yield ""
    yield "| broken | exit code | error | by the clock, s | processor, s |"
    yield "|---|---|---|---|---|"
    for name, change in BROKEN.items():
        whole = [*lines[:at], change(lines[at]), *lines[at + 1 :]]
        (folder / "broken.tsv").write_bytes(b"".join(whole))
        found = timed([NEUROSHARD, "init", "broken.tsv", "--embedding-dim", EMBEDDING_DIM], folder)
        assert not found.out, "a job of a broken log"
        said = found.err.strip().splitlines()[-1 if "hint:" not in found.err else -2].removeprefix("error: ")
        yield f"| {name} | {found.code} | {said} | {found.seconds:,.1f} | {found.cpu_seconds:,.1f} |"
    (folder / "broken.tsv").unlink()


def reading_rows(folder: Path, columns: pa.Table, hashes: pa.Table) -> Iterator[str]:
    """Yield the rates of one process that reads the samples as Parquet and as CSV."""
    dense = {name: columns[name].cast(pa.float32()) for name in columns.column_names if name.startswith("dense_")}
    pq.write_table(
        pa.table({"label": columns["label"], **dense, **{name: hashes[name] for name in FEATURES}}),
        folder / "log.parquet",
        row_group_size=ROW_GROUP_ROWS,
    )
    pyarrow.csv.write_csv(columns, folder / "log.csv")
    tables = [
        Table(name=name, num_embeddings=2 * count, embedding_dim=EMBEDDING_DIM, id_rule=IdRule.HASH)
        for name, count in zip(FEATURES, VOCABULARIES, strict=True)
    ]
    features = features_of(tables)
    dense_columns = tuple(f"dense_{index}" for index in range(NUM_DENSE))
    opened: dict[str, Callable[[], SampleSource]] = {
        "log.parquet": lambda: ParquetSource(
            [DataFile(str(folder / "log.parquet"))],
            features,
            label_column="label",
            dense_columns=dense_columns,
            missing=Missing.ERROR,
        ),
        "log.csv": lambda: CsvSource(
            [DataFile(str(folder / "log.csv"))],
            features,
            label_column="label",
            dense_columns=dense_columns,
            missing=Missing.ERROR,
            spare=folder,
        ),
    }
    yield from READING.format(rows=ROW_GROUP_ROWS, repeats=REPEATS, aim=PARQUET_AIM).splitlines()
    yield ""
    yield "| format | file, MB | trainer | `init`, reading alone | `init`, whole command |"
    yield "|---|---|---|---|---|"
    for name, source in opened.items():
        trainer = [rate(lambda: read_all(source())) for _ in range(REPEATS)]  # noqa: B023 - called at once
        reading = [rate(lambda: pass_of_init(folder / name)) for _ in range(REPEATS)]  # noqa: B023 - the same
        whole = succeeded([NEUROSHARD, "init", name, "--embedding-dim", EMBEDDING_DIM], folder)
        size = (folder / name).stat().st_size / 1e6
        cells = (name, f"{size:,.0f}", spread(trainer), spread(reading), f"{NUM_LINES / whole.cpu_seconds:,.0f}")
        yield f"| {' | '.join(cells)} |"


def read_all(source: SampleSource) -> None:
    """Read all samples of a source."""
    for block, size in enumerate(source.block_sizes):
        source.take(block, np.arange(size))


def pass_of_init(path: Path) -> None:
    """Read all samples as `init` does, without counting them."""
    data = DataSet.of(str(path), data_format=None, features=(), session=None, time=None)
    for _ in data.batches(65536, data.seen_numbers(refuses=True)):
        pass


def rate(read: Callable[[], None]) -> float:
    """Return the samples per second of processor time of a pass."""
    began = time.process_time()
    read()
    return NUM_LINES / (time.process_time() - began)


def spread(rates: Sequence[float]) -> str:
    """Return median, least, and most."""
    return f"{median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


if __name__ == "__main__":
    main()
