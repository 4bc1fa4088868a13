"""One of several ranks: a script that compares training under two plans in turns."""

import itertools
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from neuroshard_torchrec import DropInError, NeuroShardPlanner, compare_training
from support.dropin.dropin_models import TwoTowers, batch
from support.trainer.rank_server import joined_ranks
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.optimizers import in_backward_optimizer_filter

CPU = torch.device("cpu")
SHARDERS = [EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.1})]


def main(result: str) -> None:
    """Compare two plans, and write the result."""
    logging.disable(logging.WARNING)
    with pytest.raises(DropInError, match="there is no process group"):
        compare_training({}, make)
    with joined_ranks():
        plans = {"ours": planned(), "cut": planned(tags=ParameterConstraints(min_partition=16, pooling_factors=[2e3]))}
        found = compare_training({**plans, "copied": with_copies_of("tags")}, make, rounds=3, steps=2)
        if dist.get_rank() == 0:
            Path(result).write_text(found.to_json())
        with pytest.raises(DropInError, match="a comparison needs 2 plans, 2 rounds, and 1 step, found 1, 3, 2"):
            compare_training({"ours": plans["ours"]}, make, rounds=3, steps=2)
        with pytest.raises(
            DropInError, match="rank 1 and rank 0 differ in compare_training's plans, rounds, and steps"
        ):
            compare_training(plans, make, rounds=3 + dist.get_rank(), steps=2)
        with pytest.raises(DropInError, match="rank 1: RuntimeError: no memory"):
            compare_training(plans, fail_on_rank_1, rounds=3, steps=2)


def fail_on_rank_1(plan: ShardingPlan) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return a model where rank 1 cannot make its step."""
    made = make(plan)
    if dist.get_rank() == 1:
        raise RuntimeError("no memory")
    return made


def with_copies_of(name: str) -> ShardingPlan:
    """Return TorchRec's own plan of two towers with a data_parallel table."""
    copied = ParameterConstraints(sharding_types=["data_parallel"], compute_kernels=["dense"])
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device="cpu"), constraints={name: copied}
    )
    return planner.collective_plan(TwoTowers(), SHARDERS, dist.group.WORLD)


def planned(**limits: ParameterConstraints) -> ShardingPlan:
    """Return a plan of two towers."""
    topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
    planner = NeuroShardPlanner(topology, 4096, device_type="h100-80gb", constraints=limits)
    return planner.collective_plan(TwoTowers(), SHARDERS)


def make(plan: ShardingPlan) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return a model under a plan, and a step of it."""
    model = DistributedModelParallel(TwoTowers(CPU), device=CPU, plan=plan, sharders=SHARDERS)
    dense = torch.optim.SGD(dict(in_backward_optimizer_filter(model.named_parameters())).values(), lr=0.1)
    seeds = itertools.count(dist.get_rank(), dist.get_world_size())

    def step() -> torch.Tensor:
        seed = next(seeds)
        users = batch({"id_id": 2, "country_id": 3}, samples=8, seed=seed)
        items = batch({"item": 1, "last_item": 2, "tags_id": 4}, samples=8, seed=seed)
        loss: torch.Tensor = (model(users, items) - 1).square().mean()
        dense.zero_grad()
        torch.autograd.backward(loss)
        dense.step()
        return loss

    return model, step
