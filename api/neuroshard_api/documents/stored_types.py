"""The types that a plan stores tables in, where it may choose them: which it chose, and what that changes.

The tables of a plan's request are in their own types; ``resolved`` has them in the chosen ones.
"""

from collections.abc import Mapping

from pydantic import Field

from neuroshard_api.documents.counts import Count, Milliseconds
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_api.sharding.kernels import DataType


class StoredTable(Value):
    """A table that a plan stores in another type than its own."""

    name: str
    own: DataType
    """Type of the table in the model."""
    chosen: DataType
    """Type of the table in the plan, which the model must be built with."""
    saved_bytes: Count
    """Weights of the whole table in its own type less those in the chosen one; 0 where that is the wider one."""


class StoredTypes(Value):
    """What was decided about the types of the tables."""

    tables: tuple[StoredTable, ...] = ()
    """In the order of the request's. Empty: all tables have their own types."""
    own_ms: Milliseconds | None = None
    """Predicted cost of the best plan with the tables' own types. If unset: none fits, or is permitted."""
    reason: str | None = Field(default=None, min_length=1)
    """Why no table has another type. If unset: some have."""

    @property
    def saved_bytes(self) -> int:
        """Weights that all tables need less than in their own types."""
        return sum(table.saved_bytes for table in self.tables)


def with_types(tables: TableSet, types: Mapping[str, DataType]) -> TableSet:
    """Return the tables in these types, by name; the others as they are."""

    def stored(table: Table) -> Table:
        return table.model_copy(update={"data_type": types.get(table.name, table.data_type)})

    return tables.model_copy(update={"tables": tuple(map(stored, tables.tables))})
