"""Four ranks, as two nodes of two: dense parts in random layouts train as replicas do, next to tables cut by columns.

Arguments: folder, number of plans, and files of a job and of its plan. Rank 0 writes the largest differences from
replicas, and which layouts there were, to FOLDER/differences.json.
"""

import json
import logging
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from neuroshard_api.documents.dense_layout import DenseGroup, DenseLayout, DenseMemory, DenseStrategy, PlannedUnit
from neuroshard_api.documents.document import validated
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.job.model import Model
from neuroshard_api.job.training import DenseOptimizer, Training
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.dense.operators import operators_of
from neuroshard_trainer.dense.optimizers import dense_optimizer, embedding_sharder
from neuroshard_trainer.dense.parallel import prove_dense
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.model.sharded_model import sharded_model
from neuroshard_trainer.ranks.process import Process, new_group
from neuroshard_trainer.run import SHARDING_FILE, RunPaths, set_up
from neuroshard_trainer.sharding.live_sharding import LiveSharding, prove_sharding
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from neuroshard_trainer.state.checkpoint import CheckpointFolder, CheckpointManifest
from neuroshard_trainer.state.training_state import TrainingState, widths_of
from support import builders
from support.planner.placements import by_columns, given_plan
from support.trainer.bags import lookups_of
from support.trainer.rank_server import joined_ranks
from support.trainer.trainer_builders import TABLES, job_data
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.tensor import DTensor
from torch.nn.functional import binary_cross_entropy_with_logits

CPU = torch.device("cpu")
STEPS = 5
SAMPLES = 8  # of each rank
WORLD = builders.topology(4, num_nodes=2)
SIZES = {"architecture": "DCNv2", "crossNetwork": {"numLayers": 3, "lowRankDim": 5}}
WUKONG = {
    "architecture": "Wukong",
    "wukong": {"numLayers": 3, "numInteractions": 3, "lowRankDim": 2, "layerSizes": [9]},
}
FIRST_OF_WUKONG = 9
"""Number of the first plan whose model is Wukong; the ones before are of DCNv2."""
SPLIT_IN_EACH = "interaction.interaction.layers.1"
"""Split in each plan of Wukong, by each group in turn; other units are by chance."""
UNITS = (
    "dense_arch.model._mlp.0",
    "dense_arch.model._mlp.1",
    "interaction.interaction.layers.0",
    "interaction.interaction.layers.1",
    "interaction.interaction.layers.2",
    "over_arch.model.0._mlp.0",
    "over_arch.model.1",
)
"""Of both models; the projection of Wukong's narrow feature is in none and replicated."""


