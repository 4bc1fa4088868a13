"""The script of one_line.py, trained under several plans in turns: one process of what the command starts.

    neuroshard plan one_line:Model --devices 2 --device-type h100-80gb \
        --set spec.model.embeddingOptimizer=SGD --out ours.json
    neuroshard plan one_line:Model --devices 2 --device-type h100-80gb \
        --set spec.model.embeddingOptimizer=SGD --set spec.planner.algorithm=DimGreedy --out greedy.json
    neuroshard compare-training compare_plans.py greedy.json ours.json --rounds 20 --out rounds.svg

The plans are for two H100; the training here is on the CPU.
"""  # noqa: INP001 - a script, not a package

import itertools
from collections.abc import Callable

import torch
import torch.distributed as dist
from neuroshard_torchrec import compare_given_plans
from one_line import Model, random_batch  # type: ignore[import-not-found] # the script next to this one
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingPlan

SHARDERS = [EmbeddingBagCollectionSharder(fused_params={"learning_rate": 0.1})]


def make(plan: ShardingPlan) -> tuple[torch.nn.Module, Callable[[], torch.Tensor]]:
    """Return the model under a plan, and a function that trains it on the next batch and returns the loss."""
    model = Model()
    sharded = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=SHARDERS)
    dense = torch.optim.SGD(model.dense.parameters(), lr=0.1)
    seeds = itertools.count(dist.get_rank(), dist.get_world_size())  # the n-th batch is the same under every plan

    def step() -> torch.Tensor:
        dense.zero_grad()
        logits = sharded(random_batch(seed=next(seeds)))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.ones_like(logits))
        loss.backward()  # type: ignore[no-untyped-call] # torch's
        dense.step()
        return loss

    return sharded, step


def main() -> None:
    """Train under the plans of the command."""
    dist.init_process_group("gloo")  # nccl on GPUs
    compare_given_plans(make, Model(), SHARDERS)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
