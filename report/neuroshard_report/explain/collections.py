"""The embedding collections of a plan's model, each with its tables."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from neuroshard_api.documents.plan import GivenPlan
from neuroshard_costs.shards import weights_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedCollection:
    """An embedding collection, and where its tables are."""

    path: str
    """Within the model; empty: of tables that name none."""
    tables: tuple[str, ...]
    """In the order of the request."""
    num_columns: int
    """Sum over the tables."""
    lookups: float
    """Mean per sample, over all tables."""
    weights_bytes: int
    sharding_types: tuple[tuple[str, int], ...]
    """With the number of tables, most tables first."""
    devices: tuple[int, ...]
    """Those with a shard of it, ascending."""

    @property
    def types_text(self) -> str:
        """The sharding types in words: ``row_wise 2, table_wise 1``."""
        return ", ".join(f"{kind} {count}" for kind, count in self.sharding_types)


def placed_collections(plan: GivenPlan) -> Sequence[PlacedCollection]:
    """Return the collections in the order of their first tables. Empty: the tables name none."""
    tables = plan.resolved.tables.tables
    if all(table.collection is None for table in tables):
        return ()
    placements = {placed.name: placed for placed in plan.tables}
    found = []
    for path in dict.fromkeys(table.collection for table in tables):
        members = [table for table in tables if table.collection == path]
        placed = [placements[table.name] for table in members]
        types = Counter(str(each.sharding_type) for each in placed)
        found.append(
            PlacedCollection(
                path=path or "",
                tables=tuple(table.name for table in members),
                num_columns=sum(table.embedding_dim for table in members),
                lookups=sum(table.pooling_factor for table in members),
                weights_bytes=sum(map(weights_bytes, members)),
                sharding_types=tuple(types.most_common()),
                devices=tuple(sorted({shard.device for each in placed for shard in each.shards})),
            )
        )
    return found
