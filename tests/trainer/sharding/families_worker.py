"""Four ranks, as two nodes of two: save a checkpoint under every family of placements, and load it under every family.

Argument: a folder. Weights must be the same bits, and sums of squares too, of which all blocks of a row have one value.
"""

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer, Table
from neuroshard_api.job.model import Model
from neuroshard_api.job.training import Training
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.dense.optimizers import dense_optimizer, embedding_sharder, replicated_optimizer
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from neuroshard_trainer.state.checkpoint import CheckpointFolder, CheckpointManifest
from neuroshard_trainer.state.training_state import TrainingState, widths_of
from support import builders
from support.planner.placements import by_columns, by_rows, everywhere, given_plan, grid, on_node
from support.planner.stored_plans import MIXED, plan_with
from support.trainer.rank_server import joined_ranks
from support.trainer.trainer_builders import TABLES, job_data
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv

TOPOLOGY = builders.topology(4, num_nodes=2)
CPU = torch.device("cpu")


def placed(family: ShardingType, table: Table) -> TablePlacement:
    """Return a table in a family, in two equal blocks where it is cut by columns."""
    half = table.embedding_dim // 2
    match family:
        case ShardingType.TABLE_WISE:
            return by_columns(table, (2, table.embedding_dim))
        case ShardingType.COLUMN_WISE:
            return by_columns(table, (3, half), (0, half))
        case ShardingType.ROW_WISE:
            return by_rows(table, TOPOLOGY)
        case ShardingType.TABLE_ROW_WISE:
            return on_node(table, 1, TOPOLOGY)
        case ShardingType.GRID:
            return grid(table, TOPOLOGY, (1, half), (0, half))
        case ShardingType.DATA_PARALLEL:
            return everywhere(table, TOPOLOGY)


def plan_of(family: ShardingType, optimizer: Optimizer) -> GivenPlan:
    """Return a plan of all tables in one family."""
    request = PlanRequest(tables=builders.table_set(*TABLES), topology=TOPOLOGY, optimizer=optimizer)
    return given_plan(request, *(placed(family, table) for table in TABLES))


def state_under(family: ShardingType, optimizer: Optimizer) -> TrainingState:
    """Return the state of a fresh model."""
    return state_of(plan_of(family, optimizer), optimizer)


def state_of(plan: GivenPlan, optimizer: Optimizer) -> TrainingState:
    """Return the state of a fresh model under a plan."""
    world = dist.group.WORLD
    assert world is not None
    model = DistributedModelParallel(
        RecommendationModel(
            validated(Model, job_data()["spec"]["model"], where="spec.model"), plan.resolved.tables.tables
        ),
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu"),
        sharders=[embedding_sharder(optimizer, learning_rate=0.1, device=CPU)],
    )
    return TrainingState(
        model=model,
        dense_optimizer=dense_optimizer(model, Training(), tables_path=TABLES_PATH),
        replicated_optimizer=replicated_optimizer(model, optimizer, learning_rate=0.1),
        widths=widths_of(prove_sharding(model, plan)),
    )


