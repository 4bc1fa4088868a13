"""Specification of clocks and throttling, with libraries that answer and refuse as nvml.h says."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from neuroshard_profiler.devices.nvml import Clocks, clocks_of

UNKNOWN = {"clock_mhz": "unknown", "throttled": "unknown"}


class NVMLError(Exception):
    """As pynvml.NVMLError: neither a RuntimeError nor an OSError."""


def refuse(*_: object) -> None:
    """Answer NVML_ERROR_NOT_SUPPORTED."""
    raise NVMLError("Not Supported")


def library(**functions: Any) -> Any:
    """Return a library of one GPU, GPU-0123, under a power cap and hot; some functions are others."""

    def handle_of(uuid: str) -> str:
        if uuid != "GPU-0123":
            raise NVMLError("Not Found")
        return uuid

    answers = {
        "NVML_CLOCK_SM": 1,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": handle_of,
        "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x1 | 0x4 | 0x40,
        "nvmlDeviceGetClockInfo": lambda _handle, _clock: 1410,
    }
    return cast("Any", SimpleNamespace(**{name: each for name, each in {**answers, **functions}.items() if each}))


def test_current_clock_and_throttling_come_from_the_management_library() -> None:
    """The bits are those of nvml.h; an idle GPU (bit 0) is not throttled."""
    clocks = clocks_of("0123", library())()

    assert clocks.conditions == {"clock_mhz": "1410", "throttled": "power_cap, hardware_thermal"}
    assert clocks.slowed_by == "power_cap, hardware_thermal"


def test_what_somebody_chose_slows_nothing() -> None:
    """Application clocks hold in training too."""
    clocks = clocks_of("0123", library(nvmlDeviceGetCurrentClocksEventReasons=lambda _: 0x2 | 0x10 | 0x100))()

    assert (clocks.held_down_by, clocks.slowed_by) == (("applications_clocks", "sync_boost", "display_clocks"), None)


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ({"nvmlInit": refuse}, UNKNOWN),
        ({"nvmlDeviceGetHandleByUUID": refuse}, UNKNOWN),
        ({"nvmlDeviceGetClockInfo": refuse}, {"clock_mhz": "unknown", "throttled": "power_cap, hardware_thermal"}),
        ({"nvmlDeviceGetCurrentClocksEventReasons": refuse}, {"clock_mhz": "1410", "throttled": "unknown"}),
        ({"nvmlDeviceGetCurrentClocksEventReasons": None, "NVML_CLOCK_SM": None}, UNKNOWN),
        (
            {
                "nvmlDeviceGetCurrentClocksEventReasons": None,
                "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _: 0x8,
            },
            {"clock_mhz": "1410", "throttled": "hardware_slowdown"},
        ),
    ],
    ids=["no driver", "no access", "a virtual GPU's clock", "its reasons", "another library", "an older library"],
)
def test_what_the_library_refuses_is_unknown_and_nothing_raises(
    functions: dict[str, Any], expected: dict[str, str]
) -> None:
    """Clocks are for people: a profile does not end for want of them, and nothing is slowed by the unknown."""
    clocks = clocks_of("0123", library(**functions))()

    assert clocks.conditions == expected


def test_a_slice_has_the_clocks_of_its_gpu() -> None:
    """NVML finds a slice by another prefix, and refuses its clocks."""

    def handle_of(uuid: str) -> str:
        if uuid != "MIG-0123":
            raise NVMLError("Not Found")
        return "slice"

    whole = {"slice": "GPU"}
    clocks = clocks_of(
        "0123",
        library(
            nvmlDeviceGetHandleByUUID=handle_of,
            nvmlDeviceGetDeviceHandleFromMigDeviceHandle=whole.__getitem__,
            nvmlDeviceGetClockInfo=lambda handle, _: {"GPU": 1200}[handle],
        ),
    )()

    assert clocks.mhz == 1200


def test_without_the_library_nothing_is_known() -> None:
    """It is an optional package."""
    assert (Clocks().conditions, Clocks().slowed_by) == (UNKNOWN, None)