def main(folder: str, count: int, job_file: str, plan_file: str) -> None:
    """Check plans of random layouts, then train the job."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        found = check_layouts(Path(folder), count)
        found["trained"] = train_a_job(Path(folder), Path(job_file), Path(plan_file))
        if dist.get_rank() == 0:
            Path(folder, "differences.json").write_text(json.dumps(found))


def random_unit(rng: random.Random, module: str, *, may_split: bool) -> PlannedUnit:
    """Return a module of any strategy; where it may be split, it is in half of the cases that permit it."""
    strategy = rng.choice(list(DenseStrategy))
    group = None if strategy is DenseStrategy.REPLICATE else rng.choice(list(DenseGroup))
    checkpointed = rng.random() < 0.5
    split = may_split and strategy is DenseStrategy.ZERO3 and not checkpointed and rng.random() < 0.5
    return PlannedUnit(module=module, strategy=strategy, group=group, checkpointed=checkpointed, split=split)


def splittable_units(sizes: Mapping[str, Any]) -> set[str]:
    """Return the modules of a model that have two operators or more."""
    settings = validated(Model, job_data(model=sizes)["spec"]["model"], where="spec.model")
    model = RecommendationModel(settings, TABLES)
    return {module for module in UNITS if len(operators_of(model.get_submodule(module))) > 1}


def split_by(unit: PlannedUnit, group: DenseGroup) -> PlannedUnit:
    """Return a unit that is split."""
    return PlannedUnit(module=unit.module, strategy=DenseStrategy.ZERO3, group=group, split=True)


def plan_with(units: tuple[PlannedUnit, ...] | None) -> GivenPlan:
    """Return tables by columns, and the dense part in a layout; None: replicated."""
    user, item, country = TABLES
    request = PlanRequest(tables=builders.table_set(*TABLES), topology=WORLD, optimizer=Optimizer.SGD)
    placed = by_columns(user, (1, 12), (0, 20)), by_columns(item, (2, 16), (3, 16)), by_columns(country, (1, 16))
    if units is None:
        return given_plan(request, *placed)
    memory = DenseMemory(
        weights_bytes=1, gradient_bytes=1, optimizer_state_bytes=1, activation_bytes=1, transient_bytes=1
    )
    layout = DenseLayout(
        units=units,
        num_parameters=1,
        memory=memory,
        replicated_bytes=1,
        compute_ms=1,
        exposed_ms=1,
        replicated_ms=1,
        source="simulated:test",
    )
    counted = request.model_copy(update={"dense": builders.dense_profile(*TABLES)})
    return given_plan(counted, *placed).model_copy(update={"dense": layout})


def state_under(plan: GivenPlan, training: Training, sizes: Mapping[str, Any], *, seed: int) -> TrainingState:
    """Return the state of a fresh model, whose dense weights begin differently on each rank where they are shared."""
    own = dist.get_rank() if plan.dense is not None else 0
    torch.manual_seed(1000 * own + seed)
    model = sharded_model(
        RecommendationModel(validated(Model, job_data(model=sizes)["spec"]["model"], where="spec.model"), TABLES),
        sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu"),
        embedding_sharder(Optimizer.SGD, learning_rate=0.1, device=CPU),
        device=CPU,
        given=plan,
    )
    optimizer = dense_optimizer(model, training, tables_path=TABLES_PATH)
    for group in optimizer.param_groups:
        if training.dense_optimizer is DenseOptimizer.ADAM:
            group["foreach"] = True  # as on a GPU
    widths = widths_of(prove_sharding(model, plan))
    return TrainingState(model=model, dense_optimizer=optimizer, replicated_optimizer=None, widths=widths)


def train(state: TrainingState, training: Training) -> list[float]:
    """Take the steps and return this rank's losses."""
    steps = StepOptimizer(state.model, state.dense_optimizer, None, training, step=0)
    losses = []
    for step in range(STEPS):
        seed = 10 * step + dist.get_rank()
        generator = torch.Generator().manual_seed(seed)
        steps.zero_grad()
        logits = state.model(torch.rand(SAMPLES, 3, generator=generator), lookups_of(TABLES, seed=seed))
        labels = torch.randint(2, (SAMPLES,), generator=generator).float()
        loss = binary_cross_entropy_with_logits(logits, labels)
        torch.autograd.backward(loss)
        steps.step()
        losses.append(float(loss.detach()))
    return losses


def whole(state: TrainingState) -> dict[str, torch.Tensor]:
    """Return all tensors of a state but the tables, whole; all ranks must call this."""
    found: Mapping[str, Any] = flatten_state_dict(dict(state.tensors()))[0]
    return {
        name: (each.full_tensor() if isinstance(each, DTensor) else each).detach().clone()
        for name, each in sorted(found.items())
        if isinstance(each, torch.Tensor) and f"{TABLES_PATH}." not in name
    }


