"""Specification of data of several files, from which statistics are made as from one."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_profiler.data.batches import DataBatch
from neuroshard_profiler.data.data_set import DataSet
from neuroshard_profiler.data.statistics import data_statistics
from pyarrow import parquet


def part(path: Path, **columns: Any) -> Path:
    """Write a Parquet file of these columns."""
    path.parent.mkdir(exist_ok=True)
    parquet.write_table(pa.table(columns), path)
    return path


def opened(place: Path | str, *, features: tuple[str, ...] = (), session: str | None = None) -> DataSet:
    """Open a data set whose names tell its format."""
    return DataSet.of(str(place), data_format=None, features=features, session=session, time=None)


def batches(place: Path | str, num_samples: int = 100, session: str | None = None) -> list[DataBatch]:
    """Read all batches of a data set."""
    return list(opened(place, session=session).batches(num_samples))


def test_batches_take_the_files_of_a_folder_one_after_the_other(tmp_path: Path) -> None:
    """In the order of their names; a batch may have samples of several files, and a session may span files."""
    for name, first, count in (("b", 3, 4), ("a", 0, 3), ("c", 7, 1)):
        items = list(range(first, first + count))
        part(
            tmp_path / f"{name}.parquet", item=items, seen=[[each] * (each % 3) for each in items], visit=["x"] * count
        )
    (tmp_path / "_SUCCESS").touch()
    found = batches(tmp_path, 3, session="visit")

    assert [batch.num_samples for batch in found] == [3, 3, 2]
    assert np.concatenate([batch.features["item"].ids for batch in found]).tolist() == list(range(8))
    assert found[1].features["seen"].lengths.tolist() == [0, 1, 2]
    assert found[1].features["seen"].ids.tolist() == [4, 5, 5]
    sessions = [batch.sessions for batch in found]
    assert len(np.unique(np.concatenate([each for each in sessions if each is not None]))) == 1


def test_statistics_of_parts_are_those_of_the_whole(tmp_path: Path) -> None:
    """Whatever the files, the same batches are counted."""
    ids = np.random.default_rng(0).integers(0, 50, 1000)
    part(tmp_path / "whole" / "all.parquet", item=ids)
    for number, own in enumerate(np.split(ids, [130, 131, 700])):
        part(tmp_path / "parts" / f"{number}.parquet", item=own)
    whole, parts = (
        data_statistics(opened(tmp_path / name).batches(300), batch_size=300, ids_are_rows=True)
        for name in ("whole", "parts")
    )

    assert parts == whole


def test_a_pattern_and_files_of_arrays_are_read_alike(tmp_path: Path) -> None:
    """NPZ in a folder, and the text files that a pattern matches."""
    for number in range(2):
        arrays: dict[str, Any] = {"item.values": [number], "item.lengths": [1]}
        np.savez(tmp_path / f"{number}.npz", **arrays)
        line = "\t".join(["1", *["5"] * 13, *[f"{number:x}"] * 26])
        (tmp_path / f"day_{number}.tsv").write_text(line + "\n", encoding="utf-8")

    (batch,) = batches(tmp_path / "*.npz")
    assert batch.features["item"].ids.tolist() == [0, 1]
    (batch,) = batches(tmp_path / "day_?.tsv")
    assert batch.features["cat_25"].ids.tolist() == [0, 1]
    with pytest.raises(DataError, match=r"holds files of several formats \(CriteoTSV, NPZ\); hint: give --format"):
        opened(tmp_path)
    assert opened(tmp_path / "day_0.tsv").num_samples is None
    assert opened(tmp_path / "0.npz").num_samples == 1


def test_columns_are_those_of_the_first_file(tmp_path: Path) -> None:
    """A later file that lacks one is named, and its own further columns are passed over."""
    part(tmp_path / "0.parquet", item=[1], user=[2])
    part(tmp_path / "1.parquet", item=[1], user=[3], other=[5])
    (batch,) = batches(tmp_path)
    assert {name: each.ids.tolist() for name, each in batch.features.items()} == {"item": [1, 1], "user": [2, 3]}

    part(tmp_path / "2.parquet", item=[1])
    with pytest.raises(DataError, match=r"2\.parquet: column 'user': is missing; hint: choose among item"):
        batches(tmp_path)


def test_a_place_without_files_is_refused(tmp_path: Path) -> None:
    """An empty folder, and a path that nothing matches, called by the argument's name."""
    with pytest.raises(DataError, match=r"DATA: .* has no file that ends in \.tsv or .*\.npz; hint: check the path"):
        opened(tmp_path)
    with pytest.raises(
        DataError, match=r"DATA: .*nowhere\.parquet does not exist, and no file matches it; hint: check"
    ):
        opened(tmp_path / "nowhere.parquet")


def test_a_batch_takes_lists_of_texts_of_several_row_groups(tmp_path: Path) -> None:
    """Each row group has a dictionary for itself."""
    genres = [["drama", "war"], ["comedy"], [], ["war"]]
    parquet.write_table(pa.table({"genres": genres}), tmp_path / "log.parquet", row_group_size=1)
    (batch,) = batches(tmp_path / "log.parquet")

    assert batch.features["genres"].lengths.tolist() == [2, 1, 0, 1]
    assert len(np.unique(batch.features["genres"].ids)) == 3
