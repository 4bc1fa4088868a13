"""MovieLens-100K as a log of sessions: a Parquet file in the order of time, for the benchmarks of sessions.

A session ends where a user rates nothing for half an hour. What belongs to the user repeats in it, with the history:
the films that the user rated last before the session began, as a log that is written per request has them.
"""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_trainer.data.movielens import MovieLensSource
from neuroshard_trainer.data.samples import Jagged, features_of
from numpy.typing import NDArray

from benchmarks.session_log import LABEL, ROW_GROUP_ROWS, SESSION, TIME

USER = ("user_id", "age", "gender", "occupation", "zip_code", "history")
"""Features that repeat within a session."""
ITEM = ("item_id", "release_year", "genre", "title_word")
NUM_DENSE = 2
GAP_S = 1800
HISTORY = 20
_ROWS = {
    "user_id": 943,
    "age": 61,
    "gender": 2,
    "occupation": 21,
    "zip_code": 795,
    "release_year": 73,
    "genre": 19,
    "title_word": 2652,
}


def movielens_tables(columns: int) -> TableSet:
    """Return a table of each feature; films and history share theirs."""
    items = Table(
        name="item",
        num_embeddings=1682,
        embedding_dim=columns,
        pooling_factor=15.0,
        feature_names=("item_id", "history"),
    )
    own = (Table(name=name, num_embeddings=rows, embedding_dim=columns) for name, rows in _ROWS.items())
    return TableSet(name="movielens", tables=(items, *own))


def write_movielens_log(path: Path, data_set: Path) -> None:
    """Write all ratings in the order of time.

    Args:
        path: of the file, compressed by zstd with pyarrow's other defaults.
        data_set: folder of the data set as RecBole packs it.
    """
    names = [*(name for name in USER if name != "history"), *ITEM]
    features = features_of([Table(name=name, num_embeddings=10_000, embedding_dim=4) for name in names])
    source = MovieLensSource(data_set, features, num_dense=NUM_DENSE)
    with (data_set / "ml-100k.inter").open(encoding="utf-8", newline="") as file:
        times = np.array([int(row["timestamp:float"]) for row in csv.DictReader(file, delimiter="\t")])
    blocks = [source.take(block, np.arange(size)) for block, size in enumerate(source.block_sizes)]
    lists: dict[str, list[Any]] = {
        name: [each for block in blocks for each in _lists(block.lookups[name].by_sample)] for name in names
    }
    users, items = (np.concatenate(lists[name]) for name in ("user_id", "item_id"))
    sessions, lists["history"] = sessions_of(users, items, times)
    order = np.argsort(times, kind="stable")
    columns = {
        SESSION: pa.array(sessions[order]),
        TIME: pa.array(times[order]),
        LABEL: pa.array(np.concatenate([block.labels for block in blocks])[order].astype(np.int8)),
        **{
            f"dense_{column}": pa.array(np.concatenate([block.dense[:, column] for block in blocks])[order])
            for column in range(NUM_DENSE)
        },
        **{name: pa.array([lists[name][row] for row in order], pa.list_(pa.int64())) for name in (*USER, *ITEM)},
    }
    pq.write_table(pa.table(columns), path, row_group_size=ROW_GROUP_ROWS, compression="zstd")


def sessions_of(
    users: NDArray[np.int64], items: NDArray[np.int64], times: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[Sequence[int]]]:
    """Return [ratings] sessions, numbered by user and time, and the films rated last before each rating's session."""
    sessions = np.empty(len(users), dtype=np.int64)
    histories: list[Sequence[int]] = [()] * len(users)
    number, user, until = -1, -1, 0
    rated: list[int] = []
    before: Sequence[int] = ()
    for row in np.lexsort((times, users)):
        if users[row] != user:
            user, until, rated = users[row], -GAP_S, []
        if times[row] - until > GAP_S:
            number += 1
            before = tuple(rated[-HISTORY:])
        sessions[row], histories[row], until = number, before, times[row]
        rated.append(int(items[row]))
    return sessions, histories


def _lists(jagged: Jagged) -> list[NDArray[np.int64]]:
    return np.split(jagged.values, np.cumsum(jagged.lengths)[:-1])
