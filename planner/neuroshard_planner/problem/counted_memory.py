"""The memory ledger of a request whose bytes can be counted."""

import numpy as np
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.memory_ledger import MemoryLedger

from neuroshard_planner.errors import InfeasibleError

MOST_BYTES = 2**62  # sums of less stay exact in 64-bit integers


def memory_ledger(request: PlanRequest) -> MemoryLedger:
    """Return the ledger of a request. Raises InfeasibleError where the tables need more bytes than can be counted."""
    ledger, tables = MemoryLedger(request), request.tables.tables
    whole = ledger.shard_bytes(*ledger.whole)
    total = float(whole.sum(dtype=np.float64))
    if total > MOST_BYTES:
        largest = int(whole.argmax())
        raise InfeasibleError(
            f"the tables need {total:.3g} bytes, more than any memory; the largest table is "
            f"{tables[largest].name!r} with {float(whole[largest]):.3g} bytes; "
            f"hint: check tables.tables[{largest}].num_embeddings"
        )
    return ledger
