"""One of two ranks: trains an EmbeddingCollection on all sequences, and on those without repeats.

Sequences are pooled before they are expanded.

Argument: folder, unused. Exits with an error where a loss or a weight differs.
"""

import logging

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Pooling
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import collated
from neuroshard_trainer.data.deduplication import WithoutRepeats
from neuroshard_trainer.data.samples import Jagged, Samples, features_of
from neuroshard_trainer.model.expansion import Expansion
from neuroshard_trainer.model.initial_weights import set_initial_weights
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from support import builders
from support.planner.placements import by_columns, by_rows, given_plan
from support.trainer.bags import local_weights
from support.trainer.rank_server import joined_ranks
from torch import nn
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

CPU = torch.device("cpu")
SAMPLES, STEPS, COLUMNS = 16, 20, 8
TABLES = tuple(
    builders.table(name, num_embeddings=40, embedding_dim=COLUMNS, pooling=Pooling.NONE) for name in ("seen", "bought")
)
NAMES = [table.name for table in TABLES]


class Attention(nn.Module):
    """Pools each sequence by learned weights, and copies the results to the samples that repeat it."""

    def __init__(self) -> None:
        super().__init__()
        configs = [
            EmbeddingConfig(
                name=table.name, num_embeddings=table.num_embeddings, embedding_dim=COLUMNS, feature_names=[table.name]
            )
            for table in TABLES
        ]
        self.sequences = EmbeddingCollection(tables=configs, device=torch.device("meta"))
        self.query = nn.Linear(COLUMNS, 1)
        self.expansion = Expansion(NAMES, [NAMES])
        self.last = nn.Linear(COLUMNS * len(NAMES), 1)

    def forward(self, lookups: KeyedJaggedTensor, first_samples: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape (samples,)."""
        found = self.sequences(lookups)
        pooled = self.expansion({name: self._pooled(found[name]) for name in NAMES}, first_samples)
        logits: torch.Tensor = self.last(torch.cat([pooled[name] for name in NAMES], dim=1))
        return logits.squeeze(1)

    def _pooled(self, sequences: JaggedTensor) -> torch.Tensor:
        lengths = sequences.lengths()
        owners = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
        weights = torch.exp(self.query(sequences.values()))
        zeros = sequences.values().new_zeros(len(lengths), COLUMNS)
        sums = zeros.index_add(0, owners, weights * sequences.values())
        pooled: torch.Tensor = sums / (1e-9 + zeros[:, :1].index_add(0, owners, weights))
        return pooled


def trained(family: ShardingType, *, repeats_left_out: bool) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return the losses and the weights of this rank after training on the same samples."""
    devices = builders.topology(2)
    placements: list[TablePlacement] = [
        by_rows(table, devices) if family is ShardingType.ROW_WISE else by_columns(table, (number, COLUMNS))
        for number, table in enumerate(TABLES)
    ]
    plan = given_plan(PlanRequest(tables=builders.table_set(*TABLES), topology=devices), *placements)
    torch.manual_seed(0)
    world = dist.group.WORLD
    assert world is not None
    model = DistributedModelParallel(
        Attention(),
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=sharding_plan(plan, module_path="sequences", compute_device="cpu"),
        sharders=[EmbeddingCollectionSharder(fused_params={"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": 0.1})],
    )
    set_initial_weights(model, seed=0)
    dense = [weight for name, weight in model.named_parameters() if not name.startswith("sequences.")]
    optimizer = torch.optim.SGD(dense, lr=0.1)
    losses = []
    begun = {name: weight for name, weight in local_weights(model).items() if name.startswith("sequences.")}
    for step in range(STEPS):
        each = batch(step, repeats_left_out=repeats_left_out)
        positions = torch.arange(SAMPLES).expand(1, -1) if each.first_samples is None else each.first_samples
        optimizer.zero_grad()
        logits = model(each.lookups, positions)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, each.labels)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    weights = local_weights(model)
    assert begun, "each rank has a shard"
    assert all(not torch.equal(weights[name], first) for name, first in begun.items()), "every shard is trained"
    return losses, weights


def batch(step: int, *, repeats_left_out: bool) -> Batch:
    """Return a batch of this rank: each rank has other repeats, empty sequences among them."""
    rng = np.random.default_rng((step, dist.get_rank()))
    chance = {0: 0.0, 1: 1.0}.get(step % 5, 0.1 + 0.3 * dist.get_rank())  # of new sequences
    version = np.cumsum(rng.random(SAMPLES) < chance) % SAMPLES
    features = features_of(TABLES)
    lookups = {}
    for feature in features:
        lengths = rng.integers(0, 5, size=SAMPLES)
        rows = rng.integers(0, feature.table.num_embeddings, size=int(lengths.sum()))
        lookups[feature.name] = Jagged.of_lengths(rows, lengths).take(version)
    samples = Samples(
        labels=rng.integers(0, 2, size=SAMPLES).astype(np.float32),
        dense=np.zeros((SAMPLES, 1), dtype=np.float32),
        lookups=lookups,
    )
    keys = [feature.name for feature in features]
    collate = WithoutRepeats(groups=(tuple(range(len(keys))),)) if repeats_left_out else collated
    return Batch.of(collate([samples], features), keys)


def main(_folder: str) -> None:
    """Check whole tables and tables by rows."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        for family in (ShardingType.TABLE_WISE, ShardingType.ROW_WISE):
            expected, weights = trained(family, repeats_left_out=False)
            losses, found = trained(family, repeats_left_out=True)
            torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=0, atol=1e-6)
            torch.testing.assert_close(found, weights, rtol=0, atol=1e-6)
