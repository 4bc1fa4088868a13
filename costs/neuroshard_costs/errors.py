"""Errors of the cost models, named after what the caller should do.

CostModelError
|-- RecordsError            give other records of measurements, or more of them
`-- BundleError             use another bundle of cost models, or make it again
    |-- BundleNotFoundError   check the path or the device's name
    |-- BundleDeviceError     use cost models of the device that is planned for
    |-- BundleVersionError    make the bundle again with this release
    `-- BundleDamagedError    copy or make the bundle again
"""

from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.exit_codes import ExitCode


class CostModelError(ExpectedError, ValueError):
    """Base of all; the message says what is wrong, what was found and what to try."""


class BundleError(CostModelError):
    """A bundle of cost models cannot be used."""

    exit_code = ExitCode.UNUSABLE_BUNDLE


class BundleNotFoundError(BundleError):
    """There is no bundle of this name or at this path."""


class BundleDeviceError(BundleError):
    """The bundle is of another device than the one that is planned for."""


class BundleVersionError(BundleError):
    """The bundle was made for another schema or other features."""


class BundleDamagedError(BundleError):
    """The bundle's files are not what its manifest says."""


class RecordsError(CostModelError):
    """Records of measurements are missing, broken or too few."""
