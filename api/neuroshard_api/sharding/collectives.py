"""The collective operations of a step's embedding part, by names that predictions and measurements share.

family       forward                                    backward
columns      all_to_all of pooled embeddings            all_to_all of their gradients
rows         reduce_scatter of partial sums             all_gather of the gradients, under the same name
             all_to_all of the rows of sequences        all_to_all of their gradients
node_rows    reduce_scatter inside each node, then      the same two in reverse; both stages together
             all_to_all among equal local ranks         are one reduce_scatter here
replicated   none                                       all_reduce of the tables' gradients
none         none                                       sync: mean of weights and optimizer state over the copies
                                                        that groups of devices hold, per step on average

The indices of all families but replicated travel in one exchange before the lookups.
"""

from enum import StrEnum

from neuroshard_api.documents.counts import Milliseconds
from neuroshard_api.documents.document import Value
from neuroshard_api.sharding.kinds import Family


class CollectiveKind(StrEnum):
    """A collective operation, named after its forward form."""

    INDICES = "indices"
    """All-to-all of the lookups' indices."""
    ALL_TO_ALL = "all_to_all"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    SYNC = "sync"
    """All-reduce of the copies that groups of devices hold of their shards, after the optimizer."""


class CollectiveTime(Value):
    """What one collective adds to a step, in milliseconds."""

    kind: CollectiveKind
    family: Family | None = None
    """If unset: of all families together, as the exchange of indices."""
    forward_ms: Milliseconds = 0.0
    backward_ms: Milliseconds = 0.0
