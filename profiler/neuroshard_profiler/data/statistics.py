"""From a sample of training data to a table set: rows, pooling factor, reuse and duplication. Reads no files itself.

The reuse histogram is the share of the distinct rows of a batch by hits per row (docs/concepts/reuse.md), over all
whole batches of the sample. The duplication factor is samples over distinct (session, list of ids) pairs of a batch: 1
means that no list repeats within its session, 4 that three of four need not be stored, sent and looked up again (RecD:
Zhao et al., MLSys 2023).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from neuroshard_api.documents.tables import MAX_ROWS, REUSE_BINS, Table, TableSet, allowed_name, is_table_name
from neuroshard_api.process.errors import DataError
from neuroshard_costs.reuse.hit_counts import BIN_EDGES
from neuroshard_costs.shards import FloatArray, IndexArray

from neuroshard_profiler.data.batches import DataBatch, FeatureBatch
from neuroshard_profiler.data.doubts import SeenValues
from neuroshard_profiler.sessions.groups import Duplication

_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledFeature:
    """What a sample says of one feature."""

    name: str
    num_rows: int
    """Largest id plus one, or the number of distinct ids where ids are hashes; a whole data set may have more."""
    pooling_factor: float
    reuse_histogram: tuple[float, ...]
    duplication_factor: float | None
    """None: sessions are not known."""
    doubt: str | None = None
    """A question whether the feature is a label, a time, or a running number. None: there is no reason to ask."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataStatistics:
    """What a sample says of all features."""

    num_samples: int
    reuse_batch_size: int
    samples_per_session: float | None
    """Within a batch. None: sessions are not known."""
    features: tuple[SampledFeature, ...]

    def table_set(
        self, *, embedding_dim: int, name: str, source: str, duplication: Duplication | None = None
    ) -> TableSet:
        """Return one table per feature. Raises DataError for a feature that no sample has, or of too many rows."""
        require_table_names([each.name for each in self.features], where=source)
        for each in self.features:
            if each.num_rows > MAX_ROWS:
                raise DataError(
                    f"{source}: feature {each.name!r} has the id {each.num_rows - 1:,}, and a table at most "
                    f"{MAX_ROWS:,} rows; hint: number rows from 0"
                )
            if each.pooling_factor == 0:
                raise DataError(
                    f"{source}: feature {each.name!r} has no ids in {self.num_samples} samples; hint: leave it out"
                )
        return TableSet(
            name=name,
            source=source,
            reuse_batch_size=self.reuse_batch_size,
            session_run=None if duplication is None else duplication.session_run,
            tables=tuple(
                Table(
                    name=allowed_name(each.name),
                    num_embeddings=each.num_rows,
                    embedding_dim=embedding_dim,
                    pooling_factor=each.pooling_factor,
                    feature_names=(each.name,),
                    reuse_histogram=each.reuse_histogram,
                    duplication_group=None if duplication is None else duplication.group_of(each.name),
                    duplication_factor=None if duplication is None else duplication.factor_of(each.name),
                )
                for each in self.features
            ),
        )


def require_table_names(features: Sequence[str], *, where: str) -> None:
    """Do nothing if tables can have the names of the features. Raises DataError."""
    owner: dict[str, str] = {}
    for feature in features:
        name = allowed_name(feature)
        if not is_table_name(name):
            raise DataError(
                f"{where}: column {feature!r}: no table can have its name (found {len(feature)} characters, of which "
                f"the first is {feature[:1]!r}); hint: rename it: at most 128 characters, a letter, a digit or _ first"
            )
        if owner.setdefault(name, feature) != feature:
            raise DataError(
                f"{where}: columns {owner[name]!r} and {feature!r}: their tables would both be called {name!r}"
                "; hint: rename one, or name the features with --feature"
            )


@dataclass(slots=True)
class _Tally:
    """What is counted of one feature."""

    num_lookups: int = 0
    largest_id: int = -1
    seen: IndexArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    rows_per_bin: FloatArray = field(default_factory=lambda: np.zeros(REUSE_BINS))
    num_lists: int = 0
    values: SeenValues = field(default_factory=SeenValues)


