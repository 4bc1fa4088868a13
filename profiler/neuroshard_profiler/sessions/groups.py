"""Features that repeat together. A group is stored, sent, and looked up once where all of its lists repeat."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.process.errors import DataError
from neuroshard_costs.shards import FloatArray
from neuroshard_trainer.data.files import DataFile

from neuroshard_profiler.sessions.changes import Changes, count_changes
from neuroshard_profiler.sessions.constant_lists import require_constant
from neuroshard_profiler.sessions.engine import EngineSettings
from neuroshard_profiler.sessions.log import open_log

MIN_FACTOR = 1.2
"""Features below it are in no group: what finding and expanding repeats costs outweighs what it saves."""
KEPT_SHARE = 0.9
"""Features are in one group where each keeps at least this share of the factor that it has alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureGroup:
    """Features of one inverse."""

    features: tuple[str, ...]
    """In the order of the data."""
    factor: float
    """Samples over distinct samples of all features together, in runs."""


def candidate_groups(changes: Changes) -> tuple[FeatureGroup, ...]:
    """Return disjoint groups of features that repeat together.

    Each feature begins as a group. The pair in which the feature of the highest factor keeps the largest share of it is
    merged, the first one of equals, as long as that share is at least KEPT_SHARE; features of equal changes keep all.
    """
    groups: list[tuple[str, ...]] = [(name,) for name in changes.features if changes.factor((name,)) >= MIN_FACTOR]
    while len(groups) > 1:
        shares = _kept_shares(changes, groups)
        first, second = (int(index) for index in np.unravel_index(int(np.argmax(shares)), shares.shape))
        if shares[first, second] < KEPT_SHARE:
            break
        merged = {*groups[first], *groups[second]}
        groups[first] = tuple(name for name in changes.features if name in merged)
        del groups[second]
    return tuple(FeatureGroup(features=names, factor=changes.factor(names)) for names in groups)


def _kept_shares(changes: Changes, groups: Sequence[Sequence[str]]) -> FloatArray:
    """Return [groups, groups] the merged factor over the highest of a member; 0 on and below the diagonal."""
    distinct = np.stack([changes.distinct(names) for names in groups], axis=1)
    alone = changes.counts @ distinct
    common = (distinct * changes.counts[:, None]).T @ distinct
    either = alone[:, None] + alone[None, :] - common
    highest = np.array([max(changes.factor((name,)) for name in names) for names in groups])
    return np.triu(changes.num_samples / either / np.maximum(highest[:, None], highest[None, :]), k=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Duplication:
    """Changes of a log and the groups found in them."""

    changes: Changes
    groups: tuple[FeatureGroup, ...]

    @property
    def session_run(self) -> int:
        """Maximum samples of a run. 0: whole sessions."""
        return self.changes.session_run

    def group_of(self, feature: str) -> str | None:
        """Return the name of a feature's group, that of its first feature; none if the feature is in no group."""
        return next((each.features[0] for each in self.groups if feature in each.features), None)

    def factor_of(self, feature: str) -> float:
        """Return the factor of a feature's group; of the feature alone if it is in no group."""
        found = next((each.factor for each in self.groups if feature in each.features), None)
        return self.changes.factor((feature,)) if found is None else found

    def of_table(self, features: Sequence[str]) -> Mapping[str, object]:
        """Return group and factor of a table by field: the group that has all of its features, or none."""
        groups = {self.group_of(name) for name in features}
        group = groups.pop() if len(groups) == 1 else None
        factor = self.changes.factor(features) if group is None else self.factor_of(features[0])
        return {"duplication_group": group, "duplication_factor": factor}

    def of_tables(self, tables: TableSet) -> TableSet:
        """Return tables with the groups and factors of their features."""
        return tables.model_copy(
            update={
                "session_run": self.session_run,
                "tables": tuple(table.model_copy(update=self.of_table(table.features)) for table in tables.tables),
            }
        )


def measure_duplication(
    files: Sequence[DataFile],
    features: Sequence[str],
    *,
    session: str,
    time: str | None,
    session_run: int,
    settings: EngineSettings,
    constant: Sequence[str] = (),
) -> Duplication:
    """Measure the repeats of lists over whole Parquet files on this machine; see count_changes for units and errors.

    Lists of ``constant`` features may not change within a session: see require_constant.
    """
    remote = next((file for file in files if file.path is None), None)
    if remote is not None:
        raise DataError(f"{remote}: is a URL, and repeats are measured in local files; hint: copy it to this machine")
    log = open_log([file.path for file in files if file.path is not None], session=session, time=time)
    require_constant(log, constant, settings=settings)
    changes = count_changes(log, features, session_run=session_run, settings=settings)
    return Duplication(changes=changes, groups=candidate_groups(changes))
