"""A public example on one of several processes, under the plan of one planner; for public_examples.

The example runs its own code. Its model is sharded under the plan, and its tables begin with weights that are equal
under all plans; then all random generators are seeded, so that its batches are equal too. It ends after a few steps.

TorchRec's planner keeps tables whole, or cuts them by columns. In the drop-in's plan the first table is cut by columns,
and the second by rows; a single one by columns on two processes, and by rows on more.
"""

import logging
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.documents.tables import Pooling
from neuroshard_torchrec import NeuroShardPlanner, model_tables
from neuroshard_trainer.dense.optimizers import replicated_weights
from neuroshard_trainer.model.initial_weights import set_initial_weights
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
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
WORTH_A_CUT = 20_000.0
"""Lookups that the drop-in is given for the table that it is to cut by columns."""
PLANNERS = ("drop-in", "TorchRec")


class Trained(Exception):  # noqa: N818 - it ends an example, and is not an error
    """The example has taken its steps."""


class Training:
    """Shards the model of an example under a planner's plan, and notes the outcome of each step.

    Args:
        planner: one of PLANNERS.
    """

    def __init__(self, planner: str) -> None:
        self._planner = planner
        self.outcomes: list[torch.Tensor] = []
        """All numbers that the model returns in each step: loss and logits, where it returns both."""
        self.constraints: Mapping[str, ParameterConstraints] = {}
        """Those that the example gives its own planner."""
        self.plan: ShardingPlan | None = None
        self.model: nn.Module | None = None

    def shard(
        self,
        module: nn.Module,
        *_: object,
        device: torch.device,
        sharders: Sequence[ModuleSharder[nn.Module]] | None = None,
        **__: object,
    ) -> nn.Module:
        """Return the module that the example trains, in the place of its own DistributedModelParallel."""
        used = [_by_sgd_in_all_types(each) for each in sharders or get_default_sharders()]
        _train_by_sgd(module)
        self.plan = self._planned(module, used)
        model: nn.Module = DistributedModelParallel(module, device=device, plan=self.plan, sharders=used)
        set_initial_weights(model, seed=0)
        self.model = model
        model.register_forward_hook(self._note)
        _seed(1 + dist.get_rank())
        return model

    def planner(
        self, *_: object, constraints: Mapping[str, ParameterConstraints] | None = None, **__: object
    ) -> "_PlannerOfTheExample":
        """Return the replacement of the example's planner, whose constraints are kept."""
        self.constraints = constraints or {}
        return _PlannerOfTheExample()

    def _planned(self, module: nn.Module, sharders: Sequence[ModuleSharder[nn.Module]]) -> ShardingPlan:
        topology = Topology(world_size=dist.get_world_size(), compute_device="cpu")
        tables = model_tables(module, sharders=sharders).table_set.tables
        limits = {table.name: _limit(MOST_LOOKUPS // (index + 1)) for index, table in enumerate(tables)}
        if self._planner == PLANNERS[0]:
            by_rows = tables[1 if len(tables) > 1 else 0].name
            # Each looked-up row of a sequence travels: with WORTH_A_CUT lookups no memory is left for shards.
            is_sequence = tables[0].pooling is Pooling.NONE
            limits[tables[0].name] = _limit(1.0 if is_sequence else WORTH_A_CUT)
            if is_sequence or len(tables) > 1 or dist.get_world_size() > 2:  # noqa: PLR2004 - one table, cut in two ways
                limits[by_rows] = _limit(1.0, types=["row_wise"])
            limits.update(self.constraints)
            ours = NeuroShardPlanner(topology, PLANNED_SAMPLES, device_type="h100-80gb", constraints=limits)
            return ours.collective_plan(module, sharders, dist.group.WORLD)
        limits.update(self.constraints)
        theirs = EmbeddingShardingPlanner(topology=topology, batch_size=PLANNED_SAMPLES, constraints=limits)
        return theirs.collective_plan(module, sharders, dist.group.WORLD)

    def _note(self, model: nn.Module, _: object, found: object) -> None:
        if not model.training:
            return
        self.outcomes.append(torch.cat([each.detach().double().flatten() for each in _numbers(found)]))
        if len(self.outcomes) == STEPS:
            raise Trained


def _limit(lookups: float, types: Sequence[str] = ("table_wise", "column_wise")) -> ParameterConstraints:
    return ParameterConstraints(
        sharding_types=list(types), compute_kernels=["fused"], min_partition=32, pooling_factors=[float(lookups)]
    )


def _by_sgd_in_all_types(sharder: ModuleSharder[nn.Module]) -> ModuleSharder[nn.Module]:
    """Return a sharder that fuses SGD, and also offers on a CPU what it offers on a GPU: TorchRec trains that there."""
    fused = getattr(sharder, "fused_params", None) or {}
    learning_rate = {name: value for name, value in fused.items() if name == "learning_rate"}
    sharder._fused_params = {"optimizer": EmbOptimType.EXACT_SGD, **learning_rate}  # noqa: SLF001 - it has no public name
    offered = type(sharder).sharding_types
    sharder.sharding_types = lambda _: offered(sharder, "cuda")  # of this object alone
    return sharder


def _train_by_sgd(module: nn.Module) -> None:
    """Replace what `apply_optimizer_in_backward` gave tables by SGD, at the same learning rate."""
    for weight in module.parameters():
        for kwargs in getattr(weight, "_optimizer_kwargs", ()):
            weight._optimizer_classes = [torch.optim.SGD]  # type: ignore[attr-defined] # noqa: SLF001 - as torch has it
            weight._optimizer_kwargs = [{"lr": kwargs["lr"]}]  # type: ignore[attr-defined] # noqa: SLF001


def _numbers(found: object) -> Iterator[torch.Tensor]:
    """Yield the tensors of floating numbers in what a model returns."""
    if isinstance(found, torch.Tensor) and found.is_floating_point():
        yield found
    elif isinstance(found, (tuple, list)):
        for each in found:
            yield from _numbers(each)


def _whole_tables(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tables, put together from the shards of all ranks, and copied ones. All ranks must call this."""
    whole = {name: weight.detach().double() for name, weight in replicated_weights(model).items()}
    for name, found in model.state_dict().items():
        if not isinstance(found, ShardedTensor):
            continue
        own = [(tuple(each.metadata.shard_offsets), each.tensor.detach()) for each in found.local_shards()]
        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, own)
        whole[name] = torch.full(found.size(), torch.nan, dtype=torch.float64)
        for (row, column), part in (each for rank in parts for each in rank):
            whole[name][row : row + part.shape[0], column : column + part.shape[1]] = part.double()
    return whole


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - what examples draw from


class _PlannerOfTheExample:
    """Takes the place of an example's own planner: the model is planned where it is sharded."""

    def collective_plan(self, *_: object) -> None:
        """Plan nothing."""


def main(key: str, planner: str, torchrec: str, dlrm: str, folder: str) -> None:
    """Train, write what was found to a file of this rank, and end at once: workers of an example may still run."""
    logging.disable(logging.WARNING)
    example = next(each for each in examples(Path(torchrec), Path(dlrm)) if each.key == key)
    training = Training(planner)
    _seed(int(os.environ["RANK"]))
    try:
        with imported(example) as script:
            replace_sharding(script, training.shard)
            replace_planner(script, training.planner)
            example.train(script)
    except Trained:
        pass
    assert training.plan is not None, "the example sharded no model"
    assert training.model is not None, "the example sharded no model"
    places = {
        f"{path}.{name}": [each.sharding_type, *map(str, each.ranks)]
        for path, tables in training.plan.plan.items()
        for name, each in tables.items()
    }
    found = {"outcomes": training.outcomes, "places": places, "tables": _whole_tables(training.model)}
    torch.save(found, Path(folder, f"{os.environ['RANK']}.pt"))
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