def check_layouts(folder: Path, count: int) -> dict[str, Any]:
    """Train each layout and replicas alike, and go on from each checkpoint under the next layout."""
    rng = random.Random(3)  # noqa: S311 - draws test data
    group = dist.group.WORLD
    assert group is not None
    largest = {"loss": 0.0, "weights": 0.0}
    kinds = set()
    before: tuple[CheckpointFolder, Path, CheckpointManifest, dict[str, torch.Tensor]] | None = None
    for seed in range(count):
        training = Training(
            dense_optimizer=DenseOptimizer.ADAM if seed % 3 else DenseOptimizer.SGD,
            dense_learning_rate="0.001" if seed % 3 else "0.1",
            gradient_clip_norm="0.05" if seed % 2 else None,
        )
        sizes = SIZES if seed < FIRST_OF_WUKONG else WUKONG
        may_split = splittable_units(sizes)
        units = tuple(random_unit(rng, module, may_split=module in may_split) for module in UNITS)
        if seed >= FIRST_OF_WUKONG:
            shared_by = list(DenseGroup)[seed % 2]
            units = tuple(split_by(unit, shared_by) if unit.module == SPLIT_IN_EACH else unit for unit in units)
        plan = plan_with(units)
        assert plan.dense is not None
        kinds |= {f"{unit.strategy}/{unit.group}/{unit.checkpointed}" for unit in plan.dense.units}
        kinds |= {f"split/{unit.group}" for unit in plan.dense.units if unit.split}
        state = state_under(plan, training, sizes, seed=seed)
        assert prove_dense(state.model, plan) == plan.dense.units
        require_refused(state, plan)
        replicas = state_under(plan_with(None), training, sizes, seed=seed)
        losses, expected = train(state, training), train(replicas, training)
        largest["loss"] = max(largest["loss"], *(abs(a - b) for a, b in zip(losses, expected, strict=True)))
        own, theirs = whole(state), whole(replicas)
        assert own.keys() == theirs.keys()
        differences = [float((own[name] - theirs[name]).abs().max()) for name in own if name.startswith("model.")]
        largest["weights"] = max(largest["weights"], *differences)
        if before is not None and training.dense_optimizer is DenseOptimizer.ADAM:
            checkpoints, path, manifest, saved = before
            fresh = state_under(plan, training, sizes, seed=seed + 100)
            fresh.load(checkpoints, path, manifest.table_widths)
            for name, tensor in whole(fresh).items():
                assert torch.equal(tensor, saved[name]), f"{name} under the layout of plan {seed}"
        before = None
        if training.dense_optimizer is DenseOptimizer.ADAM:
            manifest = CheckpointManifest(
                step=STEPS,
                position=0,
                world_size=4,
                plan_sha256="0" * 64,
                table_widths=dict(state.widths),
                signature={},
            )
            checkpoints = CheckpointFolder(folder / f"plan-{seed}", keep=1, group=group)
            checkpoints.prepare()
            before = checkpoints, checkpoints.save(state.tensors(), manifest), manifest, own
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, largest)
    return {"largest": {name: max(each[name] for each in everyone) for name in largest}, "kinds": sorted(kinds)}


def require_refused(state: TrainingState, plan: GivenPlan) -> None:
    """Hold the model against plans that keep a unit otherwise, name none of it, or leave it out; all must refuse."""
    assert plan.dense is not None
    first, *others = plan.dense.units
    wrong = [(first, (first.model_copy(update={"checkpointed": not first.checkpointed}), *others))]
    split = next((unit for unit in plan.dense.units if unit.split), None)
    if split is not None:
        whole = split.model_copy(update={"split": False})
        wrong.append((split, tuple(whole if unit is split else unit for unit in plan.dense.units)))
    for unit, units in wrong:
        layout = plan.dense.model_copy(update={"units": units})
        with pytest.raises(InputError, match=re.escape(repr(unit.module))):
            prove_dense(state.model, plan.model_copy(update={"dense": layout}))
    missing = first.model_copy(update={"module": "nowhere"})
    layout = plan.dense.model_copy(update={"units": (missing, *others)})
    with pytest.raises(InputError, match=r"module 'nowhere' .*no such module"):
        prove_dense(state.model, plan.model_copy(update={"dense": layout}))
    sharded = next((unit for unit in plan.dense.units if unit.group is not None), None)
    if sharded is not None:
        layout = plan.dense.model_copy(
            update={"units": tuple(each for each in plan.dense.units if each is not sharded)}
        )
        with pytest.raises(
            InputError, match=rf"parameter '{re.escape(sharded.module)}\..*the plan has no unit with it"
        ):
            prove_dense(state.model, plan.model_copy(update={"dense": layout}))


def train_a_job(folder: Path, job_file: Path, plan_file: Path) -> dict[str, Any]:
    """Train a job with evaluations and checkpoints, then 4 steps more, and return what rank 0 wrote down."""
    plan = GivenPlan.read(plan_file)
    assert plan.dense is not None
    process = Process(rank=dist.get_rank(), world_size=dist.get_world_size(), device=CPU, group=new_group(60))
    run_dir = folder / "run"
    run_dir.mkdir(exist_ok=True)
    places = RunPaths(plan_file=plan_file, run_dir=run_dir, data_dir=folder)
    first_steps = []
    job = read_job(job_file)
    for max_steps in (8, 12):
        training = job.spec.training.model_copy(update={"max_steps": max_steps})
        spec = job.spec.model_copy(update={"training": training})
        loop = set_up(job.model_copy(update={"spec": spec}), plan, places, process)
        first_steps.append(loop.step)
        loop.run()
    live = LiveSharding.read(run_dir / SHARDING_FILE)
    return {"first_steps": first_steps, "is_planned": live.dense == plan.dense.units}
