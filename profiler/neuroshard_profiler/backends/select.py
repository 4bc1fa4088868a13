"""From a backend's name to the backend; torch and FBGEMM are imported only for those that need them."""

from importlib.util import find_spec
from typing import Literal, get_args

from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.process.errors import MissingPackageError
from neuroshard_api.process.generations import kernels_hint
from neuroshard_api.process.missing_package import install_hint
from neuroshard_api.sharding.kernels import DeviceKind

from neuroshard_profiler.backends.base import Backend
from neuroshard_profiler.errors import SettingsError

BackendName = Literal["fbgemm", "torch_native", "simulated"]
NAMES: tuple[BackendName, ...] = get_args(BackendName)
_INSTALL = {
    "torch": install_hint("profiler"),
    "fbgemm_gpu": kernels_hint(),
}


def default_backend() -> BackendName:
    """Return FBGEMM where it is installed, else torch."""
    return "fbgemm" if find_spec("fbgemm_gpu") is not None else "torch_native"


def make_backend(
    name: BackendName, *, kind: DeviceKind | None = None, index: int = 0, simulated: DeviceType | None = None
) -> Backend:
    """Return a backend.

    Args:
        name: which one.
        kind: what a torch backend times on. None: a GPU if there is one.
        index: of the GPU among the visible ones.
        simulated: what the simulated backend simulates.

    Raises:
        SettingsError: there is no such device, or nothing to simulate.
        MissingPackageError: the backend's package is not installed.
    """
    if name == "simulated":
        from neuroshard_profiler.backends.simulated import SimulatedBackend  # noqa: PLC0415

        if simulated is None:
            raise SettingsError(
                "backend simulated: needs a device type to simulate; hint: give one of `neuroshard devices`"
            )
        return SimulatedBackend(simulated)
    for package in ("torch", "fbgemm_gpu") if name == "fbgemm" else ("torch",):
        if find_spec(package) is None:
            raise MissingPackageError(
                f"backend {name}: needs the package {package}, which is not installed; hint: try {_INSTALL[package]}, "
                "or choose the backend simulated"
            )
    from neuroshard_profiler.devices.visible import device_of  # noqa: PLC0415 - torch

    device = device_of(kind, index=index)
    if name == "fbgemm":
        try:
            from neuroshard_profiler.backends.fbgemm import FbgemmBackend  # noqa: PLC0415 - FBGEMM
        except (ImportError, OSError) as error:  # built for another torch, or for a driver that is not there
            reason = str(error).partition("\n")[0]
            raise MissingPackageError(
                f"backend fbgemm: FBGEMM cannot be loaded ({reason}); hint: try {kernels_hint()}"
            ) from error

        return FbgemmBackend(device)
    from neuroshard_profiler.backends.torch_native import TorchNativeBackend  # noqa: PLC0415 - torch

    return TorchNativeBackend(device)
