"""Four ranks, as two nodes of two: train two steps under random plans of all families.

Arguments: folder, number of plans, seed of the first. Holds every plan against the unsharded model: logits of the first
step, and weights after two updates. Rank 0 writes the largest differences to FOLDER/differences.json.
"""

import itertools
import json
import logging
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer, Pooling, Table
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.placement_rules import placement_problems
from neuroshard_trainer.dense.optimizers import (
    EPSILON,
    embedding_sharder,
    replicated_optimizer,
    replicated_weights,
    share_replicated_weights,
)
from neuroshard_trainer.model.sharded_model import sharded_model
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from support import builders
from support.planner.placements import given_plan, on_host, random_placement
from support.planner.stored_plans import MIXED, plan_with
from support.trainer.bags import SAMPLES, Bags, lookups_of, pairs, weight_difference
from support.trainer.rank_server import RankServer, joined_ranks
from torch import nn
from torch.optim import SGD, Adagrad
from torch.optim import Optimizer as TorchOptimizer
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

TOPOLOGY = builders.topology(4, num_nodes=2, host_memory=builders.host_memory())
"""Processes on a CPU run kernels of host memory as fused ones: results are compared, times cannot be."""
CPU = torch.device("cpu")
RATE = 0.1
STEPS = 2
HALF_STEP = 2.0**-11
"""What FP16 rounds a number by, as a share of it."""
OPTIMIZERS = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD)
BY_ROWS = (ShardingType.ROW_WISE, ShardingType.TABLE_ROW_WISE)
EXACT = (*BY_ROWS, ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL)
INEXACT = (ShardingType.COLUMN_WISE, ShardingType.GRID)
"""Families that keep row-wise state per block of columns."""


def main(folder: str, count: int, seed: int) -> None:
    """Check ``count`` plans in one process group."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        check_plans(Path(folder), count, seed)


def main_of_mixed_types() -> None:
    """Train a plan of FP16 and FP32 tables."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        check_mixed_types()


def check_plans(folder: Path, count: int, seed: int) -> None:
    """Check random plans, and write the largest differences of all ranks."""
    differences: dict[str, float] = {}
    drawn: dict[str, int] = {}
    for each in range(seed, seed + count):
        plan, optimizer = random_plan(random.Random(each))  # noqa: S311 - draws test data
        for what, difference in check(plan, optimizer, seed=each).items():
            differences[what] = max(differences.get(what, 0.0), difference)
        for table in plan.tables:
            drawn[table.sharding_type] = drawn.get(table.sharding_type, 0) + 1
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, differences)
    if dist.get_rank() == 0:
        names = sorted({name for each in found for name in each})
        worst = {name: max(each.get(name, 0.0) for each in found) for name in names}
        (folder / "differences.json").write_text(json.dumps({"plans": count, "tables": drawn, "largest": worst}))


def random_plan(rng: random.Random) -> tuple[GivenPlan, Optimizer]:
    """Return two to six tables in random families, and an optimizer, as they can be run."""
    drawn = (_random_plan(rng) for _ in itertools.count())
    return next(each for each in drawn if not list(placement_problems(each[0].tables, each[0].resolved)))


def _random_plan(rng: random.Random) -> tuple[GivenPlan, Optimizer]:
    families = rng.choice((tuple(ShardingType), tuple(ShardingType), BY_ROWS, EXACT))
    mean_share = rng.choice((0.0, 1.0)) if families == BY_ROWS else rng.choice((0.0, 0.3))
    tables = tuple(
        builders.table(
            f"t{index}",
            num_embeddings=rng.choice((1, 3, 5, 8, 30, 101)),
            embedding_dim=rng.choice((4, 8, 16, 20, 64)),
            feature_names=rng.choice(((), (f"f{index}", f"g{index}"))),
            pooling=Pooling.MEAN if rng.random() < mean_share else None,
        )
        for index in range(rng.randint(2, 6))
    )
    optimizer = rng.choice(OPTIMIZERS)
    request = PlanRequest(tables=builders.table_set(*tables), topology=TOPOLOGY, optimizer=optimizer)
    placements = [random_placement(rng, table, TOPOLOGY, families) for table in tables]
    return given_plan(request, *(_with_kernel(rng, each) for each in placements)), optimizer


def _with_kernel(rng: random.Random, placement: TablePlacement) -> TablePlacement:
    """Return the placement with its weights in host memory in one of three cases."""
    if placement.sharding_type is ShardingType.DATA_PARALLEL or rng.random() < 2 / 3:
        return placement
    return on_host(placement, cache_load_factor=rng.choice((None, 0.2, 1.0)))


