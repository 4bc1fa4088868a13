"""Small sharded models and their input, for tests of the trainer. Needs torchrec."""

from collections.abc import Sequence
from typing import Any

import torch
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.tables import Optimizer, Table
from neuroshard_api.job.model import Model
from neuroshard_trainer.dense.optimizers import embedding_sharder
from neuroshard_trainer.model.dlrm import TABLES_PATH, DeduplicatedModel, RecommendationModel
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from support.trainer.trainer_builders import TABLES, job_data, plan_of
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

CPU = torch.device("cpu")
Samples = tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]
"""Dense features, lookups, and labels."""


def sharded_model(
    group: Any,
    plan: GivenPlan | None = None,
    *,
    optimizer: Optimizer = Optimizer.SGD,
    learning_rate: float = 0.1,
    repeating: Sequence[Sequence[str]] = (),
) -> DistributedModelParallel:
    """Return a small model under a plan, by default whole tables on one rank, for all lists.

    With groups of features that are ``repeating``, for batches without their repeated lists.
    """
    settings = validated(Model, job_data()["spec"]["model"], where="spec.model")
    tables = TABLES if plan is None else plan.request.tables.tables
    return DistributedModelParallel(
        DeduplicatedModel(settings, tables, repeating) if repeating else RecommendationModel(settings, tables),
        env=ShardingEnv.from_process_group(group),
        device=CPU,
        plan=sharding_plan(plan_of() if plan is None else plan, module_path=TABLES_PATH, compute_device="cpu"),
        sharders=[embedding_sharder(optimizer, learning_rate=learning_rate, device=CPU)],
    )


def lookups_of_zero(samples: int, tables: Sequence[Table] = TABLES) -> KeyedJaggedTensor:
    """Return one lookup of each table's first row for each sample."""
    return KeyedJaggedTensor(
        keys=[table.name for table in tables],
        values=torch.zeros(samples * len(tables), dtype=torch.int64),
        lengths=torch.ones(samples * len(tables), dtype=torch.int32),
    )


def random_samples(seed: int, count: int, tables: Sequence[Table]) -> Samples:
    """Return samples with up to three lookups of each table."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(4, (len(tables), count), generator=generator)
    values = [
        torch.randint(table.num_embeddings, (int(total),), generator=generator)
        for table, total in zip(tables, lengths.sum(dim=1), strict=True)
    ]
    lookups = KeyedJaggedTensor(
        keys=[table.name for table in tables], values=torch.cat(values), lengths=lengths.flatten()
    )
    labels = torch.randint(2, (count,), generator=generator).float()
    return torch.randn(count, 3, generator=generator), lookups, labels
