"""Four ranks in two groups of two: a model whose tables both groups hold trains as one model of all ranks.

Arguments: folder, layout, number of plans. Rank 0 writes the largest differences from the unsharded model, and what was
seen of averages that come seldom, to FOLDER/differences.json. A layout has ranks of its own: TorchRec keeps the groups
of a node in a global variable.
"""

import json
import logging
import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer, Table
from neuroshard_api.job.training import Training
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_api.sharding.replication import GroupLayout, Replication, grouping
from neuroshard_trainer.dense.optimizers import embedding_sharder, replicated_optimizer
from neuroshard_trainer.model.averaged_model import AveragedModel
from neuroshard_trainer.model.sharded_model import sharded_model
from neuroshard_trainer.ranks.process import Process, new_group
from neuroshard_trainer.run import RunPaths, set_up
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from neuroshard_trainer.state.checkpoint import CheckpointManifest
from support import builders
from support.planner.placements import by_columns, by_rows, given_plan, random_placement
from support.trainer.bags import SAMPLES, Bags, lookups_of, pairs, weight_difference
from support.trainer.rank_server import joined_ranks
from support.trainer.trainer_builders import TABLES, job_data, write_plan
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.optim import SGD

CPU = torch.device("cpu")
RATE = 0.1
STEPS = 3
WORLD = builders.topology(4, num_nodes=2)


def main(folder: str, layout: str, count: int) -> None:
    """Check plans of one layout in one process group."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        differences: dict[str, float] = {}
        families: set[str] = set()
        for seed in range(count):
            plan = plan_in_groups(random.Random(seed), GroupLayout(layout))  # noqa: S311 - draws test data
            families |= {placement.sharding_type.value for placement in plan.tables}
            for what, difference in check(plan, seed=seed).items():
                differences[what] = max(differences.get(what, 0.0), difference)
        averages = train_with_seldom_averages(Path(folder), GroupLayout(layout))
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, differences)
        if dist.get_rank() == 0:
            worst = {name: max(each[name] for each in found) for name in differences}
            text = json.dumps({"largest": worst, "families": sorted(families), "averages": averages})
            Path(folder, "differences.json").write_text(text)


def plan_in_groups(rng: random.Random, layout: GroupLayout) -> GivenPlan:
    """Return tables of several families on groups of two devices."""
    found = grouping(WORLD, 2, layout)
    assert found is not None
    tables = [
        builders.table(f"t{index}", num_embeddings=rng.choice((8, 30, 101)), embedding_dim=rng.choice((8, 16, 20)))
        for index in range(rng.randint(2, 5))
    ]
    request = PlanRequest(tables=builders.table_set(*tables), topology=WORLD, optimizer=Optimizer.SGD)
    families = tuple(ShardingType) if found.group.devices_per_node > 1 else EXCHANGED
    placed = [random_placement(rng, table, found.group, families) for table in tables]
    replication = Replication(num_groups=2, layout=layout)
    return given_plan(request, *placed).model_copy(update={"replication": replication})


EXCHANGED = (
    ShardingType.TABLE_WISE,
    ShardingType.COLUMN_WISE,
    ShardingType.ROW_WISE,
    ShardingType.DATA_PARALLEL,
)
"""Families that do not ask for nodes of two devices."""


def check(plan: GivenPlan, *, seed: int) -> dict[str, float]:
    """Return the largest differences of this rank's logits and weights from the unsharded model."""
    tables = plan.request.tables.tables
    torch.manual_seed(seed)
    plain = Bags(tables)
    plain.tables = plain.tables.to_empty(device="cpu")
    for weight in plain.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model = sharded_model(
        Bags(tables),
        sharding_plan(plan, module_path="tables", compute_device="cpu"),
        embedding_sharder(Optimizer.SGD, learning_rate=RATE, device=CPU),
        device=CPU,
        given=plan,
    )
    assert isinstance(model, AveragedModel)
    prove_sharding(model, plan)
    require_equal_copies(model, plan)
    with torch.no_grad():
        for name, live in model.state_dict().items():
            for part, wanted in pairs(live, plain.state_dict()[name]):
                part.copy_(wanted)
    logits = train(model, plain, tables, seed=seed)
    require_equal_copies(model, plan)
    state: Any = model.state_dict()
    keys = [f"tables.embedding_bags.{table.name}.weight" for table in tables]
    return {
        "logits": logits,
        "weights": max(weight_difference(state[key], plain.state_dict()[key]) for key in keys),
    }


