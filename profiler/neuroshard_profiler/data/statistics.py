"""From a sample of training data to a table set: rows, pooling factor, reuse and duplication. Reads no files itself.

The reuse histogram is the share of the distinct rows of a batch by hits per row (docs/concepts/reuse.md), over all
whole batches of the sample. The duplication factor is samples over distinct (session, list of ids) pairs of a batch: 1
means that no list repeats within its session, 4 that three of four need not be stored, sent and looked up again (RecD:
Zhao et al., MLSys 2023).

Ids that number rows from 0 on are rows. Others, and texts, are hashed, so that several may share a row. The distinct
ids of the sample are put into the rows as training puts them, and those that share one are counted.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

import numpy as np
from neuroshard_api.documents.tables import (
    MAX_ROWS,
    REUSE_BINS,
    IdRule,
    Table,
    TableSet,
    allowed_name,
    is_table_name,
)
from neuroshard_api.documents.trainable_names import is_trainable_name
from neuroshard_api.process.errors import DataError
from neuroshard_costs.reuse.hit_counts import BIN_EDGES
from neuroshard_costs.shards import FloatArray, IndexArray
from neuroshard_trainer.data.id_rules import rows_of_hashes, rows_of_integers

from neuroshard_profiler.data.batches import NO_BOUNDS, DataBatch, FeatureBatch, joined_bounds
from neuroshard_profiler.data.doubts import SeenValues
from neuroshard_profiler.sessions.groups import Duplication

_MIX = np.uint64(0x9E3779B97F4A7C15)
_MERGED_IDS = 2**20
"""Ids that wait before they are merged with those that were seen; at least as many as those."""
ROWS_PER_ID = {IdRule.HASH: 2.0, IdRule.MODULO: 1.0}
"""Default rows of a table for each distinct id of the sample. Logs that are hashed have ids that grow, and room halves
what shares a row; the sizes of public tables of Criteo's hashes, which are taken modulo, are the numbers of ids."""
_MAX_FEATURE_CHARACTERS = 128
MAX_EXACT_ROWS = 2**31
MAX_EXACT_SPREAD = 1024
MIN_EXACT_ROWS = 2**20
"""Ids number rows if they are from 0 to below MAX_EXACT_ROWS, and to below MIN_EXACT_ROWS or MAX_EXACT_SPREAD rows for
each distinct id of the sample: a sample shows a part of the ids, and hashes are spread over all of 32 or 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedRows:
    """Ids of a sample that share a row of their table."""

    ids: float
    """Share of the distinct ids of which another one has the row."""
    lookups: float
    """Share of the lookups that are of such ids."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SampledFeature:
    """What a sample says of one feature."""

    name: str
    id_rule: IdRule
    num_ids: int
    """Distinct ids."""
    num_rows: int
    """Largest id plus one, or rows for the distinct ids where they are hashed; a whole data set may have more."""
    shared: SharedRows | None
    """None: ids are rows."""
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
        names = table_names([each.name for each in self.features], where=source)
        for each in self.features:
            if each.num_rows > MAX_ROWS:
                raise DataError(
                    f"{source}: feature {each.name!r} needs {each.num_rows:,} rows, and a table has at most "
                    f"{MAX_ROWS:,}; hint: lower --rows-per-id"
                )
            if each.pooling_factor == 0:
                raise DataError(
                    f"{source}: feature {each.name!r} has no ids in {self.num_samples} samples; hint: give --ignore "
                    f"{each.name}"
                )
        found = TableSet(
            name=name,
            source=source,
            reuse_batch_size=self.reuse_batch_size,
            tables=tuple(
                Table(
                    name=names[each.name],
                    num_embeddings=each.num_rows,
                    id_rule=each.id_rule,
                    embedding_dim=embedding_dim,
                    pooling_factor=each.pooling_factor,
                    feature_names=(each.name,),
                    reuse_histogram=each.reuse_histogram,
                )
                for each in self.features
            ),
        )
        return found if duplication is None else duplication.of_tables(found)


