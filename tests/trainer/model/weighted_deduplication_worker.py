"""One of two ranks: trains weighted bags on all lists, and in both forms without repeats.

A list repeats where its ids and its weights equal those of the sample before. Under row-wise Adagrad, which divides
gradients by their size and with them the rounding of their sums, each form is held against the same training in FP64.
Argument: folder, unused. Exits with an error where a loss or a weight differs.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Pooling, Table
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.data.repeats import repeated
from neuroshard_trainer.data.samples import Jagged
from neuroshard_trainer.dense.optimizers import EPSILON
from neuroshard_trainer.model.dlrm import TABLES_PATH
from neuroshard_trainer.model.expansion import Expansion
from neuroshard_trainer.model.grouped_model import TableCollections
from neuroshard_trainer.model.initial_weights import set_initial_weights
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from numpy.typing import NDArray
from support import builders
from support.planner.placements import by_columns, by_rows, given_plan
from support.trainer.bags import local_weights
from support.trainer.rank_server import joined_ranks
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

CPU = torch.device("cpu")
SAMPLES, STEPS, COLUMNS = 16, 20, 8
TABLE_RATE, DENSE_RATE = 0.05, 0.1
GROUP, ITEM = ("seen", "bought"), "item"
NAMES = (*GROUP, ITEM)


@dataclass(frozen=True, slots=True)
class Weighted:
    """Lists of one feature, and the weights of their lookups."""

    ids: Jagged
    weights: Jagged
    """In quarters."""

    def kept(self, kept: NDArray[np.bool_], *, with_bags: bool) -> "Weighted":
        """Return the lists of these samples: with empty lists for the others, or without them."""
        values = np.repeat(kept, self.ids.lengths)
        lengths = np.where(kept, self.ids.lengths, 0) if with_bags else self.ids.lengths[kept]
        return Weighted(*(Jagged.of_lengths(each.values[values], lengths) for each in (self.ids, self.weights)))


class WeightedBags(nn.Module):
    """Weighted bags of one collection or several, expanded, and a linear layer."""

    def __init__(self, plan: GivenPlan) -> None:
        super().__init__()
        collections = TableCollections.of(plan)
        self.features = [tuple(table.name for table in each) for each in collections.all]
        made = [
            EmbeddingBagCollection(
                tables=[config(table) for table in each], device=torch.device("meta"), is_weighted=True
            )
            for each in collections.all
        ]
        self.tables: nn.Module = nn.ModuleList(made) if collections.groups else made[0]
        self.expansion = Expansion(NAMES, [GROUP])
        self.last = nn.Linear(COLUMNS * len(NAMES), 1)

    def forward(self, lookups: Sequence[KeyedJaggedTensor], first_samples: torch.Tensor) -> torch.Tensor:
        """Return the logits, shape (samples,)."""
        collections = list(self.tables.children()) if len(self.features) > 1 else [self.tables]
        pooled: dict[str, torch.Tensor] = {}
        for tables, own in zip(collections, lookups, strict=True):
            pooled |= tables(own).to_dict()
        expanded = self.expansion(pooled, first_samples)
        logits: torch.Tensor = self.last(torch.cat([expanded[name] for name in NAMES], dim=1))
        return logits.squeeze(1)


def config(table: Table) -> EmbeddingBagConfig:
    """Return TorchRec's settings of a table."""
    return EmbeddingBagConfig(
        name=table.name,
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        feature_names=[table.name],
        pooling=PoolingType[(table.pooling or Pooling.SUM).value],
    )


