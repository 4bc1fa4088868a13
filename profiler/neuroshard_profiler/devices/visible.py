"""Which device this process may time on: the one that was asked for, or a sentence that says why there is none."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from neuroshard_api.process.gpu_driver import driver_version, why_no_gpu
from neuroshard_api.sharding.kernels import DeviceKind

from neuroshard_profiler.errors import SettingsError

if TYPE_CHECKING:
    from neuroshard_profiler.devices.base import TimedDevice


class Gpus(Protocol):
    """What torch sees of a node's GPUs."""

    @property
    def built_for(self) -> str | None:
        """CUDA version that torch was built for. None: a build without CUDA."""
        ...

    @property
    def driver(self) -> str | None:
        """Version of the driver. None: there is none."""
        ...

    @property
    def names(self) -> Sequence[str]:
        """Products of the GPUs that torch can use; empty where it can use none."""
        ...


class TorchGpus:
    """The GPUs of this node."""

    @property
    def built_for(self) -> str | None:
        """CUDA version that torch was built for."""
        import torch  # noqa: PLC0415 - only where there is a device to look for

        return torch.version.cuda

    @property
    def driver(self) -> str | None:
        """Version of the driver."""
        return driver_version()

    @property
    def names(self) -> Sequence[str]:
        """Products of the GPUs."""
        import torch  # noqa: PLC0415 - the same

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [torch.cuda.get_device_name(index) for index in range(count)]


def device_of(kind: DeviceKind | None, *, index: int = 0, gpus: Gpus | None = None) -> "TimedDevice":
    """Return the device to time on.

    Args:
        kind: None takes a GPU if there is one.
        index: of the GPU, or of the core.
        gpus: what torch sees.

    Raises:
        SettingsError: there is no such device.
    """
    from neuroshard_profiler.devices.cpu import CpuDevice  # noqa: PLC0415 - torch
    from neuroshard_profiler.devices.cuda import CudaDevice  # noqa: PLC0415 - torch

    seen = gpus or TorchGpus()
    if kind == "cpu" or (kind is None and not seen.names and seen.driver is None):
        return CpuDevice.of_this_machine(index)
    names = usable_gpus(seen)
    if index >= len(names):
        raise SettingsError(
            f"there is no GPU {index}: torch can use {len(names)} here"
            "; hint: start one process per GPU, or make more of them visible (CUDA_VISIBLE_DEVICES)"
        )
    return CudaDevice.of_this_node(index)


def usable_gpus(gpus: Gpus) -> Sequence[str]:
    """Return the products of the visible GPUs. Raises SettingsError unless there are some, all equal."""
    names = gpus.names
    if not names:
        raise SettingsError(why_no_gpu(built_for=gpus.built_for, driver=gpus.driver))
    if len(set(names)) > 1:
        raise SettingsError(
            f"the GPUs of this node differ: {', '.join(sorted(set(names)))}; one profile describes one kind"
            "; hint: make those of one kind visible (CUDA_VISIBLE_DEVICES)"
        )
    if len(names) > 1 and "MIG" in names[0]:
        raise SettingsError(
            f"the visible GPUs are MIG slices ({names[0]}), between which NCCL exchanges nothing"
            "; hint: give the job whole GPUs, or one slice"
        )
    return names
