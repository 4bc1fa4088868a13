"""One of two ranks: sends the largest gradients under a layout with sharded units and a table on every device.

Argument: folder, to which rank 0 writes what each rank found.
"""

import json
import logging
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from neuroshard_api.documents.dense_layout import DenseGroup, DenseLayout, DenseMemory, DenseStrategy, PlannedUnit
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.model import Model
from neuroshard_api.job.training import Training
from neuroshard_trainer.communication.gradient_codec import with_gradient_codec
from neuroshard_trainer.dense.optimizers import dense_optimizer, embedding_sharder, replicated_optimizer
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.model.sharded_model import sharded_model
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from neuroshard_trainer.state.checkpoint import CheckpointFolder, CheckpointManifest
from neuroshard_trainer.state.training_state import TrainingState, widths_of
from support import builders
from support.planner.placements import by_columns, everywhere, given_plan
from support.trainer.bags import lookups_of
from support.trainer.rank_server import joined_ranks
from support.trainer.trainer_builders import TABLES, job_data
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

CPU = torch.device("cpu")
WORLD = builders.topology(2)
STEPS = 4
FIRST, SECOND = "dense_arch.model._mlp.0", "dense_arch.model._mlp.1"


def main(folder: str) -> None:
    """Train under one layout, go on under another, and show what was left over."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, resumed(Path(folder)))
        if dist.get_rank() == 0:
            Path(folder, "found.json").write_text(json.dumps(everyone))


def plan_with(*sharded: str) -> GivenPlan:
    """Return a plan with a table on every device, in which these units are sharded."""
    user, item, country = TABLES
    memory = DenseMemory(
        weights_bytes=1, gradient_bytes=1, optimizer_state_bytes=1, activation_bytes=1, transient_bytes=1
    )
    request = PlanRequest(
        tables=builders.table_set(*TABLES),
        topology=WORLD,
        optimizer=Optimizer.SGD,
        gradients=GradientExchange(type=GradientType.THRESHOLD),
        dense=builders.dense_profile(*TABLES),
    )
    units = [
        PlannedUnit(module=each, strategy=DenseStrategy.ZERO3, group=DenseGroup.WORLD)
        if each in sharded
        else PlannedUnit(module=each, strategy=DenseStrategy.REPLICATE)
        for each in (FIRST, SECOND)
    ]
    layout = DenseLayout(
        units=tuple(units),
        num_parameters=1,
        memory=memory,
        replicated_bytes=1,
        compute_ms=1,
        exposed_ms=1,
        replicated_ms=1,
        source="simulated:test",
    )
    placed = by_columns(user, (0, 32)), by_columns(item, (1, 32)), everywhere(country, WORLD)
    return given_plan(request, *placed).model_copy(update={"dense": layout})


def state_under(plan: GivenPlan) -> TrainingState:
    """Return the state of a fresh model with a codec of gradients."""
    sizes = {"denseArchLayerSizes": [16, 8]}
    model = sharded_model(
        RecommendationModel(validated(Model, job_data(model=sizes)["spec"]["model"], where="spec.model"), TABLES),
        sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu"),
        embedding_sharder(Optimizer.SGD, learning_rate=0.1, device=CPU),
        device=CPU,
        given=plan,
    )
    return TrainingState(
        model=model,
        dense_optimizer=dense_optimizer(model, Training(), tables_path=TABLES_PATH),
        replicated_optimizer=replicated_optimizer(model, Optimizer.SGD, learning_rate=0.1),
        widths=widths_of(prove_sharding(model, plan)),
        gradients=with_gradient_codec(model, plan, device=CPU),
    )


def left_over(state: TrainingState) -> dict[str, torch.Tensor]:
    """Return the carried gradients of all ranks, by parameter, without zeros."""
    found = state.tensors().get("carried_gradients", {})
    return {name: tensor.clone() for name, tensor in found.items() if tensor.any()}


def resumed(folder: Path) -> dict[str, Any]:
    """Return the places of hooks, and of leftover gradients, before and after the layout changed."""
    state = state_under(plan_with(FIRST))
    for step in range(STEPS):
        seed = 10 * step + dist.get_rank()
        generator = torch.Generator().manual_seed(seed)
        state.dense_optimizer.zero_grad()
        torch.autograd.backward(
            state.model(torch.rand(8, 3, generator=generator), lookups_of(TABLES, seed=seed)).square().mean()
        )
        state.dense_optimizer.step()
    (tables,) = (each for each in state.model.modules() if isinstance(each, ShardedEmbeddingBagCollection))
    (of_tables,) = (each for each in tables._lookups if isinstance(each, DistributedDataParallel))

    group = dist.group.WORLD
    assert group is not None
    manifest = CheckpointManifest(
        step=STEPS,
        position=0,
        world_size=2,
        plan_sha256="0" * 64,
        table_widths=dict(state.widths),
        signature={},
        carries_gradients=True,
    )
    checkpoints = CheckpointFolder(folder / "checkpoints", keep=1, group=group)
    checkpoints.prepare()
    path = checkpoints.save(state.tensors(), manifest)
    before = left_over(state)

    def names_of(*units: str) -> set[str]:
        return {name for name in state.dense_optimizer.params if name.startswith(units)}

    other = state_under(plan_with(SECOND))
    other.load(checkpoints, path, manifest.table_widths, has_carried=True)
    after = left_over(other)
    wrapped: Any = state.model._dmp_wrapped_module
    return {
        "hooks": {
            "dense part": len(wrapped._comm_hooks),
            "tables": len(of_tables._comm_hooks),
        },
        "carried": sorted({*before} - names_of(FIRST)),
        "carried by a sharded unit": sorted({*before} & names_of(FIRST)),
        "resumed": sorted(after),
        "replicated in both": sorted({*before} - names_of(FIRST, SECOND)),
        "equal": all(torch.allclose(tensor, before[name], atol=0, rtol=1e-6) for name, tensor in after.items()),
    }
