"""Errors of the profiler, named after what the caller should do.

ProfilerError
|-- SettingsError     ask for something else (another backend, optimizer, budget)
|-- DataError         mend the data file that the message names
`-- MeasureError      the measurement itself failed: see the message of the process it names

OutOfDeviceMemoryError is no error of a run: the sample is recorded as too large and the run goes on.
"""


class ProfilerError(ValueError):
    """Base of all; the message says what is wrong, what was found and what to try."""


class SettingsError(ProfilerError):
    """What was asked for cannot be measured here."""


class DataError(ProfilerError):
    """A sample of training data cannot be read."""


class MeasureError(ProfilerError):
    """Processes that measure did not end well."""


class OutOfDeviceMemoryError(Exception):
    """A sample does not fit the device."""
