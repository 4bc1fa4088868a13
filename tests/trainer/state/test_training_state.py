"""Row-wise optimizer state under another cut of its table."""

from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.model import Model
from neuroshard_api.job.training import Training
from neuroshard_trainer.dense.optimizers import dense_optimizer, embedding_sharder
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from neuroshard_trainer.state.checkpoint import CheckpointFolder, CheckpointManifest
from neuroshard_trainer.state.training_state import TrainingState, widths_of
from support.trainer.trainer_builders import TABLES, Cuts, job_data, plan_of
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

CPU = torch.device("cpu")


def state_under(cuts: Cuts, group: Any) -> TrainingState:
    """Return the state of a fresh model under a plan with these cuts, all on one rank."""
    plan = plan_of(cuts)
    model = DistributedModelParallel(
        RecommendationModel(validated(Model, job_data()["spec"]["model"], where="spec.model"), TABLES),
        env=ShardingEnv.from_process_group(group),
        device=CPU,
        plan=sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu"),
        sharders=[embedding_sharder(Optimizer.ROWWISE_ADAGRAD, learning_rate=0.1, device=CPU)],
    )
    optimizer = dense_optimizer(model, Training(), tables_path=TABLES_PATH)
    return TrainingState(
        model=model,
        dense_optimizer=optimizer,
        replicated_optimizer=None,
        widths=widths_of(prove_sharding(model, plan, group)),
    )


def shards(state: TrainingState, part: str, table: str = "user") -> list[torch.Tensor]:
    """Return the table's weights, or its row-wise state, shard by shard."""
    key = f"{TABLES_PATH}.embedding_bags.{table}.weight"
    tensors: Any = state.tensors()
    tensor = tensors["model"][key] if part == "weight" else tensors["tables_optimizer"][key][f"{table}.{part}"]
    return [shard.tensor for shard in tensor.local_shards()]


def test_a_new_shard_begins_with_the_weighted_mean_of_the_old(tmp_path: Path, group: Any) -> None:
    """Columns 0 to 12, 12 to 32 become 0 to 8, 8 to 16, 16 to 32; weights move exactly, other tables not at all."""
    old = state_under({"user": ((0, 12), (0, 20))}, group)
    old.dense_optimizer.init_state()  # as after a step
    for value, shard in zip((1.0, 5.0), shards(old, "momentum1"), strict=True):
        shard.copy_(value + torch.arange(60.0))
    for column, shard in zip((0, 12), shards(old, "weight"), strict=True):
        shard.copy_(torch.arange(column, column + shard.shape[1]).float().expand_as(shard))
    shards(old, "momentum1", "item")[0].fill_(9.0)
    checkpoints = CheckpointFolder(tmp_path, keep=1, group=group)
    manifest = CheckpointManifest(
        step=1, position=16, world_size=1, plan_sha256="0" * 64, table_widths=dict(old.widths), signature={}
    )
    folder = checkpoints.save(old.tensors(), manifest)

    new = state_under({"user": ((0, 8), (0, 8), (0, 16))}, group)
    new.load(checkpoints, folder, manifest.table_widths)

    means = [shard - torch.arange(60.0) for shard in shards(new, "momentum1")]
    assert [set(mean.tolist()) for mean in means] == [{1.0}, {3.0}, {5.0}]  # 4 columns of 1 and 4 of 5 are 3
    assert [shard[7].tolist() for shard in shards(new, "weight")] == [
        list(range(8)),
        list(range(8, 16)),
        list(range(16, 32)),
    ]
    assert set(shards(new, "momentum1", "item")[0].tolist()) == {9.0}


@pytest.mark.parametrize("old_moment_scale", [1, 4])
def test_sums_of_groups_become_those_of_one_model(tmp_path: Path, group: Any, old_moment_scale: int) -> None:
    """Squares of gradients that four groups summed up are four times one model's; weights stay as they are."""
    old = state_under({"user": ((0, 32),)}, group)
    old.dense_optimizer.init_state()  # as after a step
    shards(old, "momentum1")[0].fill_(8.0)
    shards(old, "weight")[0].fill_(3.0)
    checkpoints = CheckpointFolder(tmp_path, keep=1, group=group)
    manifest = CheckpointManifest(
        step=1, position=16, world_size=1, plan_sha256="0" * 64, table_widths=dict(old.widths), signature={}
    )
    folder = checkpoints.save(old.tensors(), manifest)

    new = state_under({"user": ((0, 8), (0, 24))}, group)
    new.load(checkpoints, folder, manifest.table_widths, old_moment_scale=old_moment_scale)

    assert {value for shard in shards(new, "momentum1") for value in shard.tolist()} == {8.0 / old_moment_scale}
    assert {value for shard in shards(new, "weight") for value in shard.flatten().tolist()} == {3.0}
