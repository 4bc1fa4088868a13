"""Names of a request's settings in messages: those that the user wrote, in a job or in a script for TorchRec.

A request is a translation of a job, of tables with ``--set``, or of TorchRec's arguments. Messages of the planner name
the request's fields; a user who wrote `spec.planner.maxMemoryPerDevice` has no field
`constraints.max_memory_bytes_per_device`.
"""

import re
from collections.abc import Mapping
from functools import cache

JOB_FIELDS: Mapping[str, str] = {
    "batch_size_per_device": "spec.model.batchSizePerDevice",
    "communication": "spec.training.communication.policy",
    "constraints.compute_kernels": "spec.planner.hostMemoryPerNode",
    "constraints.data_types": "spec.planner.dataTypes",
    "constraints.max_memory_bytes_per_device": "spec.planner.maxMemoryPerDevice",
    "constraints.max_shard_width": "spec.experimental.planner.maxShardWidth",
    "constraints.sharding_types": "spec.planner.shardingTypes",
    "deduplicate": "spec.data.deduplication",
    "dense_choices.policy": "spec.training.denseParallelism.policy",
    "gradient_choices": "spec.training.communication.policy",
    "gradients": "spec.experimental.communication.dense",
    "memory.dense_bytes": "spec.experimental.planner.denseMemoryPerDevice",
    "pipeline": "spec.experimental.pipeline",
    "replication": "spec.planner.shardingGroups",
    "replication.group_sizes": "spec.planner.shardingGroups.sizes",
    "replication.sync_every_steps": "spec.experimental.planner.syncEverySteps",
    "search.seed": "spec.experimental.planner.seed",
    "search.work_budget": "spec.experimental.planner.workBudget",
    "servers": "spec.experimental.embeddingServers",
    "servers.policy": "spec.experimental.embeddingServers.policy",
    "servers.tables": "spec.experimental.embeddingServers.tables",
    "servers.lookahead": "spec.experimental.embeddingServers.lookahead",
    "topology.host_memory": "spec.planner.hostMemoryPerNode",
    "wire": "spec.experimental.communication.embeddings",
}
"""Field of a job by the path of the request's that it decides. Those of single tables come from a constraints file."""
_PROSE = frozenset({"communication", "deduplicate", "gradients", "pipeline", "replication", "servers", "wire"})
"""Paths that are words too: they name a field only where a message begins with them, as with a field's path."""


def renamed(message: str, names: Mapping[str, str]) -> str:
    """Return a message with other names in the place of whole paths, of two that begin equally the longer one."""
    return _paths(tuple(names)).sub(lambda found: names[found[0]], message)


@cache
def _paths(names: tuple[str, ...]) -> re.Pattern[str]:
    anywhere = sorted({*names} - _PROSE, key=len, reverse=True)
    first = sorted({*names} & _PROSE)
    pattern = rf"(?<![\w.])(?:{'|'.join(map(re.escape, anywhere))})(?!\w)"
    return re.compile(pattern + (rf"|^(?:{'|'.join(first)})(?=[:.])" if first else ""))


def in_names_of_job(message: str) -> str:
    """Return a message about a request with a job's fields in place of the request's."""
    return renamed(message, JOB_FIELDS)
