"""One of several ranks: trains on all lists and on batches without repeats, and holds logits and weights together.

Argument: folder, unused. Exits with an error where a logit or a weight differs.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm, TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer, Pooling, Table
from neuroshard_api.documents.topology import Topology
from neuroshard_api.job.model import Architecture, Model
from neuroshard_api.job.training import DenseOptimizer, Training
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import collated
from neuroshard_trainer.data.deduplication import WithoutRepeats
from neuroshard_trainer.data.samples import Jagged, Samples, features_of
from neuroshard_trainer.dense.optimizers import (
    dense_optimizer,
    embedding_sharder,
    replicated_optimizer,
)
from neuroshard_trainer.model.dlrm import TABLES_PATH
from neuroshard_trainer.model.grouped_model import TableCollections, planned_model
from neuroshard_trainer.model.sharded_model import sharded_model
from neuroshard_trainer.pipeline import BatchPipeline
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from support import builders
from support.planner.placements import by_columns, by_rows, everywhere, given_plan, grid, on_node
from support.trainer.bags import local_weights
from support.trainer.rank_server import joined_ranks
from support.trainer.trainer_builders import job_data
from torch.nn.functional import binary_cross_entropy_with_logits

CPU = torch.device("cpu")
SAMPLES, STEPS = 24, 20
TABLES = (
    builders.table("user", num_embeddings=60, embedding_dim=32, pooling_factor=3),
    builders.table("history", num_embeddings=50, embedding_dim=16, pooling_factor=4, pooling=Pooling.MEAN),
    builders.table("shop", num_embeddings=40, embedding_dim=32, feature_names=("seen_shop", "shop")),
    builders.table("item", num_embeddings=30, embedding_dim=32),
)
GROUPS = (("user", "history"), ("seen_shop",))
"""The table shop is looked up by a feature of a group and by one of none."""
TAKE_GROUPS = (ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE, ShardingType.DATA_PARALLEL)
"""Families of tables that a group's own collection may have."""


