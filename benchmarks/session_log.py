"""A log of synthetic sessions as a Parquet file in the order of time, for the benchmarks of clustering and reading."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from neuroshard_trainer.data.samples import Feature, joined
from neuroshard_trainer.data.synthetic import SyntheticSource

SESSION, TIME, LABEL = "session", "time", "label"
ROW_GROUP_ROWS = 10_000


def write_session_log(path: Path, source: SyntheticSource, features: Sequence[Feature]) -> None:
    """Write all samples; those of equal place in their block are neighbors, so that all blocks' sessions interleave.

    Args:
        path: of the file, compressed by zstd with pyarrow's other defaults.
        source: with sessions.
        features: columns of lists.
    """
    blocks = range(len(source.block_sizes))
    samples = joined([source.read(block) for block in blocks])
    places = np.concatenate([np.arange(size) for size in source.block_sizes])
    sessions = np.concatenate([source.sessions(block).ids for block in blocks])
    order = np.argsort(places, kind="stable")
    ordered = samples.take(order)
    columns = {
        SESSION: pa.array(sessions[order]),
        TIME: pa.array(np.arange(len(order))),
        LABEL: pa.array(ordered.labels.astype(np.int8)),
        **{f"dense_{column}": pa.array(ordered.dense[:, column]) for column in range(ordered.dense.shape[1])},
        **{
            feature.name: pa.ListArray.from_arrays(
                ordered.lookups[feature.name].by_sample.offsets.astype(np.int32), ordered.lookups[feature.name].values
            )
            for feature in features
        },
    }
    pq.write_table(pa.table(columns), path, row_group_size=ROW_GROUP_ROWS, compression="zstd")


def cluster(log: Path, out: Path, *, window: str, all_lists: bool = False) -> None:
    """Cluster a log by its sessions, as a user does."""
    program = [sys.executable, "-c", "from neuroshard_cli.main import main; main()", "cluster-sessions", str(log)]
    options = ["--out", str(out), "--session", SESSION, "--time", TIME, "--window", window]
    options += ["--row-group-rows", str(ROW_GROUP_ROWS), *(["--all-lists"] if all_lists else [])]
    subprocess.run(  # noqa: S603 - the project's own
        [*program, *options], check=True, env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
