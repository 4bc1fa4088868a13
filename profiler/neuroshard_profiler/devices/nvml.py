"""Clocks and throttling of a GPU at this moment, through NVIDIA's management library where it is installed.

They describe a measurement and are no part of it, so the library may refuse anything: virtual GPUs and slices support
neither clocks nor reasons, a container may hold no access to the device, and an older library lacks functions. What is
refused is unknown; nothing here raises.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

_REASONS = {
    0x2: "applications_clocks",
    0x4: "power_cap",
    0x8: "hardware_slowdown",
    0x10: "sync_boost",
    0x20: "software_thermal",
    0x40: "hardware_thermal",
    0x80: "power_brake",
    0x100: "display_clocks",
}
"""Bits of nvmlClocksEventReasons in nvml.h; 0x1 is an idle GPU, which a GPU between two samples is."""
_SETTINGS = ("applications_clocks", "sync_boost", "display_clocks")
"""Reasons that somebody chose, and that hold as long as training lasts. All others slow a GPU now and then."""
_UNKNOWN = "unknown"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Clocks:
    """One reading."""

    mhz: int | None = None
    """Clock of the multiprocessors. If unset: unknown."""
    held_down_by: tuple[str, ...] | None = None
    """Reasons of the current clock. If unset: unknown."""

    @property
    def slowed_by(self) -> str | None:
        """Return the reasons that slow the GPU for now. None: there are none, or nobody knows."""
        return ", ".join(reason for reason in self.held_down_by or () if reason not in _SETTINGS) or None

    @property
    def conditions(self) -> Mapping[str, str]:
        """Return the reading as records have it."""
        reasons = self.held_down_by
        return {
            "clock_mhz": _UNKNOWN if self.mhz is None else str(self.mhz),
            "throttled": _UNKNOWN if reasons is None else ", ".join(reasons) or "no",
        }


def clocks_of(uuid: object, library: ModuleType | None = None) -> Callable[[], Clocks]:
    """Return a function that reads the current clock and the reasons that hold it down. Neither raises.

    Args:
        uuid: of the GPU or of the slice, as torch has it; a slice has the clocks of its GPU.
        library: the package nvidia-ml-py (module pynvml). None: the installed one, if there is one.
    """
    nvml: Any = library or _answer(_installed)
    handle = None if nvml is None or _answer(lambda: (nvml.nvmlInit(), True)) is None else _handle(nvml, str(uuid))
    if handle is None:
        return Clocks

    def clocks() -> Clocks:
        bits = _answer(lambda: int(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)))
        if bits is None:  # its name before the drivers of branch 535
            bits = _answer(lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
        return Clocks(
            mhz=_answer(lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            held_down_by=None if bits is None else tuple(name for bit, name in _REASONS.items() if bits & bit),
        )

    return clocks


def _handle(nvml: Any, uuid: str) -> object | None:  # noqa: ANN401 - a module
    """Return the handle of a GPU, or of the GPU that a slice is of. None: the library knows neither."""
    plain = uuid.removeprefix("GPU-").removeprefix("MIG-")
    found: object | None = _answer(lambda: nvml.nvmlDeviceGetHandleByUUID(f"GPU-{plain}"))
    if found is None:
        slice_ = _answer(lambda: nvml.nvmlDeviceGetHandleByUUID(f"MIG-{plain}"))
        if slice_ is not None:
            found = _answer(lambda: nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice_))
    return found


def _answer(ask: Callable[[], T]) -> T | None:
    """Return the library's answer. None: it refuses."""
    try:
        return ask()
    except Exception:  # noqa: BLE001 - NVMLError of whichever library, and functions and drivers that are not there
        return None


def _installed() -> ModuleType | None:
    return import_module("pynvml") if find_spec("pynvml") is not None else None
