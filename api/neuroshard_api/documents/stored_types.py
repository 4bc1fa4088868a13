"""The types that a plan stores tables in, where it may choose them: which it chose, and what that changes.

The tables of a plan's request are in their own types; ``resolved`` has them in the chosen ones.
"""

from collections.abc import Mapping

from pydantic import Field

from neuroshard_api.documents.counts import Count, Milliseconds
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_api.sharding.kernels import TRAINING_KERNELS, DataType, kernel_problem
from neuroshard_api.sharding.kinds import ShardingType


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


def permitted_types(table: Table, request: PlanRequest) -> tuple[DataType, ...]:
    """Return the types that the constraints let a table be stored in, and that its devices train. Raises ValueError."""
    asked = request.constraints.data_types_of(table.name) or (table.data_type,)
    optimizer, refused = request.optimizer_of(table), TRAINING_KERNELS[request.topology.device.kind].refused
    trained = tuple(each for each in dict.fromkeys(asked) if (optimizer, each) not in refused)
    if not trained:
        problem = kernel_problem(request.topology.device.kind, weight_types={table.name: asked[0]}, optimizer=optimizer)
        raise ValueError(f"constraints.data_types: {problem}")
    if request.constraints.sharding_types_of(table.name) != (ShardingType.DATA_PARALLEL,):
        return trained
    if DataType.FP32 not in trained:
        raise ValueError(
            f"constraints.data_types: table {table.name!r} may be {' or '.join(trained)} alone, and data_parallel, its "
            "only sharding type, is for FP32; hint: permit FP32, or another sharding type"
        )
    return (DataType.FP32,)
