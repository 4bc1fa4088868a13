"""Plans of a script of the user's own, trained in turns: the script makes a model for each plan, and a step of it."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from neuroshard_api.training_comparison import TrainingComparison
from neuroshard_trainer.comparison import Contestant, compare_contestants
from neuroshard_trainer.equal_weights import set_equal_weights
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingPlan

from neuroshard_torchrec.errors import DropInError

Make = Callable[[ShardingPlan], tuple[nn.Module, Callable[[], torch.Tensor]]]
"""Returns a model under a plan, and a function that trains it on the next batch and returns the loss."""


def compare_training(
    plans: Mapping[str, ShardingPlan],
    make: Make,
    *,
    rounds: int = 10,
    steps: int = 10,
    seed: int = 0,
    device: torch.device | None = None,
) -> TrainingComparison:
    """Train a script's model under several plans in turns, from equal weights. All ranks must call this.

    Args:
        plans: by the name that the result calls them; the first is what the others are compared with.
        make: called once for each plan, with the random generators of torch seeded alike; its n-th batch is to be the
            same under every plan.
        rounds: that count, at least 2; one more comes before them.
        steps: of each round under each plan.
        seed: of what `make` draws.
        device: that this rank computes on. None: its GPU, else the CPU.

    Raises:
        DropInError: there are too few plans, rounds, or steps, or no process group.
    """
    if not dist.is_initialized():
        raise DropInError("compare_training: there is no process group; start the script with torchrun")
    contestants = {}
    for name, plan in plans.items():
        torch.manual_seed(seed)
        model, step = make(plan)
        set_equal_weights(model)
        is_timed = any(isinstance(each, ShardedEmbeddingBagCollection) for each in model.modules())
        contestants[name] = Contestant(step, model if is_timed else None)
    own = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        return compare_contestants(contestants, rounds=rounds, steps_per_round=steps, device=device or own)
    except ValueError as error:
        raise DropInError(f"compare_training: {error}") from error
