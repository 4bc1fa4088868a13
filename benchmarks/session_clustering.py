"""What `neuroshard cluster-sessions` saves and needs: sizes, memory on ten million rows, and runs that are killed.

python -m benchmarks.session_clustering
"""

import hashlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.results_file import write_result
from benchmarks.session_log import LABEL, ROW_GROUP_ROWS, SESSION, TIME

SAMPLES_PER_SESSION = 8
SMALL_SESSIONS = 12_000
LIST_LENGTHS = (20, 60)
NUM_IDS = 1_000_000
LARGE_ROWS = 10_000_000
LARGE_CHUNK = 500_000
LARGE_LENGTHS = (2, 8)
LARGE_WINDOWS = 4
MEMORY_MIB = 512
SEED = 0
BYTES_PER_KIB = 1024
WANTED_SHARE = 0.55
WANTED_BYTES = 2**30


def main() -> None:
    """Measure and write the result."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        lines = [
            "# Clustering a log by session",
            "",
            *size_lines(folder),
            "",
            *kill_lines(folder),
            "",
            *memory_lines(folder),
        ]
    print(write_result("session-clustering", lines, packages=("numpy", "pyarrow", "duckdb")))


def write_log(
    path: Path, *, sessions: int, open_at_once: int, lengths: tuple[int, int], chunk: int, dictionary: bool = True
) -> None:
    """Write samples of sessions that take turns: two user lists that are constant in a session, and an item.

    Args:
        path: of the file.
        sessions: of SAMPLES_PER_SESSION samples each.
        open_at_once: sessions that take turns; when they end, as many others begin.
        lengths: least and most ids of a list.
        chunk: samples that are made at once; whole sets of open sessions.
        dictionary: whether columns are written as codes of a dictionary, which is pyarrow's default.
    """
    rng = np.random.default_rng(SEED)
    schema = pa.schema(
        [
            (SESSION, pa.int64()),
            (TIME, pa.int64()),
            (LABEL, pa.int8()),
            ("clicks", pa.list_(pa.int64())),
            ("searches", pa.list_(pa.int64())),
            ("item", pa.int64()),
        ]
    )
    step = chunk // SAMPLES_PER_SESSION
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=3, use_dictionary=dictionary) as writer:
        for first in range(0, sessions, step):
            count = min(step, sessions - first)
            rows = np.concatenate(
                [
                    rng.permutation(np.repeat(np.arange(begin, min(begin + open_at_once, count)), SAMPLES_PER_SESSION))
                    for begin in range(0, count, open_at_once)
                ]
            )
            names = rng.permutation(count) + first  # a session's number does not tell when it began
            columns = [
                pa.array(names[rows]),
                pa.array(np.arange(len(rows)) + first * SAMPLES_PER_SESSION),
                pa.array(rng.integers(0, 2, size=len(rows)).astype(np.int8)),
                *(_lists(rng, count, lengths).take(pa.array(rows)) for _ in range(2)),
                pa.array(_ids(rng, len(rows))),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=ROW_GROUP_ROWS)


def _ids(rng: np.random.Generator, count: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return ids of which few are frequent."""
    return (NUM_IDS * rng.random(count) ** 4).astype(np.int64)


def _lists(rng: np.random.Generator, count: int, lengths: tuple[int, int]) -> pa.ListArray:
    sizes = rng.integers(lengths[0], lengths[1] + 1, size=count)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, _ids(rng, int(offsets[-1])))


def command_of(log: Path, out: Path, *, window: int) -> list[str]:
    """Return the command that clusters a log."""
    program = [sys.executable, "-c", "from neuroshard_cli.main import main; main()", "cluster-sessions", str(log)]
    columns = ["--session", SESSION, "--time", TIME, "--window", str(window), "--row-group-rows", str(ROW_GROUP_ROWS)]
    return [*program, "--out", str(out), *columns, "--memory-mib", str(MEMORY_MIB)]


