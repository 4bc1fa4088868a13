"""Causes that stay named while a slow-down lasts, although each report's medians are noisy."""

from collections.abc import Collection, Sequence
from typing import Final

from neuroshard_api.documents.drift_report import DriftChange

OTHER_REPORTS: Final = 3
"""Reports in a row that must find the same other causes before these are named instead."""
GROWN: Final = 2.0
"""Ratio by which the added time must have grown since the causes were named to be that of a second slow-down, or must
have shrunk to be what is left when their slow-down has ended."""
_Names = frozenset[tuple[object, ...]]


class HeldCauses:
    """The causes of one slow-down, from report to report.

    Args:
        named: causes that an earlier start of the run named.
    """

    def __init__(self, named: Sequence[DriftChange] = ()) -> None:
        self.named: tuple[DriftChange, ...]
        self._tables: frozenset[str]
        """Changed tables that were known when the causes were named."""
        self._others: _Names | None = None
        self._num_others = 0
        self._added_ms: float | None = None
        """What steps took longer when the causes were named. None: an earlier start named them."""
        self._name(named, {table for change in named for table in change.tables}, None)

    def clear(self) -> None:
        """Forget the causes: the slow-down has ended."""
        self._name((), (), None)

    def of(self, since_step: int) -> tuple[DriftChange, ...]:
        """Return the causes that were named of the slow-down since a step; of an earlier one they are forgotten."""
        if any(change.since_step != since_step for change in self.named):
            self.clear()
        return self.named

    def take(
        self, found: Sequence[DriftChange], *, tables: Collection[str], added_ms: float
    ) -> tuple[DriftChange, ...]:
        """Take in what a report found, and return what is named.

        The first causes are named at once, and so are others where other tables changed since, where a second
        slow-down came on top of one that lasts, or where most of it has ended: that is new knowledge. Otherwise others
        have to be found by several reports in a row.

        Args:
            found: the causes by the recent medians; empty where steps are as before.
            tables: whose lookups changed.
            added_ms: what steps take longer than before the slow-down.
        """
        names = _names(found)
        is_another = self._added_ms is not None and not self._added_ms / GROWN < added_ms < GROWN * self._added_ms
        is_known = not self.named or names == _names(self.named)
        is_news = is_known or is_another or self._tables != frozenset(tables)
        self._num_others = self._num_others + 1 if names == self._others else 1
        self._others = names
        if is_news or self._num_others >= OTHER_REPORTS:
            self._name(found, tables, added_ms)
        return self.named

    def _name(self, changes: Sequence[DriftChange], tables: Collection[str], added_ms: float | None) -> None:
        self.named, self._tables, self._others = tuple(changes), frozenset(tables), None
        self._added_ms = added_ms


def _names(changes: Sequence[DriftChange]) -> _Names:
    return frozenset((change.cause, change.ranks, change.tables) for change in changes)
