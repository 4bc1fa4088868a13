"""One of several ranks: a trainer of the user's own, whose attention and tower over user features run once per list.

The group's tables are a collection of their own, which is given distinct lists. What the tower makes of them is
expanded.

Argument: folder, unused. Exits with an error where a loss or a weight differs from training on all lists.
"""

import logging
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm
from neuroshard_api.documents.request import PlanRequest
from neuroshard_trainer import Expansion, repeated, sharding_plan
from neuroshard_trainer.data.samples import Jagged
from neuroshard_trainer.model.dlrm import bag_collection
from neuroshard_trainer.model.grouped_model import TableCollections
from neuroshard_trainer.model.initial_weights import set_initial_weights
from support import builders
from support.planner.placements import by_columns, given_plan
from support.trainer.bags import local_weights
from support.trainer.rank_server import joined_ranks
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLES, STEPS, COLUMNS, PROFILE = 16, 20, 8, 6
USER, ITEM = ("age", "seen", "bought"), "item"
TABLES = tuple(builders.table(name, num_embeddings=40, embedding_dim=COLUMNS) for name in (*USER, ITEM))


class Ranking(nn.Module):
    """Attention among the user's features and a tower on distinct users, and a product with the item."""

    def __init__(self, collections: TableCollections) -> None:
        super().__init__()
        self.tables = nn.ModuleList(bag_collection(each) for each in collections.all)
        self.attention = nn.MultiheadAttention(COLUMNS, num_heads=2, batch_first=True)
        self.tower = nn.Sequential(nn.Linear(COLUMNS * len(USER), PROFILE), nn.ReLU(), nn.Linear(PROFILE, COLUMNS))
        self.expansion = Expansion(["profile"], [["profile"]])

    def forward(self, lookups: Sequence[KeyedJaggedTensor], first_samples: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape (samples,), from the lists of items, and the distinct lists of users."""
        item, user = (tables(own).to_dict() for tables, own in zip(self.tables, lookups, strict=True))
        features = torch.stack([user[name] for name in USER], dim=1)
        attended, _ = self.attention(features, features, features, need_weights=False)
        profile = self.expansion({"profile": self.tower(attended.flatten(1))}, first_samples)["profile"]
        logits: torch.Tensor = (profile * item[ITEM]).sum(dim=1)
        return logits


def plan_of() -> GivenPlan:
    """Return a plan with the user's tables in a collection of their own."""
    devices = builders.topology(dist.get_world_size())
    placements = [by_columns(table, (number % devices.num_devices, COLUMNS)) for number, table in enumerate(TABLES)]
    plan = given_plan(PlanRequest(tables=builders.table_set(*TABLES), topology=devices), *placements)
    group = DeduplicatedGroup(group="user", features=USER, form=DeduplicationForm.GROUPED, factor=2.0)
    return plan.model_copy(update={"deduplication": (group,)})


def trained(*, repeats_left_out: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """Return the losses, the weights of this rank, and the users that its tower has seen."""
    plan = plan_of()
    collections = TableCollections.of(plan)
    torch.manual_seed(0)
    world = dist.group.WORLD
    assert world is not None
    model = DistributedModelParallel(
        Ranking(collections),
        env=ShardingEnv.from_process_group(world),
        device=torch.device("cpu"),
        plan=collections.divided(sharding_plan(plan, module_path="tables", compute_device="cpu")),
        sharders=[
            EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.1})
        ],
    )
    set_initial_weights(model, seed=0)
    dense = [weight for name, weight in model.named_parameters() if not name.startswith("tables.")]
    optimizer = torch.optim.SGD(dense, lr=0.1)
    losses, num_users = [], 0
    for step in range(STEPS):
        lookups, first_samples, labels = batch(step, repeats_left_out=repeats_left_out)
        num_users += lookups[1].stride()
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(lookups, first_samples), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), local_weights(model), num_users


def batch(step: int, *, repeats_left_out: bool) -> tuple[list[KeyedJaggedTensor], torch.Tensor, torch.Tensor]:
    """Return a batch of this rank: each rank has other repeats, and some steps have one user or no repeat at all."""
    rng = np.random.default_rng((step, dist.get_rank()))
    chance = {0: 0.0, 1: 1.0}.get(step % 5, 0.2 + 0.2 * dist.get_rank())  # of another user
    version = np.cumsum(rng.random(SAMPLES) < chance) % SAMPLES
    lists = {}
    for name in (*USER, ITEM):
        lengths = rng.integers(0, 4, size=SAMPLES)
        drawn = Jagged.of_lengths(rng.integers(0, 40, size=int(lengths.sum())), lengths)
        lists[name] = drawn if name == ITEM else drawn.take(version)
    repeats = repeated([lists[name] for name in USER]) if repeats_left_out else np.zeros(SAMPLES, dtype=np.bool_)
    distinct = [lists[name].take(np.flatnonzero(~repeats)) for name in USER]
    labels = torch.from_numpy(rng.integers(0, 2, size=SAMPLES).astype(np.float32))
    first_samples = torch.from_numpy(np.cumsum(~repeats) - 1)[None]
    return [jagged([ITEM], [lists[ITEM]]), jagged(USER, distinct)], first_samples, labels


def jagged(keys: Sequence[str], lists: Sequence[Jagged]) -> KeyedJaggedTensor:
    """Return lists as TorchRec takes them."""
    return KeyedJaggedTensor(
        keys=list(keys),
        values=torch.from_numpy(np.concatenate([each.values for each in lists])),
        lengths=torch.from_numpy(np.concatenate([each.lengths for each in lists])),
    )


def main(_folder: str) -> None:
    """Check losses and weights, and that the tower had fewer users."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        expected, weights, num_samples = trained(repeats_left_out=False)
        losses, found, num_users = trained(repeats_left_out=True)
        assert num_samples == STEPS * SAMPLES
        assert num_users < num_samples / 2
        torch.testing.assert_close(losses, expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(found, weights, rtol=0, atol=1e-6)