def plan_of(family: ShardingType, pooling: Pooling, form: DeduplicationForm | None) -> GivenPlan:
    """Return a plan of weighted tables in a family, in a form."""
    tables = [
        builders.table(name, num_embeddings=40, embedding_dim=COLUMNS, pooling=pooling, is_weighted=True)
        for name in NAMES
    ]
    devices = builders.topology(2)
    placements = [
        by_rows(table, devices) if family is ShardingType.ROW_WISE else by_columns(table, (number % 2, COLUMNS))
        for number, table in enumerate(tables)
    ]
    plan = given_plan(PlanRequest(tables=builders.table_set(*tables), topology=devices), *placements)
    if form is None:
        return plan
    group = DeduplicatedGroup(group=GROUP[0], features=GROUP, form=form, factor=2.0)
    return plan.model_copy(update={"deduplication": (group,)})


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Losses and weights of this rank after training on the same samples."""

    losses: torch.Tensor
    """[steps]"""
    begun: Mapping[str, torch.Tensor]
    """Weights before."""
    weights: Mapping[str, torch.Tensor]


def trained(family: ShardingType, pooling: Pooling, form: DeduplicationForm | None, optimizer: EmbOptimType) -> Trained:
    """Train on all lists or in a form."""
    plan = plan_of(family, pooling, form)
    torch.manual_seed(0)
    world = dist.group.WORLD
    assert world is not None
    whole = sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu")
    model = DistributedModelParallel(
        WeightedBags(plan),
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=TableCollections.of(plan).divided(whole),
        sharders=[
            EmbeddingBagCollectionSharder(
                fused_params={"optimizer": optimizer, "learning_rate": TABLE_RATE, "eps": EPSILON}
            )
        ],
    )
    set_initial_weights(model, seed=0)
    dense = [weight for name, weight in model.named_parameters() if not name.startswith(f"{TABLES_PATH}.")]
    optimizer = torch.optim.SGD(dense, lr=DENSE_RATE)
    begun, losses = local_weights(model), []
    for step in range(STEPS):
        lookups, first_samples, labels = batch(step, form, rank=dist.get_rank())
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(lookups, first_samples), labels)
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.detach())
    weights = local_weights(model)
    assert all(not torch.equal(weights[name], first) for name, first in begun.items()), "every shard is trained"
    return Trained(losses=torch.stack(losses), begun=begun, weights=weights)


def exact(begun: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return the tables after training on all lists of both ranks by row-wise Adagrad in FP64, unsharded, by name.

    The sum of squares of a row grows by the mean of its squared gradients. Its gradient over the root is its step
    (FBGEMM's rowwise_adagrad).

    Args:
        begun: FP32 weights of all ranks.
    """
    last = [begun[key].double().requires_grad_() for key in ("last.weight", "last.bias")]
    tables = [
        next(each for key, each in begun.items() if f".{name}." in key).double().requires_grad_() for name in NAMES
    ]
    squares = [torch.zeros(len(table), 1, dtype=torch.float64) for table in tables]
    for step in range(STEPS):
        loss = torch.zeros((), dtype=torch.float64)
        for rank in range(dist.get_world_size()):
            (lookups,), _, labels = batch(step, None, rank=rank)
            pooled = [weighted_sums(table, lookups[name]) for name, table in zip(NAMES, tables, strict=True)]
            logits = nn.functional.linear(torch.cat(pooled, dim=1), *last).squeeze(1)
            own = nn.functional.binary_cross_entropy_with_logits(logits, labels.double())
            loss = loss + own / dist.get_world_size()
        gradients = torch.autograd.grad(loss, [*tables, *last])
        with torch.no_grad():
            for weight, gradient in zip(last, gradients[len(tables) :], strict=True):
                weight.sub_(DENSE_RATE * gradient)
            for table, square, gradient in zip(tables, squares, gradients[: len(tables)], strict=True):
                square.add_((gradient**2).mean(dim=1, keepdim=True))
                table.sub_(TABLE_RATE * gradient / (square.sqrt() + EPSILON))
    return {name: table.detach() for name, table in zip(NAMES, tables, strict=True)}


def weighted_sums(table: torch.Tensor, lists: JaggedTensor) -> torch.Tensor:
    """Return [samples, columns] the weighted sums of a table's rows."""
    samples = torch.repeat_interleave(torch.arange(len(lists.lengths())), lists.lengths())
    rows = table[lists.values()] * lists.weights().double()[:, None]
    return torch.zeros(len(lists.lengths()), table.shape[1], dtype=table.dtype).index_add(0, samples, rows)