def run(command: Sequence[str]) -> None:
    """Run a command to its end."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - the project's own


def size_lines(folder: Path) -> list[str]:
    """Return sizes of a log by time, as two writers write it, and clustered."""
    sizes = {}
    for name, dictionary in (("by time, dictionaries (pyarrow's default)", True), ("by time, plain", False)):
        log = folder / f"log-{dictionary}.parquet"
        # All sessions are open at once: the worst order for a compressor.
        write_log(
            log,
            sessions=SMALL_SESSIONS,
            open_at_once=SMALL_SESSIONS,
            lengths=LIST_LENGTHS,
            chunk=SMALL_SESSIONS * SAMPLES_PER_SESSION,
            dictionary=dictionary,
        )
        sizes[name] = log.stat().st_size
    out = folder / "clustered"
    run(command_of(folder / "log-True.parquet", out, window=SMALL_SESSIONS * SAMPLES_PER_SESSION))
    sizes["clustered"] = _size(out)
    clustered = sizes["clustered"]
    by_time, *_ = sizes
    verdict = "at most" if clustered <= WANTED_SHARE * sizes[by_time] else "more than"
    return [
        (
            f"## Sizes\n\n{SMALL_SESSIONS * SAMPLES_PER_SESSION:,} samples, {SMALL_SESSIONS:,} sessions of "
            f"{SAMPLES_PER_SESSION} samples that take turns at random, two lists of {LIST_LENGTHS[0]} to "
            f"{LIST_LENGTHS[1]} ids that are constant in a session, one item; zstd of level 3, row groups of "
            f"{ROW_GROUP_ROWS:,}."
        ),
        "",
        "| order and encoding | MB | clustered over it |",
        "|---|---|---|",
        *(f"| {name} | {size / 1e6:.1f} | {clustered / size:.2f} |" for name, size in sizes.items()),
        "",
        f"Clustered, the log has {verdict} {WANTED_SHARE} of its size in the order of time as pyarrow writes it.",
    ]


def kill_lines(folder: Path) -> list[str]:
    """Return the end of a run that is killed in every window, at a random moment of it."""
    log, whole, out = folder / "log-True.parquet", folder / "whole", folder / "killed"
    command = command_of(log, whole, window=SMALL_SESSIONS)
    began = time.monotonic()
    run(command)
    window_s = (time.monotonic() - began) / SAMPLES_PER_SESSION
    draw = random.Random(SEED)  # noqa: S311 - moments of kills
    num_killed = windows = 0
    for written in range(SAMPLES_PER_SESSION):
        process = subprocess.Popen(  # noqa: S603 - the project's own
            command_of(log, out, window=SMALL_SESSIONS), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while process.poll() is None and len(list(out.glob("window-*.parquet"))) < written:
            time.sleep(0.01)
        try:
            process.wait(draw.uniform(0, window_s))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            num_killed += 1
            process.wait()
            windows = len(list(out.glob("window-*.parquet")))
    run(command_of(log, out, window=SMALL_SESSIONS))
    equal = "are those of a run that was not killed" if _hashes(whole) == _hashes(out) else "DIFFER"
    return [
        (
            f"## Kills\n\nThe same log in {SAMPLES_PER_SESSION} windows, killed by SIGKILL {num_killed} times, "
            f"at a random moment of each window, each time begun again ({windows} windows were written when the last "
            f"kill came), then run to its end: the bytes of all files {equal}."
        ),
    ]


def memory_lines(folder: Path) -> list[str]:
    """Return the memory and time of ten million rows."""
    log, out = folder / "large.parquet", folder / "large"
    sessions = LARGE_ROWS // SAMPLES_PER_SESSION
    write_log(log, sessions=sessions, open_at_once=5000, lengths=LARGE_LENGTHS, chunk=LARGE_CHUNK)
    process = subprocess.Popen(  # noqa: S603 - the project's own
        command_of(log, out, window=LARGE_ROWS // LARGE_WINDOWS), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"cluster-sessions ended with status {status}")
    resident = usage.ru_maxrss * BYTES_PER_KIB
    rows = sum(pq.read_metadata(file).num_rows for file in out.glob("window-*.parquet"))
    verdict = "less" if resident < WANTED_BYTES else "more"
    return [
        (
            f"## Memory\n\n{LARGE_ROWS:,} rows in {LARGE_WINDOWS} windows, lists of {LARGE_LENGTHS[0]} to "
            f"{LARGE_LENGTHS[1]} ids, {log.stat().st_size / 1e6:,.0f} MB, `--memory-mib {MEMORY_MIB}`: {rows:,} rows "
            f"written, {_size(out) / 1e6:,.0f} MB, at most {resident / 2**20:,.0f} MiB resident ({verdict} than 1 "
            f"GiB), {usage.ru_utime + usage.ru_stime:.0f} s of processor time. Each window is checked by a hash of "
            "its multiset of rows."
        ),
    ]


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("window-*.parquet"))


def _hashes(folder: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob("window-*.parquet"))
    }


if __name__ == "__main__":
    main()
