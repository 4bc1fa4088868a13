"""Specification of how repeats within sessions are counted and which features repeat together."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.process.errors import DataError
from neuroshard_profiler.sessions.changes import Changes, count_changes
from neuroshard_profiler.sessions.engine import EngineSettings
from neuroshard_profiler.sessions.groups import candidate_groups
from neuroshard_profiler.sessions.log import open_log
from support.depth import generated
from support.profiler.session_logs import clustered, log_file, session_file

SETTINGS = EngineSettings(memory_mib=128)


def changes(path: Path, *features: str, session_run: int = 0) -> Changes:
    """Count the changes of a file with the columns ``session`` and ``time``."""
    log = open_log([path], session="session", time="time")
    return count_changes(log, features, session_run=session_run, settings=SETTINGS)


def test_lists_are_compared_with_the_sample_before_in_the_session(tmp_path: Path) -> None:
    """Sessions interleave in the file; the lists of session 1 are A A B A, those of session 2 A A."""
    path = session_file(
        tmp_path / "a.parquet",
        [(1, 4, [1, 2]), (2, 1, [1, 2]), (1, 1, [1, 2]), (1, 3, [2, 1]), (2, 2, [1, 2]), (1, 2, [1, 2])],
    )
    found = changes(path, "history")

    assert (found.num_samples, found.num_sessions, found.samples_per_session) == (6, 2, 3.0)
    assert found.factor(["history"]) == 6 / 4
    assert found.change_probability("history") == 2 / 4


def test_a_run_begins_with_a_list_of_its_own(tmp_path: Path) -> None:
    """Runs of 2 of a session of 5 equal samples are 3, so 3 lists remain."""
    path = session_file(tmp_path / "a.parquet", [(1, time, [7]) for time in range(5)])

    assert changes(path, "history", session_run=2).factor(["history"]) == 5 / 3
    assert changes(path, "history", session_run=0).factor(["history"]) == 5


def test_a_null_list_equals_an_empty_one(tmp_path: Path) -> None:
    """Both look nothing up."""
    path = log_file(
        tmp_path / "a.parquet", session=[1, 1], time=[1, 2], history=pa.array([None, []], pa.list_(pa.int64()))
    )

    assert changes(path, "history").factor(["history"]) == 2.0


@generated(5, 15)
@given(
    samples=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(-3, 3),
            st.lists(st.integers(0, 1), max_size=2).map(lambda ids: ids * 4),  # long enough to be stored once
            st.integers(0, 1),
        ),
        min_size=1,
        max_size=25,
    ),
    session_run=st.integers(0, 3),
)
def test_factors_are_those_of_a_plain_count(samples: list[tuple[int, int, list[int], int]], session_run: int) -> None:
    """A group repeats where all of its features do; ties of time keep the order of the file."""
    with TemporaryDirectory() as folder:
        path = session_file(
            Path(folder) / "a.parquet", [each[:3] for each in samples], item=[each[3] for each in samples]
        )
        found = changes(path, "history", "item", session_run=session_run)
        clustered([path], Path(folder) / "once", window="1000", row_group_rows=len(samples))
        files = Path(folder).glob("once/*.parquet")
        log = open_log(sorted(files), session="session", time="time")
        again = count_changes(log, ["history", "item"], session_run=session_run, settings=SETTINGS)
    ordered = sorted(samples, key=lambda each: each[:2])
    for features, place_of in ((["history"], slice(2, 3)), (["item"], slice(3, 4)), (["history", "item"], slice(2, 4))):
        distinct = place = 0
        for index, each in enumerate(ordered):
            place = place + 1 if index and ordered[index - 1][0] == each[0] else 0
            starts = place == 0 or (session_run > 0 and place % session_run == 0)
            distinct += starts or each[place_of] != ordered[index - 1][place_of]
        assert found.factor(features) == pytest.approx(len(samples) / distinct)
        if min(each[1] for each in samples) >= 0:  # one window, and one row group
            assert again.factor(features) == found.factor(features)


def test_features_of_equal_changes_are_a_group(tmp_path: Path) -> None:
    """User and history repeat together; a list of another rhythm would lower their factor; items never repeat."""
    lists = {"user": 8, "history": 8, "basket": 2, "item": 1}
    columns = {name: pa.array([[time // period] for time in range(32)]) for name, period in lists.items()}
    path = log_file(tmp_path / "a.parquet", session=[1] * 32, time=list(range(32)), **columns)

    groups = candidate_groups(changes(path, *lists))
    assert [(each.features, each.factor) for each in groups] == [(("user", "history"), 8.0), (("basket",), 2.0)]


@generated(5, 15)
@given(
    rows=st.lists(st.tuples(*[st.integers(0, 1)] * 4), min_size=4, max_size=40),
)
def test_no_feature_loses_more_than_a_tenth_of_its_factor_in_a_group(rows: list[tuple[int, ...]]) -> None:
    """Groups are disjoint, and each keeps nine tenths of what every member has alone."""
    with TemporaryDirectory() as folder:
        features: dict[str, Any] = {f"f{index}": [row[index] for row in rows] for index in range(4)}
        path = log_file(Path(folder) / "a.parquet", session=[1] * len(rows), time=list(range(len(rows))), **features)
        found = changes(path, *features)
    groups = candidate_groups(found)
    members = [name for each in groups for name in each.features]

    assert len(members) == len(set(members))
    assert set(members) == {name for name in features if found.factor([name]) >= 1.2}
    assert all(each.factor >= 0.9 * found.factor([name]) - 1e-9 for each in groups for name in each.features)


def test_samples_without_a_session_are_refused(tmp_path: Path) -> None:
    """They would be one large session."""
    path = log_file(tmp_path / "a.parquet", session=[1, None, None], time=[1, 2, 3], item=[1, 1, 1])

    with pytest.raises(DataError, match=r"a\.parquet: column 'session': is null in 2 rows; hint: "):
        changes(path, "item")


def test_a_log_without_rows_is_refused(tmp_path: Path) -> None:
    """Nothing can be counted."""
    path = log_file(
        tmp_path / "a.parquet",
        session=pa.array([], pa.int64()),
        time=pa.array([], pa.int64()),
        item=pa.array([], pa.int64()),
    )

    with pytest.raises(DataError, match="the log has no rows"):
        changes(path, "item")


def test_a_damaged_page_is_a_sentence(tmp_path: Path) -> None:
    """The footer is whole, so that only reading finds it."""
    path = session_file(tmp_path / "a.parquet", [(1, time, [time]) for time in range(100)])
    data = bytearray(path.read_bytes())
    data[4:400] = b"\xff" * 396
    path.write_bytes(data)

    with pytest.raises(DataError, match=r"a\.parquet: cannot be read .*; hint: write the damaged file again"):
        changes(path, "history")
