"""Errors of the profiler, named after what the caller should do.

ProfilerError
|-- SettingsError     ask for something else (another backend, optimizer, budget)
|-- MissingPackageError   install the package that the message names
|-- DataError         fix the data file that the message names
|-- StorageError      free space on the disk that the message names
`-- MeasureError      the measurement itself failed: see the message of the process it names
    |-- DeviceFailedError     run the same command again
    `-- PeerLostError         start the profiler of the other node too

UnusableSampleError is not an error of a run: the sample is recorded with its reason and the run goes on.
|-- OutOfDeviceMemoryError   the sample does not fit
`-- KernelError              a kernel refused or failed
    `-- DeviceLostError      and with it the device, until another process starts
"""

from typing import ClassVar

from neuroshard_api.process.exit_codes import ExitCode


class ProfilerError(ValueError):
    """Base of all; the message says what is wrong, what was found and what to try."""

    exit_code: ClassVar[ExitCode] = ExitCode.INVALID_INPUT
    """What a command that fails for this reason ends with."""


class SettingsError(ProfilerError):
    """What was asked for cannot be measured here."""


class MissingPackageError(ProfilerError):
    """An optional package is not installed."""

    exit_code = ExitCode.MISSING_PACKAGE


class DataError(ProfilerError):
    """A sample of training data cannot be read."""


class StorageError(ProfilerError):
    """A disk is full."""

    exit_code = ExitCode.STORAGE


class MeasureError(ProfilerError):
    """A measuring process failed."""

    exit_code = ExitCode.INTERNAL_ERROR


class DeviceFailedError(MeasureError):
    """The device is lost to this process; the same command in another process resumes.

    Args:
        source: label of the device.
        reason: the kernel's error.
    """

    def __init__(self, source: str, reason: Exception) -> None:
        super().__init__(
            f"{source} failed in a kernel and refuses all others until the process ends: {reason}"
            "; hint: run the same command again; it resumes after this sample"
        )


class PeerLostError(MeasureError):
    """The other node of a measured network did not come, or went."""

    exit_code = ExitCode.PEER_LOST


class UnusableSampleError(Exception):
    """A sample has no times; the message is the reason."""


class OutOfDeviceMemoryError(UnusableSampleError):
    """A sample does not fit the device."""


class KernelError(UnusableSampleError):
    """A kernel refused a sample, or failed."""


class DeviceLostError(KernelError):
    """A kernel failed so that this process cannot use the device any more."""