def train_with_seldom_averages(folder: Path, layout: GroupLayout) -> dict[str, list[int]]:
    """Train with row-wise Adagrad and an average every three steps, as a job that saves every four.

    Returns:
        The steps before whose averages copies of weights differed, the same of the optimizer's sums, and the steps of
        checkpoints whose copies of either differed.
    """
    found = grouping(WORLD, 2, layout)
    assert found is not None
    user, item, country = TABLES
    request = PlanRequest(tables=builders.table_set(*TABLES), topology=WORLD, optimizer=Optimizer.ROWWISE_ADAGRAD)
    placed = by_columns(user, (1, 12), (0, 20)), by_rows(item, found.group), by_columns(country, (1, 16))
    replication = Replication(num_groups=2, layout=layout, sync_every_steps=3)
    plan = given_plan(request, *placed).model_copy(update={"replication": replication})
    rank = dist.get_rank()
    job = job_data(
        world_size=4,
        model={"embeddingOptimizer": "RowWiseAdagrad"},
        data={"numSamples": 2000},
        training={"maxSteps": 8},
        checkpoint={"everySteps": 4},
    )
    process = Process(rank=rank, world_size=dist.get_world_size(), device=CPU, group=new_group(60))
    (folder / "run").mkdir(exist_ok=True)
    places = RunPaths(plan_file=write_plan(folder, plan, f"plan-{rank}.json"), run_dir=folder / "run", data_dir=folder)
    loop = set_up(DLRMTrainingJob.from_data(job), plan, places, process)
    model, begin_save = loop._state.model, loop._saver.begin
    assert isinstance(model, AveragedModel)
    for group in (model._default_ctx.sharding_pg, model._default_ctx.replica_pg):
        assert group._get_backend(CPU).options._timeout == timedelta(seconds=60), "the job's"
    average = model.sync
    seen: dict[str, list[int]] = {"weights": [], "sums": [], "saved": []}

    def watched_average() -> None:
        state = loop._state.tensors()
        for what, part in (("weights", "model"), ("sums", "tables_optimizer")):
            if copies_differ(state[part], plan):
                seen[what].append(loop.step)
        average()

    def watched_save(state: Any, manifest: CheckpointManifest) -> None:
        if any(copies_differ(state[part], plan) for part in ("model", "tables_optimizer")):
            seen["saved"].append(loop.step)
        assert manifest.moment_scale == replication.num_groups, "sums of squared gradients are those of two groups"
        begin_save(state, manifest)

    model.sync = watched_average
    loop._saver.begin = watched_save  # type: ignore[method-assign]
    loop.run()
    rate = float(Training().embedding_learning_rate) * replication.num_groups**0.5
    for each in model.fused_optimizer.param_groups:
        assert each["lr"] == pytest.approx(rate), "rates grow with the root of the groups, as Adagrad's divisors do"
    return seen


def copies_differ(state: Any, plan: GivenPlan) -> bool:
    """Whether any rank's shards differ from those of the rank with its number in the first group, by a bit."""
    shards = {
        path: [each.tensor.clone() for each in tensor.local_shards()]
        for path, tensor in flatten_state_dict(state)[0].items()
        if isinstance(tensor, ShardedTensor)
    }
    assert shards, "there is something to compare"
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, shards)
    return any(
        not torch.equal(one, other)
        for members in plan.groups
        for rank, first in zip(members, plan.groups[0], strict=True)
        for path, parts in everyone[rank].items()
        for one, other in zip(parts, everyone[first][path], strict=True)
    )


def require_equal_copies(model: AveragedModel, plan: GivenPlan) -> None:
    """Hold this rank's weights against those of the rank with its number in the first group."""
    own = {
        name: [part for part, _ in pairs(live, torch.empty(live.size()))] for name, live in model.state_dict().items()
    }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    members = next(each for each in plan.groups if dist.get_rank() in each)
    first = everyone[plan.groups[0][members.index(dist.get_rank())]]
    for name, parts in own.items():
        assert all(torch.equal(one, other) for one, other in zip(parts, first[name], strict=True)), name


def train(model: AveragedModel, plain: Bags, tables: Sequence[Table], *, seed: int) -> float:
    """Take the steps with both models, and return the largest difference of logits."""
    replicated = replicated_optimizer(model, Optimizer.SGD, learning_rate=RATE)
    reference = SGD(plain.parameters(), lr=RATE)
    labels = torch.linspace(-1, 1, SAMPLES)
    difference = 0.0
    for step in range(STEPS):
        batches = [lookups_of(tables, seed=1000 * seed + 10 * step + rank) for rank in range(dist.get_world_size())]
        logits, expected = model(batches[dist.get_rank()]), plain(batches[dist.get_rank()])
        difference = max(difference, float((logits - expected).abs().max().detach()))
        if replicated is not None:
            replicated.zero_grad()
        torch.autograd.backward(((logits - labels) ** 2).mean())
        if replicated is not None:
            replicated.step()
        model.end_step()
        reference.zero_grad()
        losses = [((plain(batch) - labels) ** 2).mean() for batch in batches]
        torch.autograd.backward(torch.stack(losses).mean())
        reference.step()
    return difference
