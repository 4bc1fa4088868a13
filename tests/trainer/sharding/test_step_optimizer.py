"""What a step does to the tables: data_parallel ones learn as fused ones do, in as many steps as there are."""

import pytest
import torch
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.model import Model
from neuroshard_api.job.training import Training
from neuroshard_trainer.dense.optimizers import dense_optimizer, embedding_sharder, replicated_optimizer
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from support import builders
from support.planner.placements import by_columns, everywhere, given_plan
from support.trainer.trainer_builders import TABLES, job_data
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

CPU = torch.device("cpu")
TRAINING = Training()
SAMPLES = 16
STEPS = 4


def batch(seed: int) -> tuple[torch.Tensor, KeyedJaggedTensor, torch.Tensor]:
    """Return dense features, lookups of two rows in every bag, and labels."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(table.num_embeddings, (2 * SAMPLES,), generator=generator) for table in TABLES]
    lookups = KeyedJaggedTensor(
        keys=[table.name for table in TABLES],
        values=torch.cat(rows),
        lengths=torch.full((len(TABLES) * SAMPLES,), 2),
    )
    labels = torch.randint(2, (SAMPLES,), generator=generator).float()
    return torch.rand(SAMPLES, 3, generator=generator), lookups, labels


def trained(optimizer: Optimizer, group: torch.distributed.ProcessGroup, *, replicated: bool) -> list[torch.Tensor]:
    """Return the tables' weights after the steps, data_parallel or whole on the one rank."""
    topology = builders.topology(1)
    request = PlanRequest(tables=builders.table_set(*TABLES), topology=topology, optimizer=optimizer)
    placements = [
        everywhere(table, topology) if replicated else by_columns(table, (0, table.embedding_dim)) for table in TABLES
    ]
    rate = float(TRAINING.embedding_learning_rate)
    model = DistributedModelParallel(
        RecommendationModel(validated(Model, job_data()["spec"]["model"], where="spec.model"), TABLES),
        env=ShardingEnv.from_process_group(group),
        device=CPU,
        plan=sharding_plan(given_plan(request, *placements), module_path=TABLES_PATH, compute_device="cpu"),
        sharders=[embedding_sharder(optimizer, learning_rate=rate, device=CPU)],
    )
    tables: list[torch.Tensor] = []
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            values = torch.Generator().manual_seed(len(name))
            weight.copy_(torch.randn(weight.shape, generator=values) * 0.3)
            if name.startswith(f"{TABLES_PATH}."):
                tables.append(weight)
    steps = StepOptimizer(
        model,
        dense_optimizer(model, TRAINING, tables_path=TABLES_PATH),
        replicated_optimizer(model, optimizer, learning_rate=rate),
        TRAINING,
        step=0,
    )
    for step in range(STEPS):
        dense, lookups, labels = batch(step)
        steps.zero_grad()
        logits = model(dense, lookups)
        torch.autograd.backward(nn.functional.binary_cross_entropy_with_logits(logits, labels))
        steps.step()
    assert len(tables) == len(TABLES)
    return [weight.detach().clone() for weight in tables]


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD])
def test_data_parallel_tables_learn_as_fused_ones_at_a_constant_rate(
    optimizer: Optimizer, group: torch.distributed.ProcessGroup
) -> None:
    """No step sees the gradients of an earlier one."""
    replicated, fused = (trained(optimizer, group, replicated=kind) for kind in (True, False))

    for found, expected in zip(replicated, fused, strict=True):
        assert (found - expected).abs().max() < 1e-6
