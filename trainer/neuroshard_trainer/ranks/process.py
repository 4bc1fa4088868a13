"""One process among those that torchrun started: its rank, its device, and its group of all ranks."""

import logging
import os
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.job.stage_commands import RUN_ID_VARIABLE
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.errors import InputError
from neuroshard_api.process.host_memory import keep_freed_memory
from neuroshard_api.sharding.placement_rules import POD_SIZE_VARIABLE

from neuroshard_trainer.ranks.agreement import gathered
from neuroshard_trainer.ranks.devices import (
    Cuda,
    DeviceChoice,
    chosen_device,
    require_planned_nodes,
    unlike_devices,
    why_gpu_is_needed,
)
from neuroshard_trainer.ranks.failures import lost_peers
from neuroshard_trainer.ranks.nccl_log import log_to, nccl_warning
from neuroshard_trainer.ranks.peers import Peers
from neuroshard_trainer.servers.nodes import join_nodes

logger = logging.getLogger(__name__)

THREADS_VARIABLE = "OMP_NUM_THREADS"
_set_timeout = getattr(dist.distributed_c10d, "set_timeout", dist.distributed_c10d._set_pg_timeout)  # noqa: SLF001
"""torch before 2.14 has it under the second name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launched:
    """What torchrun tells a process of its place."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    run_id: str | None = None
    """torchrun's id of all its processes. If unset: none was given."""

    @classmethod
    def from_environment(cls) -> Self:
        """Return this process's place. Raises InputError where torchrun did not start it."""
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        missing = [name for name in (*names, "MASTER_ADDR") if name not in os.environ]
        if missing:
            raise InputError(f"{missing[0]} is not set; hint: start with `torchrun ... -m neuroshard_trainer`")
        numbers = {name.lower(): int(os.environ[name]) for name in names}
        return cls(**numbers, run_id=os.environ.get(RUN_ID_VARIABLE))


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """This process."""

    rank: int
    world_size: int
    device: torch.device
    group: dist.ProcessGroup
    """All ranks, for CPU tensors; TorchRec and DDP have the default group to themselves."""
    run_id: str | None = None
    """torchrun's id of all its processes. If unset: none was given."""
    local_world_size: int | None = None
    """Processes on this node. If unset: all are."""
    num_servers: int = 0
    """Processes of embedding servers, whose ranks come after the trainers'."""
    trainers: dist.ProcessGroup | None = None
    """The trainers, for their tables and dense part on their devices. If unset: all ranks are trainers, in the default
    group; or this is a server."""
    trainers_on_host: dist.ProcessGroup | None = None
    """The trainers, for CPU tensors. If unset: all ranks are trainers; or this is a server."""
    peers: Peers | None = None
    """All ranks by name. If unset: there are no servers among them."""

    @property
    def num_trainers(self) -> int:
        """Ranks that have samples."""
        return self.world_size - self.num_servers

    @property
    def is_server(self) -> bool:
        """Whether it is a process of an embedding server."""
        return self.rank >= self.num_trainers

    @property
    def num_neighbors(self) -> int:
        """Processes on this node, this one included."""
        return self.local_world_size or self.world_size

    @property
    def is_first(self) -> bool:
        """Whether it writes what all ranks found."""
        return self.rank == 0


