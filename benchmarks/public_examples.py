"""Public examples of TorchRec and DLRM, planned by the drop-in and by TorchRec's planner, and trained under both plans.

Each example runs its own code up to the place where it plans or shards its model: there the model is taken. Both
planners get it with the same TorchRec topology and batch size; TorchRec's has all of its sharding types in fused
kernels (dense for data_parallel). Both plans are priced by the bundled cost models.

Then each is trained on two and on four processes, with smaller tables and by SGD, under a plan of each planner: the
drop-in's has a table that is cut by columns, and one that is cut by rows.
"""

import argparse
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import Algorithm
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_dlrm.torchrec_plan import placements
from neuroshard_planner.errors import PlannerError
from neuroshard_planner.plans.imported_plan import imported_plan
from neuroshard_torchrec import NeuroShardPlanner
from torch import nn
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.planner.types import PlannerError as TorchRecPlannerError
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder

from benchmarks.example_scripts import Example, examples, imported, join_alone, replace_planner, replace_sharding
from benchmarks.results_file import write_result
from benchmarks.sharded_training import torchrun
from benchmarks.trained_example import MOST_LOOKUPS, PLANNED_SAMPLES, PLANNERS, STEPS, WORTH_A_CUT

DEVICE_TYPE = "h100-80gb"
NUM_DEVICES = 8
BATCH_SIZE = 8192  # of each device
WORLD_SIZES = (2, 4)
TOLERANCE = 1e-5
"""Of the largest number of a step, or of a table: sums of 32 bits in another order, over ten steps."""


class Taken(Exception):  # noqa: N818 - it ends an example, and is not an error
    """The model that an example is about to plan or to shard."""

    def __init__(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None) -> None:
        super().__init__()
        self.module = module
        self.sharders = sharders


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcomes:
    """What the steps of an example gave under one plan."""

    places: Mapping[str, Sequence[str]]
    """Sharding type and ranks of each table."""
    by_rank: Sequence[Sequence[torch.Tensor]]
    """What the model returned in each step, by rank."""
    tables: Mapping[str, torch.Tensor]
    """Whole weights after the updates of all steps but the last."""

    @property
    def types(self) -> str:
        """Sharding types of the plan."""
        return ", ".join(sorted({place[0] for place in self.places.values()}))


def model_of(example: Example) -> Taken:
    """Return the model of an example. Raises what the example raises before it plans or shards."""
    try:
        with imported(example) as script:
            replace_sharding(script, _take)
            replace_planner(script, _Planner)
            join_alone()
            example.run(script)
    except Taken as taken:
        return taken
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    raise RuntimeError(f"{example.name} neither planned nor sharded a model")


def _take(
    module: nn.Module, *_: object, sharders: Sequence[ModuleSharder[nn.Module]] | None = None, **__: object
) -> None:
    raise Taken(module, sharders)


class _Planner:
    """Takes the place of the planner of an example."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take what TorchRec's planner takes."""

    def collective_plan(
        self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]] | None = None, *_: object
    ) -> None:
        """Take the model."""
        raise Taken(module, sharders)


def plans_of(taken: Taken) -> tuple[Plan, Plan | str]:
    """Return the drop-in's plan, and TorchRec's, which may be none: then why."""
    topology = Topology(world_size=NUM_DEVICES, local_world_size=NUM_DEVICES, compute_device="cuda", hbm_cap=80 * 2**30)
    planner = NeuroShardPlanner(topology, BATCH_SIZE, device_type=DEVICE_TYPE)
    planner.plan(taken.module, taken.sharders)
    ours = planner.last_plan
    assert ours is not None, "a plan was made"
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
        found = theirs.plan(taken.module, taken.sharders or get_default_sharders())
        bundle = bundled_bundle(DEVICE_TYPE)
        return ours, imported_plan(placements(found, request), request, bundle=bundle, must_fit=False)
    except (PlannerError, TorchRecPlannerError) as error:
        return ours, " ".join(str(error).split())


def planned_row(example: Example) -> str:
    """Return the line of an example, with the reason where it does not run here."""
    try:
        taken = model_of(example)
    except Exception as error:  # noqa: BLE001 - it is somebody else's program
        return f"| {example.name} | | not run: {type(error).__name__}: {' '.join(str(error).split())} | |"
    ours, theirs = plans_of(taken)
    costs = (_cost(ours), f"no price: {theirs}" if isinstance(theirs, str) else _cost(theirs))
    return f"| {example.name} | {len(ours.tables)} | {' | '.join(costs)} |"


def _cost(plan: Plan) -> str:
    types = ", ".join(sorted({table.sharding_type.value for table in plan.tables}))
    return f"{plan.predicted.total_ms:.3f} ({types})"


