"""Lists that equal those of the sample before, and lists that change within a session. Compares values, not hashes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from neuroshard_trainer.data.samples import IndexArray, Jagged, ranges

LISTED_IDS = 8
"""Ids of a list that a message shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListChange:
    """A list that differs from the one before it in its session."""

    feature: str
    row: int
    """Of the sample among those that were compared."""
    row_before: int
    """Of the sample before it in the session."""
    listed: str
    """First ids of the list, for people."""
    listed_before: str
    """The same of the list before it."""


def first_change(features: Mapping[str, Jagged], sessions: IndexArray) -> ListChange | None:
    """Return a list that changes within a session, of the first feature with one; None: all are constant.

    Args:
        features: lists by name.
        sessions: [samples] equal for the samples of a session, which need not be next to each other.
    """
    order = np.argsort(sessions, kind="stable")
    is_stored = bool((order[1:] > order[:-1]).all())
    grouped = sessions[order]
    continues = np.zeros(len(grouped), dtype=np.bool_)
    continues[1:] = grouped[1:] == grouped[:-1]
    for name, feature in features.items():
        changed = np.flatnonzero(continues & ~repeated([feature if is_stored else feature.take(order)]))
        if changed.size:
            row, before = int(order[changed[0]]), int(order[changed[0] - 1])
            return ListChange(
                feature=name,
                row=row,
                row_before=before,
                listed=listed(_ids_of(feature, row)),
                listed_before=listed(_ids_of(feature, before)),
            )
    return None


def changed_list(
    feature: str, session: object, *, place: str, place_before: str, found: str, found_before: str, setting: str
) -> str:
    """Return the sentence about a list that changes within a session although ``setting`` declares it constant."""
    return (
        f"{place}: {feature!r} changes in session {session!r} (found {found}, and {found_before} in {place_before}); "
        f"hint: correct the log, or remove {feature!r} from {setting}"
    )


def _ids_of(feature: Jagged, row: int) -> list[int]:
    ids: list[int] = feature.take(np.array([row])).values.tolist()
    return ids


def listed(ids: Sequence[int]) -> str:
    """Return the first ids of a list, for people."""
    shown = ", ".join(map(str, ids[:LISTED_IDS]))
    return f"[{shown}, ...] of {len(ids):,} ids" if len(ids) > LISTED_IDS else f"[{shown}]"


def repeated(features: Sequence[Jagged], among: NDArray[np.bool_] | None = None) -> NDArray[np.bool_]:
    """Return [samples] whether each sample's lists all equal those of the sample before it; the first one's never.

    Args:
        features: lists of the samples.
        among: [samples] which of them may repeat. If unset: all.
    """
    repeats: NDArray[np.bool_] = np.ones(len(features[0].lengths), dtype=np.bool_) if among is None else among.copy()
    repeats[:1] = False
    for feature in features:
        compared = feature.values if feature.is_single else feature.lengths
        repeats[1:] &= compared[1:] == compared[:-1]
    for feature in features:
        if not feature.is_single:
            candidates = np.flatnonzero(repeats)
            repeats[candidates[_differ(feature, candidates)]] = False
    return repeats


def _differ(feature: Jagged, samples: IndexArray) -> NDArray[np.bool_]:
    """Return whether the lists of samples have another value than those before them, which are as long."""
    starts, lengths = feature.offsets[samples], feature.lengths[samples]
    differ: NDArray[np.bool_] = lengths > 0
    held = np.flatnonzero(differ)
    differ[held] = feature.values[starts[held]] != feature.values[starts[held] - lengths[held]]
    rest = held[~differ[held]]  # those whose first values are equal
    lengths = lengths[rest]
    at = ranges(starts[rest], lengths)
    differ[np.repeat(rest, lengths)[feature.values[at] != feature.values[at - np.repeat(lengths, lengths)]]] = True
    return differ
