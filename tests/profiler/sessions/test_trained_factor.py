"""The factor that is measured in a log is the one that training finds in its batches."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from neuroshard_profiler.sessions.engine import EngineSettings
from neuroshard_profiler.sessions.groups import measure_duplication
from support.profiler.session_logs import log_file

pytest.importorskip("torch")


@pytest.mark.parametrize("run", [1, 3, 8, 0])
@pytest.mark.parametrize("is_clustered", [True, False], ids=["clustered", "by time"])
def test_training_repeats_as_often_as_the_log_says(tmp_path: Path, run: int, *, is_clustered: bool) -> None:
    """In runs of any length, also where a row group has the sessions' samples interleaved."""
    from neuroshard_trainer.data.files import DataFile
    from neuroshard_trainer.data.repeats import repeated
    from neuroshard_trainer.data.samples import Jagged
    from neuroshard_trainer.data.sessions import shuffled_runs

    rng = np.random.default_rng(0)
    sessions = rng.integers(0, 300, size=6000)
    if is_clustered:
        sessions = np.sort(sessions)
    times = np.arange(len(sessions))
    by_session = np.lexsort((times, sessions))
    changes = rng.random(len(sessions)) < 0.2
    versions = np.empty(len(sessions), dtype=np.int64)
    versions[by_session] = np.cumsum(changes | (np.diff(sessions[by_session], prepend=-1) != 0))
    file = log_file(
        tmp_path / "log.parquet",
        row_group_size=6000,
        session=pa.array(sessions),
        time=pa.array(times),
        history=pa.array([[int(each), 7] for each in versions], pa.list_(pa.int64())),
    )

    rows = shuffled_runs(times, sessions, times, run=run, rng=rng)
    trained = ~repeated([Jagged.single(versions).take(rows)])

    found = measure_duplication(
        [DataFile(str(file))],
        ["history"],
        session="session",
        time="time",
        session_run=run,
        settings=EngineSettings(memory_mib=256),
    )
    assert len(rows) / trained.sum() == pytest.approx(found.factor_of("history"), rel=0.01)
