"""A public example on one of two processes, under the plan of one planner; for public_examples.

The example runs its own code. Its model is sharded under the plan, and its tables begin with weights that are equal
under all plans; then all random generators are seeded, so that its batches are equal too. It ends after a few steps.
"""

import json
import logging
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_torchrec import NeuroShardPlanner, model_tables
from neuroshard_trainer.equal_weights import set_equal_weights
from torch import nn
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.sharding_plan import get_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from benchmarks.example_scripts import examples, imported, replace_planner, replace_sharding

STEPS = 10
PLANNED_SAMPLES = 8192  # of each process; the examples' own batches are small, so that no plan would cut a table
MOST_LOOKUPS = 200
"""That both planners are given for the first table; the n-th has an n-th of it, so that plans are not alike."""
PLANNERS = ("drop-in", "TorchRec")


class Trained(Exception):  # noqa: N818 - it ends an example, and is no error
    """The example has taken its steps."""


class Training:
    """Shards the model of an example under a planner's plan, and notes the outcome of each step.

    Args:
        planner: one of PLANNERS.
        may_be_cut: whether plans may cut tables.
    """

    def __init__(self, planner: str, *, may_be_cut: bool) -> None:
        self._planner = planner
        self._types = ["table_wise", "column_wise"] if may_be_cut else ["table_wise"]
        self.outcomes: list[float] = []
        """The loss of each step; where the model returns none, the mean square of what it returns."""
        self.plan: ShardingPlan | None = None

    def shard(
        self,
        module: nn.Module,
        *_: object,
        device: torch.device,
        sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
        **__: object,
    ) -> nn.Module:
        """Return what the example trains, in the place of its own DistributedModelParallel."""
        used = sharders or get_default_sharders()
        self.plan = self._planned(module, used)
        model: nn.Module = DistributedModelParallel(module, device=device, plan=self.plan, sharders=used)
        set_equal_weights(model)
        model.register_forward_hook(self._note)
        _seed(1 + dist.get_rank())
        return model

    def _planned(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> ShardingPlan:
        topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
        tables = model_tables(module, sharders=sharders).table_set.tables
        limits = {
            table.name: ParameterConstraints(
                sharding_types=self._types,
                compute_kernels=["fused"],
                min_partition=32,
                pooling_factors=[float(MOST_LOOKUPS // (index + 1))],
            )
            for index, table in enumerate(tables)
        }
        if self._planner == PLANNERS[0]:
            ours = NeuroShardPlanner(topology, PLANNED_SAMPLES, device_type="h100-80gb", constraints=limits)
            return ours.collective_plan(module, sharders, dist.group.WORLD)
        theirs = EmbeddingShardingPlanner(topology=topology, batch_size=PLANNED_SAMPLES, constraints=limits)
        return theirs.collective_plan(module, sharders, dist.group.WORLD)

    def _note(self, model: nn.Module, _: object, found: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
        if not model.training:
            return
        outcome = found[0] if isinstance(found, tuple) else found.square().mean()
        self.outcomes.append(float(outcome.detach()))
        if len(self.outcomes) == STEPS:
            raise Trained


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what examples draw from


class _PlannerOfTheExample:
    """Takes the place of an example's own planner: the model is planned where it is sharded."""

    def __init__(self, *_: object, **__: object) -> None:
        """Take what TorchRec's planner takes."""

    def collective_plan(self, *_: object) -> None:
        """Plan nothing."""


def main(key: str, planner: str, torchrec: str, dlrm: str, folder: str) -> None:
    """Train, write what was found to a file of this rank, and end at once: workers of an example may still run."""
    logging.disable(logging.WARNING)
    example = next(each for each in examples(Path(torchrec), Path(dlrm)) if each.key == key)
    training = Training(planner, may_be_cut=example.may_be_cut)
    _seed(int(os.environ["RANK"]))
    try:
        with imported(example) as script:
            replace_sharding(script, training.shard)
            replace_planner(script, _PlannerOfTheExample)
            example.train(script)
    except Trained:
        pass
    assert training.plan is not None, "the example sharded no model"
    places = {
        f"{path}.{name}": [each.sharding_type, *map(str, each.ranks)]
        for path, tables in training.plan.plan.items()
        for name, each in tables.items()
    }
    found = {"outcomes": training.outcomes, "places": places}
    Path(folder, f"{os.environ['RANK']}.json").write_text(json.dumps(found), encoding="utf-8")
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