def table_names(features: Sequence[str], *, where: str) -> dict[str, str]:
    """Return a distinct table name for each feature, as like the feature's as can be trained. Raises DataError.

    A table has its feature's name where it may. Of others dots and the characters that are not allowed become
    underscores, and a name that is taken, or that torch has another use for, gets a number: columns in another script
    than Latin differ in nothing else.
    """
    for feature in features:
        if not 0 < len(feature) <= _MAX_FEATURE_CHARACTERS:
            raise DataError(
                f"{where}: column {feature[:40]!r}: no feature can have its name (found {len(feature)} characters)"
                f"; hint: rename it: 1 to {_MAX_FEATURE_CHARACTERS} characters"
            )
    names = {feature: feature for feature in features if is_table_name(feature) and is_trainable_name(feature)}
    taken = set(names)
    for feature in features:
        if feature in names:
            continue
        allowed = allowed_name(feature).replace(".", "_")
        plain = allowed if is_table_name(allowed) else f"_{allowed}"[:_MAX_FEATURE_CHARACTERS]
        numbered = (f"{plain[: _MAX_FEATURE_CHARACTERS - 8]}_{number}" for number in count(2))
        free = (name for name in chain((plain,), numbered) if name not in taken and is_trainable_name(name))
        names[feature] = next(free)
        taken.add(names[feature])
    return names


@dataclass(slots=True)
class _SeenIds:
    """Distinct ids, ascending, and the lookups of each."""

    ids: IndexArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    lookups: IndexArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    waiting: list[tuple[IndexArray, IndexArray]] = field(default_factory=list)
    num_waiting: int = 0

    def add(self, ids: IndexArray, lookups: IndexArray) -> None:
        self.waiting.append((ids, lookups))
        self.num_waiting += len(ids)
        if self.num_waiting >= max(_MERGED_IDS, len(self.ids)):
            self.merge()

    def merge(self) -> None:
        parts = [(self.ids, self.lookups), *self.waiting]
        self.ids, place = np.unique(np.concatenate([ids for ids, _ in parts]), return_inverse=True)
        weights = np.concatenate([lookups for _, lookups in parts])
        self.lookups = np.bincount(place, weights=weights, minlength=len(self.ids)).astype(np.int64)
        self.waiting, self.num_waiting = [], 0


