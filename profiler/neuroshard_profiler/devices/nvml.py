"""Clocks and throttling of a GPU at this moment, through NVIDIA's management library where it is installed."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

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


def conditions_of(uuid: object, library: ModuleType | None = None) -> Callable[[], Mapping[str, str]]:
    """Return a function that reads the current clock and the reasons that hold it down.

    Args:
        uuid: of the GPU, as torch has it.
        library: the package nvidia-ml-py (module pynvml). None: the installed one, if there is one.
    """
    nvml = library or _installed()
    if nvml is None:
        return lambda: {"clock_mhz": "unknown", "throttled": "unknown"}
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByUUID(f"GPU-{str(uuid).removeprefix('GPU-')}")

    def conditions() -> Mapping[str, str]:
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        reasons = [name for bit, name in _REASONS.items() if bits & bit]
        return {
            "clock_mhz": str(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "throttled": ", ".join(reasons) or "no",
        }

    return conditions


def _installed() -> ModuleType | None:
    return import_module("pynvml") if find_spec("pynvml") is not None else None