def data_statistics(
    batches: Iterable[DataBatch], *, batch_size: int, ids_are_rows: bool, has_label: bool | None = None
) -> DataStatistics:
    """Return the statistics of the batches.

    Args:
        batches: of ``batch_size`` samples, the last of fewer; it counts for reuse only if it is the only one.
        batch_size: samples of a global batch.
        ids_are_rows: whether an id is a row's number; otherwise rows are the distinct ids.
        has_label: whether the label is known, so that no feature may be it. None: no feature is doubted.

    Raises:
        DataError: there are no samples.
    """
    tallies: dict[str, _Tally] = {}
    num_samples = reuse_batch_size = num_sessions = 0
    has_sessions = False
    for batch in batches:
        is_first = num_samples == 0
        num_samples += batch.num_samples
        reuse_batch_size = reuse_batch_size or batch.num_samples
        has_sessions = batch.sessions is not None
        if batch.sessions is not None:
            num_sessions += len(np.unique(batch.sessions))
        for name, feature in batch.features.items():
            tally = tallies.setdefault(name, _Tally())
            rows, hits = np.unique(feature.ids, return_counts=True)
            tally.num_lookups += len(feature.ids)
            if has_label is not None:
                tally.values.take(feature, rows)
            if is_first or batch.num_samples == batch_size:
                tally.rows_per_bin += np.bincount(np.searchsorted(BIN_EDGES, hits), minlength=REUSE_BINS)
            if ids_are_rows:
                tally.largest_id = max(tally.largest_id, int(rows[-1]) if len(rows) else -1)
            else:
                tally.seen = np.union1d(tally.seen, rows)
            if batch.sessions is not None:
                tally.num_lists += _num_lists(batch.sessions, feature)
    if num_samples == 0:
        raise DataError("the data holds no samples; hint: give a file with some")
    return DataStatistics(
        num_samples=num_samples,
        reuse_batch_size=reuse_batch_size,
        samples_per_session=num_samples / num_sessions if has_sessions else None,
        features=_features(
            tallies, num_samples, ids_are_rows=ids_are_rows, has_sessions=has_sessions, has_label=has_label
        ),
    )


def _features(
    tallies: Mapping[str, _Tally],
    num_samples: int,
    *,
    ids_are_rows: bool,
    has_sessions: bool,
    has_label: bool | None,
) -> tuple[SampledFeature, ...]:
    return tuple(
        SampledFeature(
            name=name,
            num_rows=max(1, tally.largest_id + 1 if ids_are_rows else len(tally.seen)),
            pooling_factor=tally.num_lookups / num_samples,
            reuse_histogram=tuple((tally.rows_per_bin / max(tally.rows_per_bin.sum(), 1.0)).tolist()),
            duplication_factor=num_samples / tally.num_lists if has_sessions else None,
            doubt=None if has_label is None else tally.values.doubt(name, has_label=has_label),
        )
        for name, tally in tallies.items()
    )


def _num_lists(sessions: IndexArray, feature: FeatureBatch) -> int:
    """Return the distinct pairs of a session and a list of ids; lists differ by the hash of their ids."""
    sample = np.repeat(np.arange(len(feature.lengths)), feature.lengths)
    starts = np.cumsum(feature.lengths) - feature.lengths
    place = np.arange(len(feature.ids)) - starts[sample]
    with np.errstate(over="ignore"):
        mixed = (feature.ids.astype(np.uint64) + _MIX) * _MIX
        mixed ^= mixed >> np.uint64(29)
        mixed = (mixed + place.astype(np.uint64)) * _MIX
        mixed ^= mixed >> np.uint64(32)
        hashes = np.zeros(len(feature.lengths), dtype=np.uint64)
        np.add.at(hashes, sample, mixed)
    pairs = np.stack((sessions.astype(np.uint64), hashes), axis=1)
    return len(np.unique(pairs, axis=0))