def trained_row(example: Example, torchrec: Path, dlrm: Path, *, count: int) -> str:
    """Train an example on ``count`` processes under the plans of both planners, and return its line."""
    head = f"| {example.name} | {count}"
    found = [_trained(example, planner, torchrec, dlrm, count=count) for planner in PLANNERS]
    problem = next((each for each in found if isinstance(each, str)), None)
    if problem is not None:
        return f"{head} | not trained: {problem} | | | | | | |"
    ours, theirs = (each for each in found if isinstance(each, Outcomes))
    assert ours.tables.keys() == theirs.tables.keys(), "one model"
    first, in_all = (
        max(
            _difference(one, other)
            for own, others in zip(ours.by_rank, theirs.by_rank, strict=True)
            for one, other in list(zip(own, others, strict=True))[steps]
        )
        for steps in (slice(1), slice(None))
    )
    of_tables = max(_difference(ours.tables[name], theirs.tables[name]) for name in ours.tables)
    equal = "equal" if max(in_all, of_tables) <= TOLERANCE else "**not equal**"
    moved = sum(ours.places[name] != theirs.places[name] for name in ours.places)
    cells = (ours.types, theirs.types, f"{moved} of {len(ours.places)}")
    differences = (f"{first:.1e}", f"{in_all:.1e}", f"{of_tables:.1e}: {equal}")
    return f"{head} | {example.trained} | {' | '.join((*cells, *differences))} |"


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference over the largest number; infinite where a number is not finite."""
    largest = float((found - expected).abs().max())
    if not largest:
        return 0.0
    difference = largest / float(expected.abs().max()) if expected.any() else math.inf
    return difference if math.isfinite(difference) else math.inf


def _trained(example: Example, planner: str, torchrec: Path, dlrm: Path, *, count: int) -> Outcomes | str:
    """Return the results of all processes, or the first error of a rank where one failed."""
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(__file__).with_name("trained_example.py")
        command = [
            sys.executable,
            *torchrun(script, example.key, planner, str(torchrec), str(dlrm), scratch, count=count),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(  # noqa: S603 - a script of this folder
            command, check=False, env=environment, capture_output=True, text=True
        )
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            errors = re.findall(r"^\[rank\d\]: (\w*Error: .*)$", done.stderr, flags=re.MULTILINE)
            return errors[0] if errors else f"exit code {done.returncode}"
        found = [torch.load(Path(scratch, f"{rank}.pt")) for rank in range(count)]
    return Outcomes(places=found[0]["places"], by_rank=[each["outcomes"] for each in found], tables=found[0]["tables"])


def main(arguments: Sequence[str]) -> None:
    """Plan and train all examples, and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("torchrec", type=Path, help="clone of meta-pytorch/torchrec")
    parser.add_argument("dlrm", type=Path, help="clone of facebookresearch/dlrm")
    options = parser.parse_args(arguments)
    torchrec, dlrm = options.torchrec.resolve(), options.dlrm.resolve()
    logging.disable(logging.WARNING)
    found = examples(torchrec, dlrm)
    planned = [
        "# Public examples of TorchRec and DLRM under both planners",
        "",
        "## Planned",
        "",
        f"{NUM_DEVICES} x {DEVICE_TYPE}, {BATCH_SIZE} samples per device, one lookup per feature, as models alone say.",
        "Milliseconds of the embedding part of a step by the bundled cost models (simulated).",
        "",
        "| example | tables | drop-in | TorchRec |",
        "|---|---|---|---|",
    ]
    for example in found:
        planned.append(planned_row(example))
        print(planned[-1], flush=True)
    trained = [
        "",
        "## Trained",
        "",
        f"The examples' own code on gloo processes without a GPU, {STEPS} steps under each planner's plan for",
        f"{PLANNED_SAMPLES} samples per process, from equal weights on equal batches. SGD trains tables in place of",
        "row-wise Adagrad, which keeps a state of each column shard, and of Adam, which FBGEMM does not run on CPUs.",
        "Differences are the largest of any number that the model returns on any rank (loss and logits, or scores),",
        "over the largest such number, in the first step and in all; and the largest of a weight of the tables after",
        f"the updates, over the largest weight of its table. Equal means at most {TOLERANCE:g}: sums of 32 bits in",
        f"another order. Planners get {MOST_LOOKUPS} lookups for the first table, and an n-th of it for the n-th, so",
        f"that plans are not alike. The drop-in gets {WORTH_A_CUT:,.0f} for the first one, which it cuts by columns,",
        "and `row_wise` for the second; a single table of a sequence is by rows.",
        "",
        "| example | processes | changed | drop-in | TorchRec | placed otherwise | first step | all steps | tables |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for example in found:
        for count in WORLD_SIZES:
            trained.append(trained_row(example, torchrec, dlrm, count=count))
            print(trained[-1], flush=True)
    print(write_result("public-examples", [*planned, *trained], hardware="any"))


if __name__ == "__main__":
    main(sys.argv[1:])
