"""Public examples of TorchRec and DLRM, planned by the drop-in and by TorchRec's planner.

Each example runs its own code up to the place where it plans or shards its model: there the model is taken. Both
planners get it with the same TorchRec topology and batch size; TorchRec's has all of its sharding types in fused
kernels (dense for data_parallel). Both plans are priced by the bundled cost models. Nothing is trained.
"""

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist
from neuroshard_api.plan import Plan
from neuroshard_api.request import Algorithm
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.errors import PlannerError
from neuroshard_planner.interop.imported_plan import imported_plan
from neuroshard_planner.interop.torchrec import placements
from neuroshard_torchrec import NeuroShardPlanner
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.planner.types import PlannerError as TorchRecPlannerError
from torchrec.distributed.types import ModuleSharder

from benchmarks.results_file import write_result

DEVICE_TYPE = "h100-80gb"
NUM_DEVICES = 8
BATCH_SIZE = 8192  # of each device
MLPERF_ROWS = (
    "40000000,39060,17295,7424,20265,3,7122,1543,63,40000000,3067956,405282,10,2209,11938,155,4,976,14,40000000,"
    "40000000,40000000,590152,12973,108,36"
)
"""Rows that the README of torchrec_dlrm gives for MLPerf DLRM v2."""


class Taken(Exception):  # noqa: N818 - it ends an example, and is no error
    """The model that an example is about to plan or to shard."""

    def __init__(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None) -> None:
        super().__init__()
        self.module = module
        self.sharders = sharders


@dataclass(frozen=True, kw_only=True, slots=True)
class Example:
    """A public example."""

    name: str
    folder: Path
    """That imports begin in."""
    script: str
    """Its module."""
    run: Callable[[ModuleType], object]
    """Runs it as its user would."""


def examples(torchrec: Path, dlrm: Path) -> Sequence[Example]:
    """Return the examples that need no GPU and no data set to get at their model."""
    return (
        Example(
            name="torchrec: golden_training",
            folder=torchrec,
            script="examples.golden_training.train_dlrm",
            run=lambda module: module.train(),
        ),
        Example(
            name="torchrec: retrieval, two towers",
            folder=torchrec,
            script="examples.retrieval.two_tower_train",
            run=lambda module: module.train(),
        ),
        Example(
            name="torchrec: bert4rec",
            folder=torchrec / "examples" / "bert4rec",
            script="bert4rec_main",
            run=lambda module: module.main(["--dataset_name", "random", "--mode", "dmp"]),
        ),
        Example(
            name="dlrm: torchrec_dlrm, MLPerf v2",
            folder=dlrm / "torchrec_dlrm",
            script="dlrm_main",
            run=lambda module: module.main(
                ["--interaction_type=dcn", "--embedding_dim=128", f"--num_embeddings_per_feature={MLPERF_ROWS}"]
            ),
        ),
    )


def model_of(example: Example) -> Taken:
    """Return the model of an example. Raises what the example raises before it plans or shards."""
    sys.path.insert(0, str(example.folder))
    try:
        module = importlib.import_module(example.script)
        for name in ("DistributedModelParallel", "DMP"):
            if hasattr(module, name):
                setattr(module, name, _take)
        if hasattr(module, "EmbeddingShardingPlanner"):
            module.EmbeddingShardingPlanner = _Planner  # type: ignore[attr-defined] # checked above
        with _process_group():
            example.run(module)
    except Taken as taken:
        return taken
    finally:
        sys.path.remove(str(example.folder))
        for name, module in list(sys.modules.items()):  # other examples have modules of the same names
            if str(getattr(module, "__file__", None) or "").startswith(str(example.folder)):
                del sys.modules[name]
    raise RuntimeError(f"{example.name} neither planned nor sharded a model")


def _take(
    module: nn.Module, *_: object, sharders: Sequence[ModuleSharder[nn.Module]] | None = None, **__: object
) -> None:
    raise Taken(module, sharders)


