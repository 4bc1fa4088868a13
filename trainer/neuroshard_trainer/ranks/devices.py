"""The device of a process: what CUDA offers on this machine, and whether it is what the job and the plan are for."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import torch
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.torchrec_plan import ComputeDevice
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.errors import InputError
from neuroshard_api.sharding.placement_rules import local_size_problem

DeviceChoice = Literal["auto", "cpu", "cuda"]
DRIVER_VERSION_FILE = Path("/proc/driver/nvidia/version")
_MEASURED = "measured:"
"""Begin of a bundle's source that was measured on a GPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cuda:
    """CUDA as torch finds it on this machine."""

    built_for: str | None
    """CUDA version that torch was built for, such as ``13.0``. If unset: a torch for CPUs."""
    problem: str | None
    """Torch's own words for why CUDA cannot be used. If unset: it can."""
    devices: tuple[str, ...]
    """Product names of the GPUs that this process sees."""
    driver: str | None
    """Version of the kernel's driver, such as ``580.65.06``. If unset: there is none, or it does not tell."""
    nccl: str | None
    """Version of NCCL, such as ``2.27.5``. If unset: torch has none."""

    @classmethod
    def here(cls) -> Self:
        """Return the devices that this process finds."""
        problem = None
        try:
            torch.cuda.init()  # type: ignore[no-untyped-call] # torch's
        except (RuntimeError, AssertionError) as error:
            problem = " ".join(str(error).split())
        devices = () if problem else tuple(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
        return cls(
            built_for=torch.version.cuda,
            problem=problem,
            devices=devices,
            driver=_driver_version(),
            nccl=None if problem else ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call] # torch's
        )

    @property
    def is_usable(self) -> bool:
        """Whether there is a GPU that torch can compute on."""
        return self.problem is None and bool(self.devices)

    def versions(self) -> str:
        """Return one line for the log."""
        names = ", ".join(f"{self.devices.count(name)} x {name}" for name in dict.fromkeys(self.devices))
        return (
            f"torch {torch.__version__}, CUDA {self.built_for}, driver {self.driver or 'unknown'}, "
            f"NCCL {self.nccl}, {names}"
        )

    def why_unusable(self) -> str:
        """Return the reason that there is no GPU to compute on, with a hint."""
        if self.built_for is None:
            return "torch was built for CPUs; hint: install a torch with CUDA, and fbgemm-gpu instead of fbgemm-gpu-cpu"
        major = self.built_for.split(".")[0]
        if self.driver is not None and self.problem is not None:
            return (
                f"the NVIDIA driver {self.driver} does not serve CUDA {self.built_for}, which torch was built for "
                f"({self.problem})"
                f"; hint: install a driver for CUDA {major} or newer, or a torch built for the driver's CUDA"
            )
        if self.problem is not None:
            return (
                f"{self.problem}"
                f"; hint: install an NVIDIA driver for CUDA {major} or newer, and in a pod set a limit of "
                "nvidia.com/gpu"
            )
        return "no GPU is visible; hint: check CUDA_VISIBLE_DEVICES, and in a pod the limit of nvidia.com/gpu"


def why_gpu_is_needed(job: DLRMTrainingJob, plan: GivenPlan) -> str | None:
    """Return the reason that this training must not fall back to the CPU; None: it may."""
    num_gpus = job.spec.trainer.num_gpus_per_node
    if num_gpus:
        return f"spec.trainer.resourcesPerNode asks for {num_gpus} GPUs per node"
    source = None if plan.bundle is None else plan.bundle.source
    return f"the plan was made from costs of {source}" if source and source.startswith(_MEASURED) else None


def chosen_device(choice: DeviceChoice, cuda: Cuda, *, local_rank: int, needs_gpu: str | None) -> torch.device:
    """Return the device of a process.

    Args:
        choice: ``auto`` takes a GPU if there is one.
        cuda: what this machine has.
        local_rank: number of the process on its node.
        needs_gpu: why ``auto`` must not take the CPU; None: it may.

    Raises:
        InputError: there is no such device.
    """
    if choice == "cpu":
        return torch.device("cpu")
    if not cuda.is_usable:
        if choice == "auto" and needs_gpu is None:
            return torch.device("cpu")
        wanted = "--device cuda" if needs_gpu is None or choice == "cuda" else needs_gpu
        raise InputError(f"{wanted}, but {cuda.why_unusable()}; hint: --device cpu trains on the CPU")
    if local_rank >= len(cuda.devices):
        raise InputError(
            f"local rank {local_rank} has no GPU to itself, there are {len(cuda.devices)}"
            f"; hint: start one process per GPU "
            "and let each see all GPUs of its node (srun --gpus-per-task hides them), or give --device cpu"
        )
    return torch.device("cuda", local_rank)


def compute_device(device: torch.device) -> ComputeDevice:
    """Return a device's kind in a plan's words."""
    return "cuda" if device.type == "cuda" else "cpu"


def require_planned_nodes(plan: GivenPlan, *, local_world_size: int, device: torch.device) -> str | None:
    """Return a warning where processes are spread over nodes otherwise than planned; None: they are as planned.

    On CPUs only the predicted costs suffer, unless a table is cut by node. On GPUs the plan names each shard's GPU by
    the nodes' size.

    Raises:
        InputError: the processes of this node are not as many as the plan has devices per node, and that matters.
    """
    planned = plan.devices_per_node
    if planned == local_world_size:
        return None
    by_node = None
    if plan.replication is None:  # groups know the size of their nodes themselves
        by_node = local_size_problem(plan.tables, plan.request.topology, local_world_size)
    if by_node is not None:
        raise InputError(f"the plan cannot be run here: {by_node}")
    found = f"the plan is for {planned} devices per node, this node has {local_world_size} processes"
    if device.type == "cuda":
        raise InputError(f"{found}; hint: start {planned} processes per node (--nproc-per-node), or plan again")
    return f"{found}: measured times will differ from the prediction"


def unlike_devices(names: list[str]) -> str | None:
    """Return a warning where the ranks' devices differ, or are slices of a GPU; None: they are alike and whole."""
    kinds = dict.fromkeys(names)
    if len(kinds) > 1:
        listed = ", ".join(f"{name} on rank {names.index(name)}" for name in kinds)
        return f"the ranks' devices differ ({listed}): plans are for equal devices, and the slowest sets the step time"
    if names and re.search(r"\bMIG\b", names[0]):
        return (
            f"{names[0]} is a slice of a GPU: costs and memory of the whole GPU do not hold for it; profile the slice"
        )
    return None


def _driver_version() -> str | None:
    try:
        text = DRIVER_VERSION_FILE.read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d+(?:\.\d+)+)", text)
    return found[1] if found else None