@dataclass(slots=True)
class _Tally:
    """What is counted of one feature."""

    num_lookups: int = 0
    are_texts: bool = False
    text_bounds: tuple[int, int] | None = NO_BOUNDS
    """Smallest and largest of texts that all are integers. None: some are not."""
    seen: _SeenIds = field(default_factory=_SeenIds)
    rows_per_bin: FloatArray = field(default_factory=lambda: np.zeros(REUSE_BINS))
    num_lists: int = 0
    values: SeenValues = field(default_factory=SeenValues)

    def rule(self, *, are_hashes: bool) -> IdRule:
        """Return the rule that fits the ids."""
        if are_hashes:
            return IdRule.MODULO
        bounds = self.bounds
        if bounds is None:
            return IdRule.HASH
        smallest, largest = bounds
        is_dense = largest < min(MAX_EXACT_ROWS, max(MIN_EXACT_ROWS, MAX_EXACT_SPREAD * len(self.seen.ids)))
        return IdRule.EXACT if smallest >= 0 and is_dense else IdRule.HASH

    @property
    def bounds(self) -> tuple[int, int] | None:
        """Smallest and largest id; None: some are texts that are no integers."""
        if self.are_texts:
            return self.text_bounds
        return (int(self.seen.ids[0]), int(self.seen.ids[-1])) if len(self.seen.ids) else NO_BOUNDS

    def require(self, rule: IdRule, name: str) -> None:
        """Do nothing if the ids have a rule. Raises DataError."""
        hint = "hint: give --id-rule Hash, or leave --id-rule out"
        bounds = self.bounds
        if bounds is None and rule is not IdRule.HASH:
            raise DataError(f"feature {name!r}: its ids are texts, which have the id rule Hash alone; {hint}")
        if (
            rule is IdRule.EXACT
            and bounds is not None
            and (min(bounds) < 0 or max(bounds) >= MAX_ROWS)
            and self.num_lookups
        ):
            raise DataError(
                f"feature {name!r}: its ids number no rows, expected 0 to {MAX_ROWS - 1:,} "
                f"(found {bounds[0]} to {bounds[1]}); {hint}"
            )

    def num_rows(self, rule: IdRule, rows_per_id: float | None) -> int:
        """Return the rows that the ids need: up to the largest, or those of a hashed table."""
        if rule is IdRule.EXACT:
            return max(1, (self.bounds or NO_BOUNDS)[1] + 1)
        return max(1, math.ceil((rows_per_id or ROWS_PER_ID[rule]) * len(self.seen.ids)))

    def shared(self, rule: IdRule, num_rows: int, *, are_hashes: bool) -> SharedRows | None:
        """Return the shares of ids and lookups with a shared row; None: ids are rows."""
        if rule is IdRule.EXACT:
            return None
        seen = self.seen
        if self.are_texts:  # of CSV, integers that are taken modulo share as many rows as their hashes do
            rows = rows_of_hashes(seen.ids.view(np.uint64), num_rows)
        else:
            rows = rows_of_integers(seen.ids.view(np.uint64) if are_hashes else seen.ids, rule, num_rows)
        _, place, ids_of_row = np.unique(rows, return_inverse=True, return_counts=True)
        shares = ids_of_row[place] > 1
        return SharedRows(
            ids=float(shares.mean()) if len(shares) else 0.0,
            lookups=float(seen.lookups[shares].sum()) / max(1, self.num_lookups),
        )


def data_statistics(
    batches: Iterable[DataBatch],
    *,
    batch_size: int,
    ids_are_rows: bool,
    has_label: bool | None = None,
    id_rule: IdRule | None = None,
    rows_per_id: float | None = None,
) -> DataStatistics:
    """Return the statistics of the batches.

    Args:
        batches: of ``batch_size`` samples, the last of fewer; it counts for reuse only if it is the only one.
        batch_size: samples of a global batch.
        ids_are_rows: whether an integer may be a row's number; otherwise all are hashes.
        has_label: whether the label is known, so that no feature may be it. None: no feature is doubted.
        id_rule: of all features. None: for each the one that fits its ids.
        rows_per_id: rows of a table for each distinct id, where ids are hashed. None: ROWS_PER_ID.

    Raises:
        DataError: there are no samples, or ids that do not have the rule.
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
            if feature.are_texts:
                tally.are_texts = True
                tally.text_bounds = joined_bounds([tally.text_bounds, feature.bounds])
            tally.seen.add(rows, hits)
            if batch.sessions is not None:
                tally.num_lists += _num_lists(batch.sessions, feature)
    if num_samples == 0:
        raise DataError("the data holds no samples; hint: give a file with some")
    features = []
    for name, tally in tallies.items():
        tally.seen.merge()
        rule = id_rule or tally.rule(are_hashes=not ids_are_rows)
        tally.require(rule, name)
        num_rows = tally.num_rows(rule, rows_per_id)
        features.append(
            SampledFeature(
                name=name,
                id_rule=rule,
                num_ids=len(tally.seen.ids),
                num_rows=num_rows,
                shared=tally.shared(rule, num_rows, are_hashes=not ids_are_rows),
                pooling_factor=tally.num_lookups / num_samples,
                reuse_histogram=tuple((tally.rows_per_bin / max(tally.rows_per_bin.sum(), 1.0)).tolist()),
                duplication_factor=num_samples / tally.num_lists if has_sessions else None,
                doubt=None if has_label is None else tally.values.doubt(name, has_label=has_label),
            )
        )
    return DataStatistics(
        num_samples=num_samples,
        reuse_batch_size=reuse_batch_size,
        samples_per_session=num_samples / num_sessions if has_sessions else None,
        features=tuple(features),
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