def start_process(
    job: DLRMTrainingJob, plan: GivenPlan, launched: Launched, choice: DeviceChoice, *, nccl_log_folder: Path
) -> Process:
    """Choose the device, meet the other ranks, and log what is unlike the plan's conditions.

    An embedding server computes on the CPU, whatever its host has and the trainers do.

    Raises:
        InputError: the device or the node is not what the job and the plan are for.
        PeerLostError: the others did not come.
        CommunicationError: NCCL cannot be set up.
    """
    is_server = launched.rank >= plan.num_devices
    cuda = None if choice == "cpu" or is_server else Cuda.here()
    device = torch.device("cpu")
    if cuda is not None:
        device = chosen_device(choice, cuda, local_rank=launched.local_rank, needs_gpu=why_gpu_is_needed(job, plan))
    os.environ[POD_SIZE_VARIABLE] = str(plan.request.topology.nodes_per_domain)
    servers = plan.request.servers if plan.num_server_processes else None
    warnings: list[str | None] = []
    num_local = min(launched.local_world_size, plan.num_devices - (launched.rank - launched.local_rank))
    if num_local > 0:  # this node has trainers
        warnings.append(require_planned_nodes(plan, local_world_size=num_local, device=device))
    timeout_seconds = job.spec.experimental.rendezvous.timeout_seconds
    if cuda is None or device.type == "cpu":
        process = joined(device, timeout_seconds=timeout_seconds, servers=servers)
        if plan.bundle is not None and not plan.bundle.source.startswith("cpu:"):
            planned = plan.request.topology.device.name
            warnings.append(f"training on the CPU under a plan for {planned}: measured times will differ")
    else:
        nccl_log = log_to(nccl_log_folder, rank=launched.rank)
        process = joined(device, timeout_seconds=timeout_seconds, servers=servers)
        trainers = process.trainers_on_host or process.group
        warnings.append(unlike_devices(gathered(cuda.devices[launched.local_rank], trainers)))
        warnings.append(nccl_warning(nccl_log, num_nodes=plan.num_nodes))
        if process.is_first:
            logger.info("%s", cuda.versions())
    if servers is not None and any(each.sharding_type.is_by_node for each in plan.tables):
        join_nodes(
            num_trainers=plan.num_devices,
            per_node=plan.request.topology.devices_per_domain,
            backend="gloo" if device.type == "cpu" else "nccl",
            timeout_seconds=timeout_seconds,
        )
    if process.is_first:
        for warning in filter(None, warnings):
            logger.warning("%s", warning)
    return replace(process, run_id=launched.run_id, local_world_size=launched.local_world_size)


def joined(device: torch.device, *, timeout_seconds: float, servers: ServerPool | None = None) -> Process:
    """Meet the other processes.

    Without servers, the default group is that of the devices' collectives. Servers have none of these: with them the
    default group, in which trainers exchange with servers, is gloo's, and the trainers' devices have a group of theirs.

    Args:
        device: that this process computes on.
        timeout_seconds: how long any collective operation waits for the others.
        servers: embedding servers, whose processes are the last ranks.

    Raises:
        PeerLostError: the others did not come.
        CommunicationError: NCCL cannot be set up.
    """
    timeout = timedelta(seconds=timeout_seconds)
    num_servers = 0 if servers is None else servers.num_processes
    if device.type == "cpu":
        keep_freed_memory()  # as the profiler did whose times the plan was made from
        compute_on_one_core()
    else:
        torch.cuda.set_device(device)
    with lost_peers(lambda: "while meeting the others", trains=lambda: False):
        # With a device the communicator is made now: its errors are those of the set-up.
        on_device: dict[str, Any] = {"backend": "gloo"}
        if device.type == "cuda":
            on_device = {"backend": "nccl", "device_id": device}
        dist.init_process_group(**({"backend": "gloo"} if num_servers else on_device), timeout=timeout)
        group = new_group(timeout_seconds)
        trainers = trainers_on_host = peers = None
        if servers is not None:
            num_trainers = dist.get_world_size() - num_servers
            trainers, trainers_on_host = (
                found if isinstance(found, dist.ProcessGroup) else None  # a server is in neither
                for found in (
                    dist.new_group(list(range(num_trainers)), timeout=timeout, **on_device),
                    dist.new_group(list(range(num_trainers)), timeout=timeout, backend="gloo"),
                )
            )
            process = dist.get_rank() - num_trainers
            peers = Peers.met(group, server=servers.process_name(process) if process >= 0 else None)
    return Process(
        rank=dist.get_rank(),
        world_size=dist.get_world_size(),
        device=device,
        group=group,
        num_servers=num_servers,
        trainers=trainers,
        trainers_on_host=trainers_on_host,
        peers=peers,
    )


def compute_on_one_core() -> None:
    """Let torch compute with one thread, unless OMP_NUM_THREADS asks for others: a device of a plan is a core.

    torchrun sets it for several processes of a node. One alone has a thread for each core, which all wait for the one
    whose core is not free.
    """
    if THREADS_VARIABLE not in os.environ:
        torch.set_num_threads(1)


def limit_waits(timeout_seconds: float, *groups: dist.ProcessGroup) -> None:
    """Limit how long collective operations of existing groups wait for the others."""
    for group in groups:
        _set_timeout(timedelta(seconds=timeout_seconds), group)


def new_group(timeout_seconds: float) -> dist.ProcessGroup:
    """Return a group of all ranks for CPU tensors. All ranks must call this.

    Args:
        timeout_seconds: how long its collective operations wait for the others.
    """
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_seconds))
    assert isinstance(group, dist.ProcessGroup), "all ranks are in it"
    return group
