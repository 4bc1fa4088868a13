"""Specification of lists that are declared constant in a session, compared over a whole log."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from neuroshard_api.process.errors import DataError
from neuroshard_profiler.sessions.constant_lists import require_constant
from neuroshard_profiler.sessions.engine import EngineSettings
from neuroshard_profiler.sessions.log import open_log
from support.profiler.session_logs import DUCKDB, log_file, session_file


def require(*paths: Path, features: tuple[str, ...] = ("history",), settings: EngineSettings = DUCKDB) -> None:
    """Compare the lists of files with the columns ``session`` and ``time``."""
    require_constant(open_log(paths, session="session", time="time"), features, settings=settings)


def test_lists_that_are_equal_in_every_session_pass(tmp_path: Path) -> None:
    """Sessions may interleave, and differ from each other."""
    require(session_file(tmp_path / "a.parquet", [(time % 2, time, [time % 2]) for time in range(9)]))


def test_a_change_across_row_groups_is_named_by_file_row_and_lists(tmp_path: Path) -> None:
    """Row groups have 4 rows; the lists of session 1 change from row 2 to row 5, which is in the next."""
    samples = [(time % 2, time, [9, 8] if time >= 5 and time % 2 else [7]) for time in range(8)]
    path = session_file(tmp_path / "a.parquet", samples)

    with pytest.raises(DataError) as error:
        require(path)

    assert str(error.value) == (
        f"{path} row 5: 'history' changes in session 1 (found [9, 8], and [7] in row 3); "
        "hint: correct the log, or remove 'history' from --constant"
    )


def test_a_change_across_files_names_both(tmp_path: Path) -> None:
    """Single ids change as lists do, and a null is an empty list."""
    first = log_file(tmp_path / "a.parquet", session=["x"], time=[1], user=pa.array([None], pa.int64()))
    second = log_file(tmp_path / "b.parquet", session=["x"], time=[2], user=pa.array([4], pa.int64()))

    with pytest.raises(DataError) as error:
        require(first, second, features=("user",))

    assert str(error.value).startswith(
        f"{second} row 0: 'user' changes in session 'x' (found [4], and [] in {first} row 0); hint: "
    )


def test_a_feature_that_the_log_has_not_is_refused(tmp_path: Path) -> None:
    """With the columns that there are."""
    path = session_file(tmp_path / "a.parquet", [(1, 1, [1])])

    with pytest.raises(DataError, match=r"column 'user': is missing; hint: give --constant one of session, time, his"):
        require(path, features=("user",))


def test_training_names_a_change_in_a_row_group_as_statistics_do(tmp_path: Path) -> None:
    """The sentences differ by what declares the feature."""
    from neuroshard_api.process.errors import DataError
    from neuroshard_trainer.data.files import DataFile
    from neuroshard_trainer.data.parquet import ParquetSource
    from neuroshard_trainer.data.samples import Feature
    from support.builders import table

    path = session_file(tmp_path / "a.parquet", [(1, 1, [1]), (2, 2, [5]), (1, 3, [1, 2])], label=[0, 1, 0])
    source = ParquetSource(
        [DataFile(str(path))],
        [Feature(name="history", table=table("history"))],
        label_column="label",
        dense_columns=(),
        session_column="session",
        time_column="time",
        constant=("history",),
    )
    with pytest.raises(DataError) as trained:
        source.take(0, np.array([0]))
    with pytest.raises(DataError) as counted:
        require(path)

    assert str(trained.value).replace("spec.data.constantInSession", "--constant") == str(counted.value)
