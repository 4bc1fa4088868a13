"""Where the lookups of each feature are computed, and how much longer changed lookups can take there. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from neuroshard_api.documents.input_statistics import FeatureStatistics, InputStatistics
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.tables import allowed_name
from neuroshard_api.sharding.kinds import ShardingType

from neuroshard_trainer.drift.attribution import InputChange


@dataclass(frozen=True, kw_only=True, slots=True)
class FeaturePlacement:
    """The ranks of features' tables."""

    table_of_feature: Mapping[str, str]
    columns: Mapping[str, Mapping[int, float]]
    """By feature and rank: columns that a lookup of one rank's batch reads there, summed over the batches of all ranks,
    of those of its group where the plan has groups. None of features whose tables are on embedding servers."""
    ranks_per_node: int
    without_repeats: tuple[str, ...] = ()
    """Features whose repeated lists are left out of batches."""
    rows: Mapping[str, int] = field(default_factory=dict)
    """Rows of each feature's table. Empty: not known."""

    @classmethod
    def of(cls, plan: GivenPlan) -> Self:
        """Return the placement of a plan; with groups of ranks, each group looks up its own batches alone."""
        group_size = len(plan.groups[0])
        columns: dict[str, dict[int, float]] = {}
        tables = {table.name: table for table in plan.request.tables.tables}
        for placed in plan.tables:
            own = columns.setdefault(placed.name, {})
            batches = 1 if placed.sharding_type is ShardingType.DATA_PARALLEL else group_size
            for shard in placed.shards:
                share = shard.num_rows / tables[placed.name].num_embeddings
                for members in plan.groups:
                    rank = members[shard.device]
                    own[rank] = own.get(rank, 0.0) + batches * share * shard.num_columns
        table_of_feature: dict[str, str] = {}
        of_feature: dict[str, dict[int, float]] = {}
        for table in plan.request.tables.tables:
            for feature in table.features:  # variants look it up in a table of each
                table_of_feature.setdefault(feature, table.name)
                ranks = of_feature.setdefault(feature, {})
                for rank, width in columns.get(table.name, {}).items():
                    ranks[rank] = ranks.get(rank, 0.0) + width
        return cls(
            table_of_feature=table_of_feature,
            columns=of_feature,
            ranks_per_node=plan.devices_per_node,
            without_repeats=tuple(sorted(name for names in plan.deduplicated_features for name in names)),
            rows={feature: tables[table].num_embeddings for feature, table in table_of_feature.items()},
        )

    @classmethod
    def unknown(cls, features: Iterable[str], *, world_size: int, ranks_per_node: int) -> Self:
        """Return the placement where the plan cannot be read: each feature is a table of its own on all ranks."""
        names = {feature: allowed_name(feature) for feature in features}
        everywhere = dict.fromkeys(range(world_size), 1.0)
        return cls(table_of_feature=names, columns=dict.fromkeys(names, everywhere), ranks_per_node=ranks_per_node)

    def input_change(self, before: InputStatistics, since: InputStatistics) -> InputChange:
        """Return the changed tables, and an upper bound of their effect on each rank's compute.

        A lookup costs its columns, more where its row was not read lately: a rank's compute grows by no more than its
        tables' lookups or distinct rows do, whichever grew more.
        """
        changed = set(since.changed_features)
        recent = {each.feature: each for each in since.features}
        loads_before: dict[int, float] = {}
        loads_since: dict[int, float] = {}
        for each in before.features:
            load = _load(each, recent[each.feature]) if each.feature in changed else each.lookups_per_sample
            for rank, columns in self.columns.get(each.feature, {}).items():
                loads_before[rank] = loads_before.get(rank, 0.0) + columns * each.lookups_per_sample
                loads_since[rank] = loads_since.get(rank, 0.0) + columns * load
        ranks: dict[str, set[int]] = {}
        for feature in changed & self.columns.keys():
            ranks.setdefault(self.table_of_feature[feature], set()).update(self.columns[feature])
        return InputChange(
            ranks_of_table={table: sorted(each) for table, each in sorted(ranks.items())},
            compute_ratios={
                rank: loads_since[rank] / load if load else _NEW_LOOKUPS for rank, load in loads_before.items()
            },
        )


_NEW_LOOKUPS = 1e6
"""Ratio of a rank's compute where there were no lookups before: nothing is beyond it."""


def _load(before: FeatureStatistics, since: FeatureStatistics) -> float:
    """Return the lookups per sample that cost as much as the changed ones, at most."""
    distinct = before.lookups_per_sample * before.distinct_rows_per_lookup
    distinct_since = since.lookups_per_sample * since.distinct_rows_per_lookup
    growth = distinct_since / distinct if distinct else 1.0
    return max(since.lookups_per_sample, before.lookups_per_sample * growth)