def of_all_ranks(weights: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """Return the tensors of all ranks by name, each table whole on one of them."""
    everyone: list[Mapping[str, torch.Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(everyone, dict(weights))
    return {name: tensor for each in everyone for name, tensor in each.items() if tensor.numel()}


def errors(found: Trained, wanted: Mapping[str, torch.Tensor]) -> Mapping[str, float]:
    """Return the largest difference of a weight of each table."""
    weights = of_all_ranks(found.weights)
    return {
        name: max(float((tensor - table).abs().max()) for key, tensor in weights.items() if f".{name}." in key)
        for name, table in wanted.items()
    }


def batch(
    step: int, form: DeduplicationForm | None, *, rank: int
) -> tuple[list[KeyedJaggedTensor], torch.Tensor, torch.Tensor]:
    """Return lookups by collection, first samples, and labels of a rank.

    Each rank has other repeats, empty lists among them. In odd steps some lists repeat with other weights.
    """
    rng = np.random.default_rng((step, rank))
    chance = {0: 0.0, 1: 1.0}.get(step % 5, 0.1 + 0.3 * rank)  # of new lists
    version = np.cumsum(rng.random(SAMPLES) < chance) % SAMPLES
    lists = {}
    for name in NAMES:
        lengths = rng.integers(0, 5, size=SAMPLES)
        count = int(lengths.sum())
        ids = Jagged.of_lengths(rng.integers(0, 40, size=count), lengths)
        weights = Jagged.of_lengths(rng.integers(1, 5, size=count), lengths)
        if name in GROUP:
            ids, weights = ids.take(version), weights.take(version)
            if step % 2:
                other = np.where(rng.random(len(weights.values)) < 0.1, 8, weights.values)
                weights = Jagged.of_lengths(other, weights.lengths)
        lists[name] = Weighted(ids, weights)
    labels = torch.from_numpy(rng.integers(0, 2, size=SAMPLES).astype(np.float32))
    if form is None:
        return [keyed(lists, NAMES)], torch.arange(SAMPLES).expand(1, -1), labels
    repeats = repeated([each for name in GROUP for each in (lists[name].ids, lists[name].weights)])
    is_grouped = form is DeduplicationForm.GROUPED
    lists |= {name: lists[name].kept(~repeats, with_bags=not is_grouped) for name in GROUP}
    if is_grouped:
        first_samples = np.cumsum(~repeats) - 1
        return [keyed(lists, (ITEM,)), keyed(lists, GROUP)], torch.from_numpy(first_samples[None]), labels
    first_samples = np.maximum.accumulate(np.where(repeats, 0, np.arange(SAMPLES)))
    return [keyed(lists, NAMES)], torch.from_numpy(first_samples[None]), labels


def keyed(lists: Mapping[str, Weighted], names: Sequence[str]) -> KeyedJaggedTensor:
    """Return the lists of some features with their weights, as TorchRec takes them."""
    own = [lists[name] for name in names]
    return KeyedJaggedTensor(
        keys=list(names),
        values=torch.from_numpy(np.concatenate([each.ids.values for each in own])),
        lengths=torch.from_numpy(np.concatenate([each.ids.lengths for each in own])),
        weights=torch.from_numpy(np.concatenate([each.weights.values for each in own]).astype(np.float32) / 4),
    )


def check_sgd() -> None:
    """Check sums and means of whole tables in both forms, and sums of tables by rows in the one that they take."""
    both = tuple(DeduplicationForm)
    for family, pooling, forms in (
        (ShardingType.TABLE_WISE, Pooling.SUM, both),
        (ShardingType.TABLE_WISE, Pooling.MEAN, both),
        (ShardingType.ROW_WISE, Pooling.SUM, (DeduplicationForm.FIRST_SAMPLE,)),
    ):
        expected = trained(family, pooling, None, EmbOptimType.EXACT_SGD)
        for form in forms:
            found = trained(family, pooling, form, EmbOptimType.EXACT_SGD)
            torch.testing.assert_close(found.losses, expected.losses, rtol=0, atol=1e-6)
            torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-6)


def check_rowwise_adagrad() -> None:
    """Check that neither form is further from FP64 than all lists are, but for a tenth, and that losses agree."""
    expected, *found = (
        trained(ShardingType.TABLE_WISE, Pooling.SUM, form, EmbOptimType.EXACT_ROWWISE_ADAGRAD)
        for form in (None, *DeduplicationForm)
    )
    wanted = exact(of_all_ranks(expected.begun))
    limits = errors(expected, wanted)
    assert max(limits.values()) < 1e-4, f"FP32 trains what FP64 does, found {limits}"
    for each in found:
        torch.testing.assert_close(each.losses, expected.losses, rtol=0, atol=1e-6)
        own = errors(each, wanted)
        assert all(own[name] <= 1.1 * limit for name, limit in limits.items()), f"{own}, on all lists {limits}"


def main(_folder: str) -> None:
    """Check both optimizers."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        check_sgd()
        check_rowwise_adagrad()
