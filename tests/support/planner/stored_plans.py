"""Builder of a plan that stores tables in other types than their own."""

from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.stored_types import StoredTable, StoredTypes
from neuroshard_api.documents.tables import DataType, Optimizer
from support import builders
from support.planner.placements import by_columns, by_rows, everywhere, on_node
from support.trainer.trainer_builders import TABLES

MIXED = ("user", "item", "node")
"""Tables that are stored as FP16 in a plan of mixed types."""
TOPOLOGY = builders.topology(4, num_nodes=2)
USER, ITEM, COUNTRY = TABLES


def plan_with(*halved: str) -> GivenPlan:
    """Return a plan of five tables in four families, which stores these as FP16."""
    tables = (*TABLES, *(builders.table(name, num_embeddings=40, embedding_dim=16) for name in ("node", "copy")))
    types = dict.fromkeys(halved, DataType.FP16)
    placed = (
        by_columns(USER, (3, 16), (0, 16)),
        by_rows(ITEM, TOPOLOGY),
        by_columns(COUNTRY, (1, 16)),
        on_node(tables[3], 1, TOPOLOGY),
        everywhere(tables[4], TOPOLOGY),
    )

    def stored(placement: TablePlacement) -> TablePlacement:
        return placement.model_copy(update={"data_type": types.get(placement.name)})

    request = PlanRequest(tables=builders.table_set(*tables), topology=TOPOLOGY, optimizer=Optimizer.ROWWISE_ADAGRAD)
    chosen = tuple(
        StoredTable(name=name, own=DataType.FP32, chosen=DataType.FP16, saved_bytes=0)
        for name in (table.name for table in tables)
        if name in types
    )
    return GivenPlan(
        algorithm=Algorithm.NEUROSHARD,
        tables=tuple(map(stored, placed)),
        request=request,
        stored_types=StoredTypes(tables=chosen) if chosen else None,
    )
