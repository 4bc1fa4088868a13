"""Names of a request's settings in messages: those of the job that the user wrote, where the request was made of one.

A request is a translation of a job, or of tables with ``--set``. Messages of the planner name the request's fields;
a user who wrote `spec.planner.maxMemoryPerDevice` has no field `constraints.max_memory_bytes_per_device`.
"""

import re
from collections.abc import Mapping

JOB_FIELDS: Mapping[str, str] = {
    "batch_size_per_device": "spec.model.batchSizePerDevice",
    "constraints.compute_kernels": "spec.planner.hostMemoryPerNode",
    "constraints.data_types": "spec.planner.dataTypes",
    "constraints.max_memory_bytes_per_device": "spec.planner.maxMemoryPerDevice",
    "constraints.max_shard_width": "spec.experimental.planner.maxShardWidth",
    "constraints.sharding_types": "spec.planner.shardingTypes",
    "dense_choices.policy": "spec.training.denseParallelism.policy",
    "memory.dense_bytes": "spec.experimental.planner.denseMemoryPerDevice",
    "replication": "spec.planner.shardingGroups",
    "replication.group_sizes": "spec.planner.shardingGroups.sizes",
    "replication.sync_every_steps": "spec.experimental.planner.syncEverySteps",
    "search.seed": "spec.experimental.planner.seed",
    "search.work_budget": "spec.experimental.planner.workBudget",
    "topology.host_memory": "spec.planner.hostMemoryPerNode",
    "wire": "spec.experimental.communication.embeddings",
}
"""Field of a job by the path of the request's that it decides. Those of single tables come from a constraints file."""
_PROSE = frozenset({"replication", "wire"})
"""Paths that are words too: they name a field only where a message begins with them, as with a field's path."""
_PATH = re.compile(
    rf"(?<![\w.])(?:{'|'.join(map(re.escape, sorted(JOB_FIELDS.keys() - _PROSE, key=len, reverse=True)))})(?![\w])"
    rf"|^(?:{'|'.join(sorted(_PROSE))})(?=[:.])"
)


def in_names_of_job(message: str) -> str:
    """Return a message about a request with a job's fields in place of the request's."""
    return _PATH.sub(lambda found: JOB_FIELDS[found[0]], message)
