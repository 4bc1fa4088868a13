"""A sample of a log, read once: what its columns are, and the statistics of its tables, labels, and dense columns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from neuroshard_api.documents.tables import IdRule, TableSet
from neuroshard_report.terminal.progress import activity

from neuroshard_profiler.data.data_set import DataSet
from neuroshard_profiler.data.files import limited
from neuroshard_profiler.data.numbers import SeenNumbers
from neuroshard_profiler.data.statistics import DataStatistics, data_statistics, table_names
from neuroshard_profiler.sessions.engine import EngineSettings
from neuroshard_profiler.sessions.groups import Duplication, measure_duplication

DEFAULT_REUSE_BATCH = 65536
"""Samples of a batch in which rows are reused."""


@dataclass(frozen=True, kw_only=True)
class SampleSettings:
    """How a sample is read."""

    batch_size: int = DEFAULT_REUSE_BATCH
    max_samples: int | None = None
    """None: all."""
    id_rule: IdRule | None = None
    """Of all features. None: for each the one that fits its ids."""
    rows_per_id: float | None = None
    """Rows of a table for each distinct id, where ids are hashed. None: that of the rule."""
    session_run: int = 8
    """Maximum samples of a session that training keeps together."""
    engine: EngineSettings = field(default_factory=EngineSettings)
    """What orders the samples of sessions."""
    constant: Sequence[str] = ()
    """Features whose lists may not change within a session."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """What was read."""

    place: str
    """Path, pattern, or URL."""
    statistics: DataStatistics
    duplication: Duplication | None
    """None: there are no sessions in the order of time."""
    doubts: tuple[str, ...]
    """Questions to the user of the data."""

    @cached_property
    def name(self) -> str:
        """A name for the tables: the last part of the place without its suffixes."""
        last = self._last
        return (last.split(".")[0] or last)[:128]

    @property
    def _last(self) -> str:
        return self.place.rstrip("/").rsplit("/", 1)[-1]

    def table_set(self, embedding_dim: int) -> TableSet:
        """Return one table per feature. Raises DataError for a feature that can have none."""
        return self.statistics.table_set(
            embedding_dim=embedding_dim, name=self.name, source=f"sample {self._last}", duplication=self.duplication
        )


def read_sample(
    data: DataSet, place: str, settings: SampleSettings, *, numbers: SeenNumbers, is_silent: bool
) -> Sample:
    """Read a sample.

    Args:
        data: the files.
        place: what the user calls them.
        settings: how they are read.
        numbers: takes labels and dense columns, too.
        is_silent: whether no progress is shown.

    Raises:
        DataError: the data cannot be read, has no samples, or ids that do not have the rule.
        MissingPackageError: sessions need a package.
    """
    table_names(data.columns.features, where=place)  # which are checked before rows are read
    known = [count for count in (settings.max_samples, data.num_samples) if count is not None]
    duplication = None
    with activity("reading samples", is_silent=is_silent) as shown:
        batches = shown.of(
            limited(data.batches(settings.batch_size, numbers), settings.max_samples),
            total=min(known, default=None),
            amount=lambda batch: batch.num_samples,
        )
        statistics = data_statistics(
            batches,
            batch_size=settings.batch_size,
            ids_are_rows=data.ids_are_rows,
            has_label=data.columns.has_label if data.has_names else None,
            id_rule=settings.id_rule,
            rows_per_id=settings.rows_per_id,
        )
        if data.session is not None and data.time is not None:
            shown.begin("measuring repeats of sessions")
            duplication = measure_duplication(
                data.files,
                tuple(each.name for each in statistics.features),
                session=data.session,
                time=data.time,
                session_run=settings.session_run,
                settings=settings.engine,
                constant=settings.constant,
            )
    doubts = data.doubts(statistics, numbers) if data.has_names else ()
    return Sample(place=place, statistics=statistics, duplication=duplication, doubts=doubts)
