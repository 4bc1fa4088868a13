"""Synthetic samples: Zipf-distributed lookups, and labels from a planted signal, so that the AUC can rise.

Each row of a table has a hidden score, a hash of feature and row id; a sample's label is drawn with the probability
sigmoid(SIGNAL * z), where z sums the mean scores of its lookups and the projection of its dense features, scaled to a
variance near 1. A model that knows all scores reaches an AUC of about 0.83; one that knows nothing, 0.5.

Samples may come in sessions, which stay within a block. A number of sessions is open at a time, and each sample is the
next one of one of them, drawn uniformly; it opens a new session in its place with the probability 1 / samples per
session. At every other sample each group of features changes all of its lists with the group's probability.
"""

from collections.abc import Sequence
from math import gcd

import numpy as np
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.job.training import SyntheticSessions
from neuroshard_api.process.errors import DataError
from numpy.typing import NDArray

from neuroshard_trainer.data.samples import Feature, FloatArray, IndexArray, Jagged, Samples
from neuroshard_trainer.data.sessions import BlockSessions
from neuroshard_trainer.data.source import BLOCK_SAMPLES, DecodedBlocks

ZIPF_EXPONENT = 0.85
"""Skew of tables for which neither they nor their set give one; as the planner's default."""
SIGNAL = 2.0
"""How much of a label its features decide; a larger value makes an easier task."""
_GOLDEN_RATIO = 0.6180339887498949


class SyntheticSource(DecodedBlocks):
    """Samples made from a seed alone: each block from the seed and its number, on any rank alike.

    Args:
        tables: with the default skew.
        features: all that are looked up.
        num_dense: dense features.
        num_samples: of an epoch.
        seed: of everything.
        sessions: how samples repeat lists. If unset: every sample is a session of its own.

    Raises:
        DataError: a group of sessions names a feature that there is not.
    """

    def __init__(
        self,
        tables: TableSet,
        features: Sequence[Feature],
        *,
        num_dense: int,
        num_samples: int,
        seed: int,
        sessions: SyntheticSessions | None = None,
    ) -> None:
        super().__init__()
        self._tables = tables
        self._sessions = sessions
        self._group_of: dict[str, int] = {}
        if sessions is not None:
            _require_groups(sessions, features)
            self._group_of = {name: number for number, group in enumerate(sessions.groups) for name in group.features}
        self._features = features
        self._num_dense = num_dense
        self._seed = seed
        self._default_exponent = ZIPF_EXPONENT if tables.zipf_exponent is None else tables.zipf_exponent
        full, rest = divmod(num_samples, BLOCK_SAMPLES)
        self.block_sizes = (*(BLOCK_SAMPLES,) * full, *((rest,) if rest else ()))
        self._dense_weights = np.random.default_rng((seed, 0)).normal(size=num_dense).astype(np.float32)
        self._dense_weights /= np.linalg.norm(self._dense_weights)

    def with_features(self, features: Sequence[Feature]) -> "SyntheticSource":
        """Return the samples of the same blocks with other lookups per sample or skew of these features."""
        return SyntheticSource(
            self._tables,
            features,
            num_dense=self._num_dense,
            num_samples=sum(self.block_sizes),
            seed=self._seed,
            sessions=self._sessions,
        )

    def read(self, block: int) -> Samples:
        """Return a block's samples."""
        rng = np.random.default_rng((self._seed, 1, block))
        count = self.block_sizes[block]
        dense = rng.normal(size=(count, self._num_dense)).astype(np.float32)
        signal = dense @ self._dense_weights
        versions = self._versions(block)
        lookups = {}
        for position, feature in enumerate(self._features):
            version = versions[self._group_of[feature.name]] if feature.name in self._group_of else None
            lengths = _lengths(feature.pooling_factor, count if version is None else int(version.max()) + 1, rng)
            jagged = Jagged.of_lengths(self._rows(feature, int(lengths.sum()), rng), lengths)
            if version is not None:
                jagged = jagged.take(version)
            lookups[feature.name] = jagged
            signal += _mean_scores(jagged, position)
        chance = 1 / (1 + np.exp(-SIGNAL * signal / np.sqrt(1 + len(self._features))))
        labels = (rng.random(count) < chance).astype(np.float32)
        return Samples(labels=labels, dense=dense, lookups=lookups)

    def sessions(self, block: int) -> BlockSessions:
        """Return the sessions of a block; without sessions each sample is one."""
        count, first = self.block_sizes[block], block * BLOCK_SAMPLES
        times = first + np.arange(count)
        if self._sessions is None:
            return BlockSessions(ids=times, times=times)
        return BlockSessions(ids=first + self._drawn_sessions(block)[0], times=times)

    def place(self, block: int, row: int) -> str:
        """Return the sample's number."""
        return f"synthetic sample {block * BLOCK_SAMPLES + row}"

    def _drawn_sessions(self, block: int) -> tuple[IndexArray, IndexArray]:
        """Return [samples] numbers of sessions, and the samples in the order of sessions."""
        assert self._sessions is not None, "asked for where there are sessions"
        rng = np.random.default_rng((self._seed, 2, block))
        count = self.block_sizes[block]
        slots = rng.integers(self._sessions.concurrency, size=count)
        by_slot: IndexArray = np.argsort(slots, kind="stable")
        opens = rng.random(count) * float(self._sessions.samples_per_session) < 1
        opens |= np.diff(slots[by_slot], prepend=-1) != 0
        numbers = np.empty(count, dtype=np.int64)
        numbers[by_slot] = np.cumsum(opens) - 1
        return numbers, by_slot

    def _versions(self, block: int) -> Sequence[IndexArray]:
        """Return [samples] for each group which of its drawn lists a sample has."""
        if self._sessions is None:
            return ()
        rng = np.random.default_rng((self._seed, 3, block))
        numbers, by_slot = self._drawn_sessions(block)
        opens = np.diff(numbers[by_slot], prepend=-1) != 0
        versions = []
        for group in self._sessions.groups:
            changes = opens | (rng.random(len(numbers)) < float(group.change_probability))
            version = np.empty(len(numbers), dtype=np.int64)
            version[by_slot] = np.cumsum(changes) - 1
            versions.append(version)
        return versions

    def _rows(self, feature: Feature, count: int, rng: np.random.Generator) -> IndexArray:
        exponent = feature.table.zipf_exponent
        rows = feature.table.num_embeddings
        ranks = zipf_ranks(rng.random(count), rows, self._default_exponent if exponent is None else exponent)
        # Neighbours in popularity are not neighbours in memory: a step that shares no divisor with the rows visits all.
        return ranks * _scatter_step(rows) % rows


