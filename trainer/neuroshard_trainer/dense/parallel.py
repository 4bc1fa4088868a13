"""The dense part on the ranks as a plan has it: shards by torch's fully_shard, DistributedDataParallel for the rest.

    broadcast of rank 0's weights | checkpointing | fully_shard of the chosen units | DistributedDataParallel

A split unit has `fully_shard` on each of its operators, and then on its module for the parameters that are its own.
Names of parameters are those of the model, whatever the layout: so a checkpoint goes on under any other.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from neuroshard_api.documents.dense_layout import DenseGroup, DenseLayout, DenseStrategy, PlannedUnit
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.process.errors import InputError
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint
from torchrec.distributed.model_parallel import (
    DataParallelWrapper,
    DefaultDataParallelWrapper,
    DistributedModelParallel,
    get_unwrapped_module,
)
from torchrec.distributed.types import ShardingEnv

from neuroshard_trainer.dense.operators import operators_of
from neuroshard_trainer.ranks.agreement import agreed
from neuroshard_trainer.ranks.process import limit_waits

_REPLICATE, _SHARD = "replicate", "shard"


class DenseParallelWrapper(DataParallelWrapper):  # type: ignore[misc] # torchrec, untyped
    """What DistributedModelParallel wraps the dense part in.

    Args:
        plan: with a layout of the dense part; its devices are the ranks.
        timeout_seconds: how long collectives of the shards wait for the others. If unset: torch's default.
    """

    def __init__(self, plan: GivenPlan, *, timeout_seconds: float | None = None) -> None:
        assert plan.dense is not None, "the plan has a layout"
        self._layout = plan.dense
        self._topology = plan.request.topology
        self._timeout_seconds = timeout_seconds

    def wrap(self, dmp: DistributedModelParallel, env: ShardingEnv, device: torch.device) -> None:
        """Wrap the model. All ranks must call this. Raises InputError where it lacks a unit."""
        model = dmp._dmp_wrapped_module.to(device)  # noqa: SLF001 - as TorchRec's own wrapper does
        units = [(unit, unit_module(model, unit)) for unit in self._layout.units]
        tables = set(DistributedModelParallel._sharded_parameter_names(model))  # noqa: SLF001
        _share_weights(weight for name, weight in model.named_parameters() if name not in tables)
        for unit, module in units:
            if unit.checkpointed:
                _recompute(module)
        meshes = self._meshes(device, {unit.group for unit, _ in units})
        own = {unit.module: unit for unit, _ in units if unit.group is not None}
        sharded = {name for path in own for name, _ in model.get_submodule(path).named_parameters(prefix=path)}
        for unit, module in units:
            if unit.group is not None:
                is_reshared = unit.strategy is DenseStrategy.ZERO3
                for part in (*split_operators(unit, module), module):
                    fully_shard(part, mesh=meshes[unit.group], reshard_after_forward=is_reshared)
        _join_neighbors(model, own, meshes)
        DefaultDataParallelWrapper(params_to_ignore=sorted(sharded)).wrap(dmp, env, device)

    def _meshes(self, device: torch.device, groups: set[DenseGroup | None]) -> Mapping[DenseGroup, DeviceMesh]:
        """Return the ranks that share units of each group, in the same order on all ranks."""
        num_nodes, per_node = self._topology.num_domains, self._topology.devices_per_domain
        found = {}
        for group in (each for each in DenseGroup if each in groups):
            if group is DenseGroup.NODE and num_nodes > 1:
                mesh = init_device_mesh(device.type, (num_nodes, per_node), mesh_dim_names=(_REPLICATE, _SHARD))
            else:
                mesh = init_device_mesh(device.type, (num_nodes * per_node,), mesh_dim_names=(_SHARD,))
            if self._timeout_seconds is not None:
                limit_waits(self._timeout_seconds, *mesh.get_all_groups())
            found[group] = mesh
        return found


def unit_module(model: nn.Module, unit: PlannedUnit) -> nn.Module:
    """Return the module of a planned unit. Raises InputError where the model has none."""
    try:
        return model.get_submodule(unit.module)
    except AttributeError as error:
        raise InputError(
            f"the plan keeps module {unit.module!r} of the dense part {unit.strategy.value}, and the model has no such "
            "module; hint: make the plan again for this job"
        ) from error


def split_operators(unit: PlannedUnit, module: nn.Module) -> tuple[nn.Module, ...]:
    """Return the operators that are sharded alone: none unless the plan splits the unit.

    Raises InputError where the plan does, and the module has none.
    """
    if not unit.split:
        return ()
    operators = operators_of(module)
    if not operators:
        raise InputError(
            f"the plan splits module {unit.module!r} of the dense part, and the model's has no modules below it that "
            "can be gathered alone; hint: make the plan again for this job"
        )
    return tuple(operator for _, operator in operators)


def prove_dense(
    model: nn.Module, plan: GivenPlan, group: dist.ProcessGroup | None = None
) -> tuple[PlannedUnit, ...] | None:
    """Return the live layout of the dense part if it is exactly the plan's. All ranks must call this.

    Args:
        model: wrapped in DistributedModelParallel.
        plan: what it was wrapped by.
        group: of all ranks, for CPU tensors; None is the default group.

    Returns:
        How each unit is kept, from the tensors and modules of every rank; None where the plan has no layout.

    Raises:
        InputError: a unit is kept otherwise on some rank, or the model lacks it, or shards what is in no unit; on all
            ranks.
    """
    layout = plan.dense
    if layout is None:
        return None
    devices = plan.request.topology.devices_per_domain
    everyone = agreed(lambda: tuple(_live_units(get_unwrapped_module(model), layout, devices)), group)
    for rank, found in enumerate(everyone):
        for planned, live in zip(layout.units, found, strict=True):
            if live != planned:
                raise InputError(
                    f"module {planned.module!r} of the dense part is not kept as the plan says: the plan has "
                    f"{_listed(planned)}, rank {rank} has {_listed(live)}; "
                    "hint: give the plan's layout to DistributedModelParallel"
                )
    return everyone[0]


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def by_kind(weights: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Return whole weights, then sharded ones: torch's multi-tensor optimizers take no list of both."""
    found: list[list[torch.Tensor]] = [[], []]
    for weight in weights:
        found[isinstance(weight, DTensor)].append(weight)
    return [each for each in found if each]


