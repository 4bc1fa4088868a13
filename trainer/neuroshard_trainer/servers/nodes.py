"""TorchRec's groups for tables that are cut by node, where servers are among the ranks.

TorchRec makes these groups when the first of these tables is sharded, in a collective of all ranks, of which each node
has equally many. A server shards no such table, and its node has another number of processes.
"""

from datetime import timedelta

import torch.distributed as dist
from torchrec.distributed import comm
from torchrec.distributed.sharding import grid_sharding, twrw_sharding

_MODULES = (twrw_sharding, grid_sharding)
"""What asks for the groups."""


def join_nodes(*, num_trainers: int, per_node: int, backend: str, timeout_seconds: float) -> None:
    """Make the groups of nodes, and of equal places of all nodes, and give TorchRec its own. All ranks must call this.

    Args:
        num_trainers: the first ranks.
        per_node: trainers that share the rows of a block of columns.
        backend: of the trainers' exchanges. A server has none.
        timeout_seconds: how long collectives of these groups wait for the others.
    """
    nodes = [range(first, first + per_node) for first in range(0, num_trainers, per_node)]
    timeout = timedelta(seconds=timeout_seconds)
    within, across = (
        [dist.new_group(list(ranks), backend=backend, timeout=timeout) for ranks in groups]
        for groups in (nodes, zip(*nodes, strict=True))
    )
    own = tuple(each for found in (within, across) for each in found if isinstance(each, dist.ProcessGroup))
    if not own:  # a server
        return
    assert len(own) == len((within, across)), "a trainer is on one node, and in one place of it"
    for module in _MODULES:
        module.intra_and_cross_node_pg = lambda *_, **__: own
    comm._NODE_GROUP_SIZE_2D = per_node  # noqa: SLF001 - sizes of optimizer state, by all ranks otherwise
