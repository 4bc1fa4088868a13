"""Builders for tests of the trainer: small jobs and plans as files, and a process group of one."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import Shard, TablePlacement
from neuroshard_api.documents.tables import Table
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.data.samples import Jagged, Samples
from support import builders

TABLES = (
    builders.table("user", num_embeddings=60, embedding_dim=32, pooling_factor=2.5),
    builders.table("item", num_embeddings=50, embedding_dim=32),
    builders.table("country", num_embeddings=7, embedding_dim=16),
)
Cuts = Mapping[str, Sequence[tuple[int, int]]]
"""For each table its column shards (device, columns), one behind the other."""


def placement(table: Table, shards: Sequence[tuple[int, int]]) -> TablePlacement:
    """Return a table in column shards (device, columns), one behind the other."""
    offsets = [sum(width for _, width in shards[:position]) for position in range(len(shards))]
    return TablePlacement(
        name=table.name,
        sharding_type=ShardingType.COLUMN_WISE if len(shards) > 1 else ShardingType.TABLE_WISE,
        shards=tuple(
            Shard(device=device, num_rows=table.num_embeddings, column_offset=offset, num_columns=width)
            for (device, width), offset in zip(shards, offsets, strict=True)
        ),
    )


def plan_of(cuts: Cuts | None = None, *, tables: Sequence[Table] = TABLES, world_size: int = 1, **fields: Any) -> Plan:
    """Return a plan with these cuts; tables that are not named are whole, on the devices in turn."""
    cuts = cuts or {}
    request = builders.request(*tables, num_devices=world_size, **fields)
    return builders.plan(
        request,
        tables=tuple(
            placement(table, cuts.get(table.name, ((index % world_size, table.embedding_dim),)))
            for index, table in enumerate(tables)
        ),
    )


def job_data(*, tables: Sequence[Table] = TABLES, world_size: int = 1, **spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a small job as plain data; keyword arguments add keys to the parts of its spec."""
    defaults: dict[str, dict[str, Any]] = {
        "model": {
            "embeddingTables": [
                {
                    "name": table.name,
                    "numEmbeddings": table.num_embeddings,
                    "embeddingDim": table.embedding_dim,
                    "poolingFactor": str(table.pooling_factor),
                    **({"pooling": table.pooling.value} if table.pooling else {}),
                    **({"idRule": table.id_rule.value} if table.id_rule else {}),
                }
                for table in tables
            ],
            "batchSizePerDevice": 16,
            "numDenseFeatures": 3,
            "denseArchLayerSizes": [8],
            "overArchLayerSizes": [8],
        },
        "trainer": {"numProcPerNode": world_size},
        "experimental": {"rendezvous": {"timeoutSeconds": 60}, "data": {"readerProcesses": 0}},
        "data": {"format": "Synthetic", "numSamples": 400},
        "training": {"logEverySteps": 5},
    }
    return {
        "apiVersion": "training.neuroshard.dev/v1alpha1",
        "kind": "DLRMTrainingJob",
        "metadata": {"name": "test"},
        "spec": {
            part: _merged(defaults.get(part, {}), spec.get(part, {})) for part in dict.fromkeys((*defaults, *spec))
        },
    }


def _merged(usual: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields over usual ones, and the fields of the usual readers below those of the data."""
    readers = {"data": {**usual["data"], **given.get("data", {})}} if isinstance(usual.get("data"), Mapping) else {}
    return {**usual, **given, **readers}


def write_job(folder: Path, job: Mapping[str, Any]) -> Path:
    """Write a job file and return its path."""
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(dict(job)))
    return file


def write_plan(folder: Path, plan: GivenPlan, name: str = "plan.json") -> Path:
    """Write a plan file and return its path."""
    file = folder / name
    file.write_text(plan.to_json())
    return file


def samples(count: int, features: Sequence[str], *, num_rows: int = 7, seed: int = 0) -> Samples:
    """Return random samples with 0 to 3 lookups of each feature."""
    rng = np.random.default_rng(seed)
    lookups = {}
    for feature in features:
        lengths = rng.integers(0, 4, size=count)
        lookups[feature] = Jagged.of_lengths(rng.integers(0, num_rows, size=int(lengths.sum())), lengths)
    return Samples(
        labels=rng.integers(0, 2, size=count).astype(np.float32),
        dense=rng.normal(size=(count, 3)).astype(np.float32),
        lookups=lookups,
    )


ALONE = {
    "RANK": "0",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "1",
    "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "0",
}
"""What torchrun tells the only process of a training. The store takes any free port, since nobody else looks for it."""


@contextmanager
def process_group_of_one() -> Iterator[Any]:
    """Make this process a group of one, as torchrun makes many; yields the group."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import FileStore

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", store=FileStore(f"{folder}/store", 1), rank=0, world_size=1)
        try:
            yield dist.group.WORLD
        finally:
            dist.destroy_process_group()