def devices() -> Topology:
    """Return the ranks' topology."""
    world_size = dist.get_world_size()
    return builders.topology(world_size, num_nodes=world_size // int(os.environ["LOCAL_WORLD_SIZE"]))


def placed(family: ShardingType, table: Table) -> TablePlacement:
    """Return a table in a family."""
    world_size, half = dist.get_world_size(), table.embedding_dim // 2
    topology = devices()
    match family:
        case ShardingType.TABLE_WISE:
            return by_columns(table, (len(table.name) % world_size, table.embedding_dim))
        case ShardingType.COLUMN_WISE:
            return by_columns(table, (world_size - 1, half), (0, half))
        case ShardingType.ROW_WISE:
            return by_rows(table, topology)
        case ShardingType.TABLE_ROW_WISE:
            return on_node(table, len(table.name) % topology.num_nodes, topology)
        case ShardingType.GRID:
            width = table.embedding_dim // topology.num_nodes
            return grid(table, topology, *((node, width) for node in range(topology.num_nodes)))
        case ShardingType.DATA_PARALLEL:
            return everywhere(table, topology)


def plan_of(
    families: Sequence[ShardingType], optimizer: Optimizer, form: DeduplicationForm = DeduplicationForm.FIRST_SAMPLE
) -> GivenPlan:
    """Return a plan without repeats; TorchRec computes means in tables by columns alone.

    The form is that of the first group; a table of the second one is looked up outside of the group too.
    """
    is_by_columns = all(family.is_by_columns for family in families)
    tables = TABLES if is_by_columns else tuple(table.model_copy(update={"pooling": None}) for table in TABLES)
    placements = [placed(family, table) for family, table in zip(families, tables, strict=True)]
    topology = devices()
    request = PlanRequest(tables=builders.table_set(*tables), topology=topology, optimizer=optimizer)
    forms = (form, DeduplicationForm.FIRST_SAMPLE)
    groups = [
        DeduplicatedGroup(group=names[0], features=names, form=own, factor=4.0)
        for names, own in zip(GROUPS, forms, strict=True)
    ]
    return given_plan(request, *placements).model_copy(update={"deduplication": tuple(groups)})


def trained(
    plan: GivenPlan, *, pipelined: bool, architecture: Architecture = Architecture.DLRM
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Train on the same samples without the repeats of a plan; return the losses and the weights of this rank."""
    settings = validated(Model, job_data()["spec"]["model"], where="spec.model")
    settings = settings.model_copy(update={"architecture": architecture})
    optimizer = plan.request.optimizer
    torch.manual_seed(0)
    model = sharded_model(
        planned_model(settings, plan),
        TableCollections.of(plan).divided(sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu")),
        embedding_sharder(optimizer, learning_rate=0.02, device=CPU),
        device=CPU,
    )
    prove_sharding(model, plan)
    training = Training(dense_optimizer=DenseOptimizer.SGD)
    stepping = StepOptimizer(
        model,
        dense_optimizer(model, training, tables_path=TABLES_PATH),
        replicated_optimizer(model, optimizer, learning_rate=0.02),
        training,
        step=0,
    )

    def loss_of(batch: Batch) -> torch.Tensor:
        return binary_cross_entropy_with_logits(model(*batch.inputs), batch.labels)

    batches = iter([batch(step, plan.deduplication or ()) for step in range(STEPS)])
    if pipelined:
        pipeline = BatchPipeline(model, stepping, loss_of, CPU)
        losses = [pipeline.progress(batches) for _ in range(STEPS)]
    else:
        losses = []
        for each in batches:
            stepping.zero_grad()
            loss = loss_of(each)
            torch.autograd.backward(loss)
            stepping.step()
            losses.append(loss.detach())
    return losses, local_weights(model)


def batch(step: int, groups: Sequence[DeduplicatedGroup]) -> Batch:
    """Return a batch of this rank: each rank has other repeats, and some steps have one list or no repeat at all."""
    rng = np.random.default_rng((step, dist.get_rank()))
    chance = {0: 0.0, 1: 1.0}.get(step % 5, 0.1 + 0.2 * dist.get_rank())  # of new lists
    features = features_of(TABLES)
    lookups = {}
    changes: dict[str, Any] = {name: rng.random(SAMPLES) < chance for name, *_ in GROUPS}
    for feature in features:
        group = next((names[0] for names in GROUPS if feature.name in names), None)
        lengths = rng.integers(0, 5, size=SAMPLES)
        values = rng.integers(0, feature.table.num_embeddings, size=int(lengths.sum()))
        drawn = Jagged.of_lengths(values, lengths)
        lookups[feature.name] = drawn if group is None else drawn.take(np.cumsum(changes[group]) % SAMPLES)
    samples = Samples(
        labels=rng.integers(0, 2, size=SAMPLES).astype(np.float32),
        dense=rng.normal(size=(SAMPLES, 3)).astype(np.float32),
        lookups=lookups,
    )
    keys = [feature.name for feature in features]
    if not groups:
        return Batch.of(collated([samples], features), keys)
    collate = WithoutRepeats(
        groups=tuple(tuple(keys.index(name) for name in group.features) for group in groups),
        apart={number for number, group in enumerate(groups) if group.form is DeduplicationForm.GROUPED},
    )
    return Batch.of(collate([samples], features), keys)


def main(_folder: str) -> None:
    """Check all families alone and together, with both kinds of optimizer, plain and pipelined."""
    logging.disable(logging.WARNING)
    mixed = (ShardingType.TABLE_WISE, ShardingType.DATA_PARALLEL, ShardingType.ROW_WISE, ShardingType.COLUMN_WISE)
    alone = [(family,) * len(TABLES) for family in ShardingType]
    with joined_ranks():
        for number, families in enumerate((*alone, mixed)):
            optimizer = (Optimizer.ROWWISE_ADAGRAD, Optimizer.SGD)[number % 2]
            plan = plan_of(families, optimizer)
            expected, weights = trained(plan.model_copy(update={"deduplication": None}), pipelined=False)
            plans = [plan]
            if all(family in TAKE_GROUPS for family in families[:2]):  # those of the first group's tables
                plans.append(plan_of(families, optimizer, DeduplicationForm.GROUPED))
            for each in plans:
                for pipelined in (False, True) if families is mixed else (False,):
                    losses, found = trained(each, pipelined=pipelined)
                    torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=0, atol=1e-6)
                    torch.testing.assert_close(found, weights, rtol=0, atol=1e-6)


def once_per_list(_folder: str) -> None:
    """Check DCNv2, whose first product with all features takes the part of the grouped group once per list."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        plan = plan_of((ShardingType.TABLE_WISE,) * len(TABLES), Optimizer.SGD, DeduplicationForm.GROUPED)
        grouped, other = plan.deduplication or ()
        once = (grouped.model_copy(update={"product_saved_ms": 1.0}), other)
        all_lists = plan.model_copy(update={"deduplication": None})
        expected, weights = trained(all_lists, pipelined=False, architecture=Architecture.DCN_V2)
        for pipelined in (False, True):
            left_out = plan.model_copy(update={"deduplication": once})
            losses, found = trained(left_out, pipelined=pipelined, architecture=Architecture.DCN_V2)
            torch.testing.assert_close(torch.stack(losses), torch.stack(expected), rtol=0, atol=1e-6)
            torch.testing.assert_close(found, weights, rtol=0, atol=1e-6)