def check(plan: GivenPlan, optimizer: Optimizer, *, seed: int) -> Mapping[str, float]:
    """Return the largest differences from the unsharded model that this rank finds."""
    tables = plan.resolved.tables.tables
    torch.manual_seed(seed)
    plain = Bags(tables)
    plain.tables = plain.tables.to_empty(device="cpu")
    for weight in plain.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    sharded = bags_under(plan, optimizer)
    require_shared(sharded)
    with torch.no_grad():
        for name, live in sharded.state_dict().items():
            for part, wanted in pairs(live, plain.state_dict()[name]):
                part.copy_(wanted)
    differences = {"logits": train(sharded, plain, tables, optimizer, seed=seed)}
    state: Any = sharded.state_dict()
    # A table that learns otherwise in the first step changes the gradients of all tables in the next.
    is_exact = not any(placement.sharding_type in INEXACT for placement in plan.tables)
    if optimizer is not Optimizer.ROWWISE_ADAGRAD or is_exact:
        keys = [f"tables.embedding_bags.{placement.name}.weight" for placement in plan.tables]
        found = [weight_difference(state[key], plain.state_dict()[key]) for key in keys]
        differences[f"{optimizer.value} weights"] = max(found)
    return differences


def check_mixed_types() -> None:
    """Hold two steps against the unsharded model of FP32 tables, whose weights begin as numbers of FP16."""
    plan = plan_with(*MIXED)
    tables = plan.request.tables.tables
    torch.manual_seed(0)
    plain = Bags(tables)
    plain.tables = plain.tables.to_empty(device="cpu")
    with torch.no_grad():
        for weight in plain.parameters():
            weight.copy_(torch.randn_like(weight).mul(0.3).half())
    sharded = bags_under(plan, Optimizer.SGD)
    with torch.no_grad():
        for name, live in sharded.state_dict().items():
            for part, wanted in pairs(live, plain.state_dict()[name]):
                part.copy_(wanted)
    difference = train(sharded, plain, tables, Optimizer.SGD, seed=0)
    assert difference < 1e-6, difference
    for table in plan.resolved.tables.tables:
        key = f"tables.embedding_bags.{table.name}.weight"
        own: Any = sharded.state_dict()[key]
        held = [part.dtype for part, _ in pairs(own, plain.state_dict()[key]) if part.numel()]
        assert set(held) <= {torch.float16 if table.name in MIXED else torch.float32}, (table.name, held)
        wanted = plain.state_dict()[key]
        allowed = 4 * HALF_STEP * float(wanted.abs().max()) if table.name in MIXED else 1e-4
        found = weight_difference(own, wanted)
        assert found < allowed, (table.name, found, allowed)
        # A table in FP16 that had FP32 underneath would be as near as one in FP32.
        assert table.name not in MIXED or found > 0 or not held, table.name


def bags_under(plan: GivenPlan, optimizer: Optimizer) -> DistributedModelParallel:
    """Return the model under a plan, which is proven."""
    sharded = sharded_model(
        Bags(plan.resolved.tables.tables),
        sharding_plan(plan, module_path="tables", compute_device="cpu"),
        embedding_sharder(optimizer, learning_rate=RATE, device=CPU),
        device=CPU,
    )
    prove_sharding(sharded, plan)
    return sharded


def require_shared(sharded: DistributedModelParallel) -> None:
    """Let every rank begin data_parallel tables otherwise, and hold what is shared against rank 0's."""
    with torch.no_grad():
        for weight in replicated_weights(sharded).values():
            weight.fill_(dist.get_rank())
    share_replicated_weights(sharded)
    for weight in replicated_weights(sharded).values():
        assert not weight.any(), "a rank has other weights than rank 0"


def train(
    sharded: DistributedModelParallel, plain: Bags, tables: Sequence[Table], optimizer: Optimizer, *, seed: int
) -> float:
    """Take the steps with both models, and return the largest difference of the first step's logits."""
    replicated = replicated_optimizer(sharded, optimizer, learning_rate=RATE)
    reference = torch_optimizer(plain, optimizer)
    labels = torch.linspace(-1, 1, SAMPLES)
    difference = 0.0
    for step in range(STEPS):
        batches = [lookups_of(tables, seed=1000 * seed + 10 * step + rank) for rank in range(dist.get_world_size())]
        logits, expected = sharded(batches[dist.get_rank()]), plain(batches[dist.get_rank()])
        if step == 0:
            difference = float((logits - expected).abs().max().detach())
        if replicated is not None:
            replicated.zero_grad()
        torch.autograd.backward((logits - labels).square().mean())
        if replicated is not None:
            replicated.step()
        reference.zero_grad()
        losses = [(plain(each) - labels).square().mean() for each in batches]
        torch.autograd.backward(torch.stack(losses).mean())  # the sharded model's gradients are means over the ranks
        reference.step()
    return difference


def torch_optimizer(model: nn.Module, optimizer: Optimizer) -> TorchOptimizer:
    """Return torch's own optimizer of an unsharded model."""
    weights = list(model.parameters())
    if optimizer is Optimizer.SGD:
        return SGD(weights, lr=RATE)
    kind = RowWiseAdagrad if optimizer is Optimizer.ROWWISE_ADAGRAD else Adagrad
    return kind(weights, lr=RATE, eps=EPSILON)


if __name__ == "__main__":
    place, plans, first = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with RankServer() as ranks:
        ranks.succeed(f"{__file__}:main", place, plans, first, folder=place, count=4, per_node=2)
