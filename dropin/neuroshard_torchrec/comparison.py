"""Plans of a script of the user's own, trained in turns: the script makes a model for each plan, and a step of it."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from neuroshard_api.documents.training_comparison import TrainingComparison
from neuroshard_trainer.compare.comparison import Contestant, compare_contestants
from neuroshard_trainer.dense.optimizers import replicated_weights
from neuroshard_trainer.model.initial_weights import set_initial_weights
from torch import nn
from torchrec.distributed.embedding import ShardedEmbeddingCollection
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingPlan

from neuroshard_torchrec.agreement import require_equal
from neuroshard_torchrec.deadline import finish_together
from neuroshard_torchrec.errors import DropInError

Make = Callable[[ShardingPlan], tuple[nn.Module, Callable[[], torch.Tensor]]]
"""Makes a model under a plan, and a function that trains it on the next batch and returns the loss."""

MAKE_SECONDS = 600.0
"""Large tables are allocated and filled in a fraction of it."""


def compare_training(
    plans: Mapping[str, ShardingPlan],
    make: Make,
    *,
    rounds: int = 10,
    steps: int = 10,
    seed: int = 0,
    device: torch.device | None = None,
    make_seconds: float = MAKE_SECONDS,
) -> TrainingComparison:
    """Train a script's model under several plans in turns, from equal weights. All ranks must call this.

    The models of all plans are on the devices at once. The embedding part is timed where all tables are sharded bags
    and none is data_parallel: the script itself updates those.

    Args:
        plans: by the name that the result calls them; the first is what the others are compared with.
        make: called once for each plan, with the random generators of torch seeded alike; its n-th batch is to be the
            same under every plan.
        rounds: that count, at least 2; one more comes before them.
        steps: of each round under each plan.
        seed: of what `make` draws.
        device: that this rank computes on. None: its GPU, else the CPU.
        make_seconds: within which each `make` has to return on every rank.

    Raises:
        DropInError: there are too few plans, rounds, or steps, or no process group, or, on every rank, `make` or a step
            fails on one, `make` takes too long, or ranks differ in these arguments. A rank that waits in a collective
            for one that failed ends with exit code 7 and the sentence on stderr.
    """
    if not dist.is_initialized():
        raise DropInError("compare_training: there is no process group; hint: start the script with torchrun")
    world = cast(dist.ProcessGroup, dist.GroupMember.WORLD)
    require_equal((tuple(plans), rounds, steps), what="compare_training's plans, rounds, and steps", pg=world)
    contestants = {
        name: finish_together(
            partial(_contestant, plan, make, seed=seed), what=f"make of plan {name!r}", limit_seconds=make_seconds
        )
        for name, plan in plans.items()
    }
    own = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    compare = partial(compare_contestants, contestants, rounds=rounds, steps_per_round=steps, device=device or own)
    return finish_together(compare, what="compare_training", limit_seconds=None)


def _contestant(plan: ShardingPlan, make: Make, *, seed: int) -> Contestant:
    """Return a model and its step with equal weights. The model is timed where hooks see all of its tables' work."""
    torch.manual_seed(seed)
    model, step = make(plan)
    set_initial_weights(model, seed=seed)
    kinds = [type(each) for each in model.modules()]
    has_bags = any(issubclass(each, ShardedEmbeddingBagCollection) for each in kinds)
    has_sequences = any(issubclass(each, ShardedEmbeddingCollection) for each in kinds)
    is_timed = has_bags and not has_sequences and not replicated_weights(model)
    return Contestant(step, model if is_timed else None)