def _require_groups(sessions: SyntheticSessions, features: Sequence[Feature]) -> None:
    """Do nothing if each group's features are known and in no other group. Raises DataError."""
    known = [feature.name for feature in features]
    owner: dict[str, int] = {}
    for number, group in enumerate(sessions.groups):
        where = f"spec.experimental.data.syntheticSessions.groups[{number}].features"
        for name in group.features:
            if name not in known:
                raise DataError(
                    f"{where}: the model has no feature {name!r}; hint: name one of {', '.join(sorted(known)[:20])}"
                )
            if name in owner:
                raise DataError(
                    f"{where}: {name!r} is in groups[{owner[name]}] already; hint: name a feature in one group"
                )
            owner[name] = number


def zipf_ranks(uniform: NDArray[np.float64], num_rows: int, exponent: float) -> IndexArray:
    """Return popularity ranks from 0 on, drawn by the inverse of the distribution function.

    The sum over ranks is replaced by the integral of x ** -exponent from 1 to num_rows + 1, whose inverse is known
    in closed form: it needs no memory, for tables of any size.
    """
    end = num_rows + 1.0
    if abs(exponent - 1.0) < 1e-9:  # noqa: PLR2004 - the limit of the other branch
        positions = end**uniform
    else:
        power = 1.0 - exponent
        positions = (1.0 + uniform * (end**power - 1.0)) ** (1.0 / power)
    return np.minimum(positions.astype(np.int64) - 1, num_rows - 1)


def _scatter_step(num_rows: int) -> int:
    largest = max(1, (2**63 - 1) // num_rows)  # so that rank * step stays within 64 bits
    step = max(1, min(int(num_rows * _GOLDEN_RATIO), largest))
    while gcd(step, num_rows) != 1:
        step -= 1
    return step


def _lengths(pooling_factor: float, count: int, rng: np.random.Generator) -> IndexArray:
    """Return lookups per sample: the whole numbers around a fractional pooling factor, in its proportion."""
    whole = int(pooling_factor)
    return whole + (rng.random(count) < pooling_factor - whole).astype(np.int64)


def _mean_scores(jagged: Jagged, feature: int) -> FloatArray:
    """Return the mean hidden score of each sample's lookups, times the root of their number; 0 without lookups."""
    scores = np.concatenate(([0.0], np.cumsum(_hidden_scores(jagged.values, feature))))
    sums = scores[jagged.offsets[1:]] - scores[jagged.offsets[:-1]]
    return (sums / np.sqrt(np.maximum(jagged.lengths, 1))).astype(np.float32)


def _hidden_scores(rows: IndexArray, feature: int) -> NDArray[np.float64]:
    """Return a number of variance 1 for each row: SplitMix64's finalizer of feature and row id, stretched."""
    bits = rows.astype(np.uint64) + np.uint64((feature + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    scores: NDArray[np.float64] = (bits.astype(np.float64) / 2**63 - 1.0) * np.sqrt(3.0)
    return scores
