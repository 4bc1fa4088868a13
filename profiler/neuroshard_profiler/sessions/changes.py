"""How often the lists of a session change from sample to sample: counted over a whole log by the engine.

Samples are taken by session and time, and a session is cut into runs of a given length, the unit that training keeps
together. A list is a repeat where the sample before it in the same run has an equal list; lists are compared by value.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.process.errors import DataError
from neuroshard_costs.shards import FloatArray

from neuroshard_profiler.sessions.engine import FILE, ROW, Engine, EngineSettings, identifier
from neuroshard_profiler.sessions.log import SessionLog
from neuroshard_profiler.sessions.open_engine import engine

MAX_PATTERNS = 20_000
"""Patterns of changes that are kept, the most frequent first. Samples of the others count as changes of all features,
so that no factor is overstated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Changes:
    """Samples by which features differ from the sample before."""

    features: tuple[str, ...]
    counts: FloatArray
    """[patterns] samples of each pattern"""
    changed: FloatArray
    """[patterns, features] 1 where the list differs from that of the sample before in the session, else 0; 1 for the
    first sample of a session"""
    starts_run: FloatArray
    """[patterns] 1 for samples that start a run, else 0"""
    num_sessions: int
    session_run: int
    """Maximum samples of a run. 0: whole sessions."""

    @property
    def num_samples(self) -> int:
        """Samples of the log."""
        return int(self.counts.sum())

    @property
    def samples_per_session(self) -> float:
        """Mean samples of a session over the whole log."""
        return self.num_samples / self.num_sessions

    def factor(self, features: Sequence[str]) -> float:
        """Return samples over distinct samples of the features, if a sample repeats where all of their lists do."""
        return self.num_samples / float(self.counts @ self.distinct(features))

    def distinct(self, features: Sequence[str]) -> FloatArray:
        """Return [patterns] 1 where a sample starts a run or one of the features has changed, else 0."""
        columns = [self.features.index(name) for name in features]
        changed: FloatArray = self.changed[:, columns].max(axis=1)
        distinct: FloatArray = np.maximum(self.starts_run, changed)
        return distinct

    def change_probability(self, feature: str) -> float:
        """Return the share of samples with a changed list among those that do not open a session; 0 if all do."""
        repeats = self.num_samples - self.num_sessions
        changes = float(self.counts @ self.changed[:, self.features.index(feature)]) - self.num_sessions
        return changes / repeats if repeats else 0.0


def count_changes(log: SessionLog, features: Sequence[str], *, session_run: int, settings: EngineSettings) -> Changes:
    """Count the changes of features over a whole log.

    Args:
        log: the files.
        features: columns of integers or of lists of integers; a null list equals an empty one.
        session_run: maximum samples of a run. 0: whole sessions.
        settings: of the engine that counts.

    Raises:
        DataError: the log has no rows, lacks a column, or has rows without session or time, or a file is damaged.
        MissingPackageError, SettingsError, StorageError: as the engine.
    """
    absent = next((name for name in features if name not in log.schema.names), None)
    if absent is not None:
        raise DataError(f"{log.title}: column {absent!r}: is missing; hint: choose among {', '.join(log.schema.names)}")
    with engine(settings, spill_to=None, log=log.title) as opened:
        found = opened.fetch(_query(opened, log, features, session_run))
    if not found:
        raise DataError("the log has no rows; hint: give a log with samples")
    kept, others = found[:MAX_PATTERNS], found[MAX_PATTERNS:]
    rows = [
        *((starts, [bit == "1" for bit in pattern], count) for starts, _, pattern, count in kept),
        *((starts, [True] * len(features), count) for starts, _, _, count in others),
    ]
    return Changes(
        features=tuple(features),
        counts=np.array([count for _, _, count in rows], dtype=np.float64),
        changed=np.array([bits for _, bits, _ in rows], dtype=np.float64),
        starts_run=np.array([starts for starts, _, _ in rows], dtype=np.float64),
        num_sessions=sum(count for _, opens, _, count in found if opens),
        session_run=session_run,
    )


def _query(opened: Engine, log: SessionLog, features: Sequence[str], session_run: int) -> str:
    bits = " || ".join(
        f"CASE WHEN place = 0 OR f{index} IS DISTINCT FROM before{index} THEN '1' ELSE '0' END"
        for index in range(len(features))
    )
    starts = f"place % {session_run} = 0" if session_run else "place = 0"
    return f"""
        WITH ordered AS ({ordered_samples(opened, log, features)})
        SELECT {starts} AS starts, place = 0 AS opens, {bits} AS pattern, count(*) AS samples
        FROM ordered
        GROUP BY ALL
        ORDER BY samples DESC, pattern, starts, opens
    """  # noqa: S608 - names are quoted, and the database holds nothing but the log


def ordered_samples(opened: Engine, log: SessionLog, features: Sequence[str]) -> str:
    """Return the samples of sessions in order as SQL, each next to the one before it in its session.

    Columns: ``session``; ``place`` in the session, from 0; of feature i its list ``f<i>``, and ``before<i>``, the list
    of the sample before; ``file`` and ``row_number`` of the sample, ``file_before`` and ``row_before`` of that before.

    Raises:
        DataError: rows without session or time.
    """
    from neuroshard_trainer.data.id_columns import is_list  # noqa: PLC0415 - needs pyarrow

    values = [
        identifier(name)
        if name in log.distinct or not is_list(log.schema.field(name).type)
        else f"coalesce({identifier(name)}, {opened.empty_list})"
        for name in features
    ]
    time = "0" if log.time is None else identifier(log.time)
    columns = ", ".join(f"{value} AS f{index}" for index, value in enumerate(values))
    pairs = [*((f"f{index}", f"before{index}") for index in range(len(values)))]
    pairs += [("file", "file_before"), ("row_number", "row_before")]
    shown = ", ".join(f"{name}, lag({name}) OVER by_time AS {before}" for name, before in pairs)
    return f"""
        SELECT session, row_number() OVER by_time - 1 AS place, {shown}
        FROM (
            SELECT {identifier(log.session)} AS session, {time} AS time,
                {FILE} AS file, {ROW} AS row_number, {columns}
            FROM {log.rows(opened)}
        ) AS samples
        WINDOW by_time AS (PARTITION BY session ORDER BY time, file, row_number)
    """  # noqa: S608 - names are quoted, and the database holds nothing but the log
