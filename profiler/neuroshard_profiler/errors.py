"""Errors of the profiler next to those of all rooms (`neuroshard_api.process.errors`).

ExpectedError
|-- SettingsError     ask for something else (another backend, optimizer, budget)
`-- MeasureError      the measurement itself failed: see the message of the process it names
    `-- DeviceFailedError     run the same command again

UnusableSampleError is not an error of a run: the sample is recorded with its reason and the run goes on.
|-- OutOfDeviceMemoryError   the sample does not fit
`-- KernelError              a kernel refused or failed
    `-- DeviceLostError      and with it the device, until another process starts
"""

from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.exit_codes import ExitCode


class SettingsError(ExpectedError):
    """What was asked for cannot be measured here."""


class MeasureError(ExpectedError):
    """A measuring process failed."""

    exit_code = ExitCode.INTERNAL_ERROR


class DeviceFailedError(MeasureError):
    """The device is lost to this process; the same command in another process resumes.

    Args:
        source: label of the device.
        reason: the kernel's error.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(
            f"{source} failed in a kernel and refuses all others until the process ends: {reason}"
            "; hint: run the same command again; it resumes after this sample"
        )


class UnusableSampleError(Exception):
    """A sample has no times; the message is the reason."""


class OutOfDeviceMemoryError(UnusableSampleError):
    """A sample does not fit the device."""


class KernelError(UnusableSampleError):
    """A kernel refused a sample, or failed."""


class DeviceLostError(KernelError):
    """A kernel failed so that this process cannot use the device any more."""