def clip_gradients(weights: Sequence[torch.Tensor], most: float) -> None:
    """Scale the gradients down to a norm over all of them, shards of other ranks included. All ranks must call this.

    Args:
        weights: whole ones, whose gradients are equal on all ranks, and sharded ones.
        most: largest norm that stays as it is.
    """
    if not any(isinstance(weight, DTensor) for weight in weights):
        torch.nn.utils.clip_grad_norm_(weights, most)
        return
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    squares: dict[DeviceMesh | None, torch.Tensor] = {}
    for gradient in gradients:
        mesh = gradient.device_mesh if isinstance(gradient, DTensor) else None
        own = local_of(gradient).float().square().sum()
        squares[mesh] = squares[mesh] + own if mesh in squares else own
    for mesh, total in squares.items():
        if mesh is not None:
            dist.all_reduce(total, group=mesh.get_group(_SHARD))
    norm = torch.stack(list(squares.values())).sum().sqrt()
    factor = torch.clamp(most / (norm + 1e-6), max=1.0)  # as torch.nn.utils.clip_grad_norm_
    for gradient in gradients:
        local_of(gradient).mul_(factor)


def _share_weights(weights: Iterable[torch.Tensor]) -> None:
    """Give all ranks rank 0's weights: fully_shard takes each rank's own."""
    with torch.no_grad():
        for weight in weights:
            dist.broadcast(weight.data, src=0)


class _Recomputed:
    """The forward pass of a module, whose activations are computed again in backward."""

    def __init__(self, module: nn.Module) -> None:
        self._forward = module.forward

    def __call__(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - a module's own
        """Return the result of the module."""
        return checkpoint(self._forward, *arguments, use_reentrant=False, preserve_rng_state=False, **named)


def _recompute(module: nn.Module) -> None:
    """Checkpoint a module in place: a wrapper would give its parameters other names."""
    module.forward = _Recomputed(module)


def _join_neighbors(
    model: nn.Module, units: Mapping[str, PlannedUnit], meshes: Mapping[DenseGroup, DeviceMesh]
) -> None:
    """Put sharded units of one part of the model below one root, which gathers the next unit while one computes.

    A root has no parameters itself, and none of them is above a table.
    """
    for name, part in model.named_children():
        inside = [unit for path, unit in units.items() if path.startswith(f"{name}.")]
        if len(inside) > 1 and not isinstance(part, FSDPModule):
            group = inside[0].group
            assert group is not None, "sharded units have a group"
            kept = {weight for weight in part.parameters() if not isinstance(weight, DTensor)}
            fully_shard(part, mesh=meshes[group], ignored_params=kept)


def _live_units(model: nn.Module, layout: DenseLayout, per_node: int) -> Iterator[PlannedUnit]:
    """Yield this rank's layout of each unit. Raises InputError where one is missing, or what is in none is sharded."""
    for unit in layout.units:
        module = unit_module(model, unit)
        weights = list(module.parameters())
        strategy, group, is_split = DenseStrategy.REPLICATE, None, False
        if weights and all(isinstance(weight, DTensor) for weight in weights):
            assert isinstance(weights[0], DTensor)
            mesh = weights[0].device_mesh
            shared_by = mesh.size(mesh.mesh_dim_names.index(_SHARD)) if mesh.mesh_dim_names else mesh.size()
            is_node = _REPLICATE in (mesh.mesh_dim_names or ()) or shared_by == per_node
            group = DenseGroup.NODE if is_node else DenseGroup.WORLD
            is_split = _is_split(module)
            strategy = DenseStrategy.ZERO3 if is_split or _reshards(module) else DenseStrategy.ZERO2
        yield PlannedUnit(
            module=unit.module,
            strategy=strategy,
            group=group,
            checkpointed=isinstance(module.forward, _Recomputed),
            split=is_split,
        )
    tables = set(DistributedModelParallel._sharded_parameter_names(model))  # noqa: SLF001 - as the wrapper does
    for name, weight in model.named_parameters():
        is_dense = isinstance(weight, DTensor) and name not in tables
        if is_dense and not any(name.startswith(f"{unit.module}.") for unit in layout.units):
            raise InputError(
                f"parameter {name!r} of the dense part is sharded, and the plan has no unit with it"
                "; hint: make the plan again for this job"
            )


def _is_split(module: nn.Module) -> bool:
    """Return whether each operator of a sharded module is gathered alone, and dropped after forward."""
    operators = operators_of(module)
    return bool(operators) and all(isinstance(each, FSDPModule) and _reshards(each) for _, each in operators)


def _reshards(module: nn.Module) -> bool:
    """Return whether a sharded module drops its gathered weights after forward."""
    groups = fully_shard.state(module)._fsdp_param_groups  # type: ignore[attr-defined] # noqa: SLF001 - no public way
    return any(group.post_forward_mesh_info is not None for group in groups)


def _listed(unit: PlannedUnit) -> str:
    shared = "" if unit.group is None else f" over each {unit.group.value}"
    further = f"{', checkpointed' if unit.checkpointed else ''}{', operator by operator' if unit.split else ''}"
    return f"{unit.strategy.value}{shared}{further}"
