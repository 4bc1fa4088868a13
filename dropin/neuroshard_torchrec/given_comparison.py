"""The comparison that `neuroshard compare-training SCRIPT PLAN...` asks a script for, and its plans for a module."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import cast

import torch
import torch.distributed as dist
from neuroshard_api.documents.comparison_request import COMPARISON_VARIABLE, ComparisonRequest
from neuroshard_api.documents.document import DocumentError, read_data
from neuroshard_api.documents.torchrec_plan import ComputeDevice, TorchRecParameter, TorchRecPlan
from neuroshard_api.documents.training_comparison import TrainingComparison
from neuroshard_api.process.atomic_file import write_whole
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.sharding.plan_adapter import load_sharding_plan, read_plan
from torch import nn
from torchrec.distributed.types import ShardingPlan

from neuroshard_torchrec.agreement import from_rank_0, together
from neuroshard_torchrec.collections import Sharders
from neuroshard_torchrec.comparison import MAKE_SECONDS, Make, compare_training
from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.model_tables import ModelTables, model_tables


def compare_given_plans(
    make: Make,
    module: nn.Module,
    sharders: Sharders | None = None,
    *,
    seed: int = 0,
    device: torch.device | None = None,
    make_seconds: float = MAKE_SECONDS,
) -> TrainingComparison:
    """Train a script's model under the plans of `neuroshard compare-training`, in turns. All ranks must call this.

    Args:
        make: as compare_training calls it.
        module: that `make` shards, for the paths and tables of its collections; on any device, meta included.
        sharders: as DistributedModelParallel gets them. None: TorchRec's default ones.
        seed: of what `make` draws.
        device: that this rank computes on. None: its GPU, else the CPU.
        make_seconds: within which each `make` has to return on every rank.

    Raises:
        DropInError: on every rank: the command did not start the script, a plan is not for this module or not for so
            many processes, or the result cannot be written, or an error of compare_training.
    """
    if not dist.is_initialized():
        raise DropInError("compare_given_plans: there is no process group; hint: initialize it before")
    world = cast(dist.ProcessGroup, dist.GroupMember.WORLD)
    request = together(_request, world)
    plans = together(partial(plans_for, request.plans, module, sharders, world_size=world.size()), world)
    found = compare_training(
        plans,
        make,
        rounds=request.rounds,
        steps=request.steps_per_round,
        seed=seed,
        device=device,
        make_seconds=make_seconds,
    )
    from_rank_0(lambda: write_whole(Path(request.result), found.to_json()), world)
    return found


def plans_for(
    files: Mapping[str, str], module: nn.Module, sharders: Sharders | None, *, world_size: int
) -> Mapping[str, ShardingPlan]:
    """Return the plans of files as DistributedModelParallel takes them for a module, by name.

    Args:
        files: plans, or exported plans of TorchRec, by name.
        module: that is to be sharded.
        sharders: as DistributedModelParallel gets them. None: TorchRec's default ones.
        world_size: processes.

    Raises:
        DropInError: a file is no such plan, or is for another module or another number of processes.
    """
    tables = model_tables(module, sharders=sharders)
    try:
        return {
            name: load_sharding_plan(_exported(Path(file), tables, world_size=world_size))
            for name, file in files.items()
        }
    except (DocumentError, InputError) as error:
        raise DropInError(str(error)) from error


def _request() -> ComparisonRequest:
    """Return the command's request. Raises DropInError."""
    file = os.environ.get(COMPARISON_VARIABLE)
    if file is None:
        raise DropInError(
            f"compare_given_plans: {COMPARISON_VARIABLE} is not set; hint: start the script with `neuroshard "
            "compare-training SCRIPT PLAN PLAN`, or call compare_training with plans of your own"
        )
    try:
        return ComparisonRequest.read(Path(file))
    except DocumentError as error:
        raise DropInError(str(error)) from error


def _exported(file: Path, tables: ModelTables, *, world_size: int) -> TorchRecPlan:
    """Return the plan of a file by the paths of a module. Raises DropInError, DocumentError, or InputError."""
    raw = read_data(file)
    if not TorchRecPlan.is_named_by(raw):
        plan = read_plan(file, world_size=world_size, tables=tables.table_set.tables)
        in_module = {table.name: table.data_type for table in tables.table_set.tables}
        other = next((each for each in plan.resolved.tables.tables if each.data_type is not in_module[each.name]), None)
        if other is not None:
            raise DropInError(
                f"{file}: stores table {other.name!r} as {other.data_type}, and the module's own type is "
                f"{in_module[other.name]}; hint: set data_type of its EmbeddingBagConfig, "
                "or plan without spec.planner.dataTypes"
            )
        if plan.dense is not None:
            raise DropInError(
                f"{file}: shards the dense part, which the script would not do"
                f"; hint: plan with --set spec.training.denseParallelism.policy=Replicate"
            )
        compute_device: ComputeDevice = "cuda" if torch.cuda.is_available() else "cpu"
        return _trainable(file, TorchRecPlan.of(plan, collections=tables.by_path, compute_device=compute_device))
    exported = _trainable(file, TorchRecPlan.from_data(raw, where=str(file)))
    if exported.world_size != world_size:
        raise DropInError(
            f"{file}: is for {exported.world_size} processes, found {world_size}; hint: start as many, or plan again"
        )
    problem = _other_module(exported, tables)
    if problem is not None:
        raise DropInError(f"{file}: {problem}; hint: export the plan of this module")
    return exported


def _trainable(file: Path, plan: TorchRecPlan) -> TorchRecPlan:
    """Return a plan that says nothing but where shards are, which is all that TorchRec takes. Raises DropInError."""
    if plan.groups is not None:
        raise DropInError(f"{file}: has groups of devices, which DistributedModelParallel does not take")
    for part, what in ((plan.codecs, "narrow types on the wire"), (plan.deduplication, "lists without repeats")):
        if part is not None:
            raise DropInError(
                f"{file}: is priced for {what}, which the script would not train with; hint: plan without them"
            )
    return plan


def _other_module(exported: TorchRecPlan, tables: ModelTables) -> str | None:
    """Return the difference between an exported plan's tables and a module's. None: there is none."""
    planned = {(path, name): each for path, members in exported.modules.items() for name, each in members.items()}
    shapes = {each.name: (each.num_embeddings, each.embedding_dim) for each in tables.table_set.tables}
    wanted = {place: shapes[known_as] for known_as, place in tables.places.items()}
    for path, name in wanted:
        if (path, name) not in planned:
            return f"has no table {name!r} in {path or 'the module itself'}, which the module has"
    for path, name in planned:
        if (path, name) not in wanted:
            return f"has a table {name!r} in {path or 'the module itself'}, which the module has not"
    for place, parameter in planned.items():
        shape = _shape(parameter)
        if shape is not None and shape != wanted[place]:
            rows, columns = wanted[place]
            return f"table {place[1]!r} has {shape[0]} x {shape[1]}, the module's has {rows} x {columns}"
    return None


def _shape(parameter: TorchRecParameter) -> tuple[int, int] | None:
    """Return rows and columns of a table. None: it is copied, and the plan does not have them."""
    if not parameter.shards:
        return None
    rows, columns = (
        max(each.shard_offsets[axis] + each.shard_sizes[axis] for each in parameter.shards) for axis in (0, 1)
    )
    return rows, columns
