"""Small files of training data in each format, with the same samples."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from neuroshard_api.documents.tables import Table
from neuroshard_trainer.data.criteo_lines import COLUMNS, FEATURES
from neuroshard_trainer.data.files import DataFile
from support import builders

CRITEO_TABLES = tuple(builders.table(name, num_embeddings=100) for name in FEATURES)

MOVIELENS_FILES = {
    "ml-100k.user": "user_id:token\tage:token\tgender:token\toccupation:token\tzip_code:token\n"
    "1\t24\tM\ttechnician\t85711\n2\t53\tF\tother\t94043\n",
    "ml-100k.item": "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    "7\tToy Story\t1995\tAnimation Comedy\n9\tunknown\t\tunknown\n",
    "ml-100k.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "2\t7\t4\t881250949\n1\t9\t3\t881250999\n2\t9\t5\t881250949\n",
}


def criteo_line(number: int = 0, **cells: str) -> str:
    """Return a line whose first hash is its number; cells such as int_2 or cat_5 can be replaced."""
    values = {name: "1" if name.startswith("int") else "0a" for name in COLUMNS}
    values |= {"label": str(number % 2), "cat_0": f"{number:08x}", **cells}
    return "\t".join(values[name] for name in COLUMNS)


def criteo_text(count: int) -> str:
    """Return lines numbered from 0 on."""
    return "".join(f"{criteo_line(number)}\n" for number in range(count))


def criteo_file(folder: Path, count: int = 10, name: str = "day_0.tsv") -> DataFile:
    """Write a file of lines numbered from 0 on; packed by gzip where its name ends so."""
    path = folder / name
    text = criteo_text(count).encode()
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return DataFile(str(path))


def criteo_arrays(folder: Path, count: int = 10, *, day: str = "day_0", hots: Sequence[int] = (1,) * 26) -> DataFile:
    """Write a day as torchrec does; every lookup is its sample's number. Returns the file of dense features."""
    numbers = np.arange(count, dtype=np.int32)
    np.save(folder / f"{day}_dense.npy", np.repeat(numbers[:, None], 13, axis=1).astype(np.float32))
    np.save(folder / f"{day}_labels.npy", (numbers % 2)[:, None])
    np.save(folder / f"{day}_sparse.npy", np.repeat(numbers[:, None], 26, axis=1))
    many = {str(feature): np.repeat(numbers[:, None], hot, axis=1) for feature, hot in enumerate(hots)}
    np.savez(folder / f"{day}_sparse_multi_hot.npz", **many)  # type: ignore[arg-type]
    return DataFile(str(folder / f"{day}_dense.npy"))


def npz_arrays(count: int, features: Sequence[str], *, num_dense: int) -> dict[str, Any]:
    """Return arrays of samples that look up their own number, modulo three times."""
    numbers = np.arange(count)
    arrays: dict[str, Any] = {
        "label": numbers % 2,
        "dense": np.repeat(numbers[:, None], num_dense, axis=1).astype(np.float32),
    }
    for feature in features:
        arrays |= {f"{feature}.lengths": numbers % 3, f"{feature}.values": np.repeat(numbers, numbers % 3)}
    return arrays


def parquet_file(path: Path, tables: Sequence[Table], *, count: int, num_dense: int, row_group_size: int = 4) -> None:
    """Write samples that look up their own number, modulo the rows of their table."""
    numbers = np.arange(count)
    columns: dict[str, Any] = {"label": numbers % 2}
    columns |= {f"dense_{index}": numbers.astype(np.float32) for index in range(num_dense)}
    columns |= {table.name: numbers % table.num_embeddings for table in tables}
    pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