def cells(state: TrainingState) -> Mapping[str, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Return this rank's cells of each table and its state, each with the expected values.

    A cell's weight is its number in the table, plus an eighth; state per element is three times that, and state per row
    is the row's number plus a half, in all blocks of columns.
    """
    found: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    tensors: Any = state.tensors()
    for table in TABLES:
        key = f"{TABLES_PATH}.embedding_bags.{table.name}.weight"
        numbers = torch.arange(table.num_embeddings * table.embedding_dim).view(table.num_embeddings, -1) + 0.125
        rows = torch.arange(table.num_embeddings) + 0.5
        own = tensors.get("tables_optimizer", {}).get(key, {})
        for live, whole in ((tensors["model"][key], numbers), *((each, 3 * numbers) for each in own.values())):
            per_row = rows.repeat(len(state.widths[table.name])) if size_of(live)[1:] == () else None
            for offsets, part in parts(live):
                if not part.numel():
                    continue
                if per_row is not None:
                    wanted = per_row[offsets[0] : offsets[0] + part.numel()].view_as(part)
                else:
                    row, column = offsets
                    wanted = whole[row : row + part.shape[0], column : column + part.shape[1]]
                found.setdefault(table.name, []).append((part, wanted))
    return found


def size_of(tensor: torch.Tensor | ShardedTensor) -> tuple[int, ...]:
    """Return the size of a tensor over all ranks."""
    return tuple(tensor.metadata().size if isinstance(tensor, ShardedTensor) else tensor.shape)


def parts(tensor: torch.Tensor | ShardedTensor) -> list[tuple[list[int], torch.Tensor]]:
    """Return this rank's parts, with offsets."""
    if isinstance(tensor, ShardedTensor):
        return [(each.metadata.shard_offsets, each.tensor) for each in tensor.local_shards()]
    return [([0] * tensor.dim(), tensor.detach().as_subclass(torch.Tensor))]


def main(folder: str) -> None:
    """Check every pair, with state per row and per element."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        check_pairs(Path(folder))


def check_pairs(folder: Path) -> None:
    """Save under every family, and load under every family what was saved under each."""
    world = dist.group.WORLD
    assert world is not None
    for optimizer in (Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD):
        saved = {}
        for family in ShardingType:
            state = state_under(family, optimizer)
            state.dense_optimizer.init_state()
            with torch.no_grad():
                for pairs in cells(state).values():
                    for part, wanted in pairs:
                        part.copy_(wanted)
            manifest = CheckpointManifest(
                step=1,
                position=16,
                world_size=4,
                plan_sha256="0" * 64,
                table_widths=dict(state.widths),
                signature={},
            )
            checkpoints = CheckpointFolder(folder / optimizer / family, keep=1, group=world)
            checkpoints.prepare()
            saved[family] = checkpoints, checkpoints.save(state.tensors(), manifest), manifest
        for new in ShardingType:
            state = state_under(new, optimizer)
            for old, (checkpoints, path, manifest) in saved.items():
                with torch.no_grad():
                    for part, _ in itertools.chain(*cells(state).values()):
                        part.fill_(torch.nan)
                state.load(checkpoints, path, manifest.table_widths)
                for name, pairs in cells(state).items():
                    for part, wanted in pairs:
                        assert torch.equal(part, wanted), f"{optimizer}: {name} from {old} to {new}: {part}, {wanted}"


def main_of_types(folder: str) -> None:
    """Check checkpoints between plans of other types."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        check_types(Path(folder))


def check_types(folder: Path) -> None:
    """Load under each types what was saved under each: one rounding where the types differ, else the same bits."""
    ways = {"FP32": (), "mixed": MIXED}
    world = dist.group.WORLD
    assert world is not None
    for old, halved in ways.items():
        before = filled(state_of(plan_with(*halved), Optimizer.ROWWISE_ADAGRAD))
        manifest = CheckpointManifest(
            step=1, position=16, world_size=4, plan_sha256="0" * 64, table_widths=dict(before.widths), signature={}
        )
        checkpoints = CheckpointFolder(folder / old, keep=1, group=world)
        checkpoints.prepare()
        path = checkpoints.save(before.tensors(), manifest)
        for new, halved_now in ways.items():
            after = state_of(plan_with(*halved_now), Optimizer.ROWWISE_ADAGRAD)
            after.load(checkpoints, path, manifest.table_widths)
            for name, (saved, loaded) in both(before, after).items():
                assert torch.equal(saved.to(loaded.dtype), loaded), f"{name}: from {old} to {new}"


def filled(state: TrainingState) -> TrainingState:
    """Return a state of random weights and sums, which FP32 keeps and FP16 rounds."""
    state.dense_optimizer.init_state()
    torch.manual_seed(1)
    with torch.no_grad():
        for part in tensors_of(state).values():
            part.copy_(torch.rand_like(part, dtype=torch.float32) + 0.1)
        for name, part in tensors_of(state).items():
            if ".copy." in name:  # all ranks hold the same
                part.fill_(0.7)
    return state


def tensors_of(state: TrainingState) -> dict[str, torch.Tensor]:
    """Return this rank's tensors of tables and their state, by names and offsets."""
    found: dict[str, torch.Tensor] = {}
    tensors: Any = state.tensors()
    for table in plan_with().resolved.tables.tables:
        key = f"{TABLES_PATH}.embedding_bags.{table.name}.weight"
        named = {"weight": tensors["model"][key], **tensors.get("tables_optimizer", {}).get(key, {})}
        for name, tensor in named.items():
            for offsets, part in parts(tensor):
                if part.numel():
                    found[f"{key}.{name}.{offsets}"] = part
    return found


def both(before: TrainingState, after: TrainingState) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return both states' tensors on this rank, by name."""
    first, second = tensors_of(before), tensors_of(after)
    assert first.keys() == second.keys()
    return {name: (first[name], second[name]) for name in first}
