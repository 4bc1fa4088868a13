"""The ledger of requests whose bytes can be counted."""

import pytest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.problem.counted_memory import memory_ledger
from support.builders import request, table, tables


def test_more_bytes_than_can_be_counted_are_infeasible() -> None:
    """The largest table is named with its field, before any sum overflows."""
    members = (
        *tables(3),
        table("huge", num_embeddings=10**13, embedding_dim=8192),
        *tables(30, num_embeddings=10**13, embedding_dim=4096)[3:],
    )

    with pytest.raises(InfeasibleError, match=r"'huge' .*tables\.tables\[3\]\.num_embeddings"):
        memory_ledger(request(*members, optimizer=Optimizer.ADAM))