class _Planner:
    """Takes the place of the planner of an example."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take what TorchRec's planner takes."""

    def collective_plan(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]], *_: object) -> None:
        """Take the model."""
        raise Taken(module, sharders)


@contextmanager
def _process_group() -> Any:  # noqa: ANN401 - a context
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29517")
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def plans_of(taken: Taken) -> tuple[Plan, Plan, Plan | str]:
    """Return the drop-in's plan, its plan where rows are allowed too, and TorchRec's, which may be none: then why."""
    topology = Topology(world_size=NUM_DEVICES, local_world_size=NUM_DEVICES, compute_device="cuda", hbm_cap=80 * 2**30)
    ours = _our_plan(taken, topology, {})
    with_rows = ParameterConstraints(sharding_types=["table_wise", "column_wise", "row_wise"])
    by_rows = _our_plan(taken, topology, {table.name: with_rows for table in ours.request.tables.tables})
    kernels = ParameterConstraints(compute_kernels=["fused", "dense"])
    theirs = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=BATCH_SIZE,
        constraints={table.name: kernels for table in ours.request.tables.tables},
    )
    request = ours.request.model_copy(
        update={
            "algorithm": Algorithm.TORCHREC,
            "constraints": ours.request.constraints.model_copy(update={"tables": {}}),
        }
    )
    try:
        found = theirs.plan(taken.module, taken.sharders or _default_sharders())
        bundle = bundled_bundle(DEVICE_TYPE)
        return ours, by_rows, imported_plan(placements(found, request), request, bundle=bundle, must_fit=False)
    except (PlannerError, TorchRecPlannerError) as error:
        return ours, by_rows, " ".join(str(error).split())


def _our_plan(taken: Taken, topology: Topology, constraints: dict[str, ParameterConstraints]) -> Plan:
    planner = NeuroShardPlanner(topology, BATCH_SIZE, device_type=DEVICE_TYPE, constraints=constraints)
    planner.plan(taken.module, taken.sharders)
    assert planner.last_plan is not None, "a plan was made"
    return planner.last_plan


def _default_sharders() -> Sequence[ModuleSharder[nn.Module]]:
    from torchrec.distributed.sharding_plan import get_default_sharders  # noqa: PLC0415

    found: Sequence[ModuleSharder[nn.Module]] = get_default_sharders()
    return found


def row(example: Example) -> str:
    """Return the line of an example, with the reason where it does not run here."""
    try:
        taken = model_of(example)
    except Exception as error:  # noqa: BLE001 - it is somebody else's program
        return f"| {example.name} | | not run: {type(error).__name__}: {' '.join(str(error).split())} | | |"
    ours, by_rows, theirs = plans_of(taken)
    costs = (_cost(ours), _cost(by_rows), f"no price: {theirs}" if isinstance(theirs, str) else _cost(theirs))
    return f"| {example.name} | {len(ours.tables)} | {' | '.join(costs)} |"


def _cost(plan: Plan) -> str:
    types = ", ".join(sorted({table.sharding_type.value for table in plan.tables}))
    return f"{plan.predicted.total_ms:.3f} ({types})"


def main(arguments: Sequence[str]) -> None:
    """Plan all examples and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("torchrec", type=Path, help="clone of meta-pytorch/torchrec")
    parser.add_argument("dlrm", type=Path, help="clone of facebookresearch/dlrm")
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    lines = [
        "# Public examples of TorchRec and DLRM, planned by both planners",
        "",
        f"{NUM_DEVICES} x {DEVICE_TYPE}, {BATCH_SIZE} samples per device, one lookup per feature, as models alone say.",
        "Milliseconds of the embedding part of a step by the bundled cost models (simulated). Nothing is trained.",
        "",
        "| example | tables | drop-in | drop-in, rows allowed | TorchRec |",
        "|---|---|---|---|---|",
    ]
    for example in examples(options.torchrec.resolve(), options.dlrm.resolve()):
        lines.append(row(example))
        print(lines[-1], flush=True)
    print(write_result("public-examples", lines, hardware="any"))


if __name__ == "__main__":
    main(sys.argv[1:])
