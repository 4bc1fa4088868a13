"""Errors of the planner, named after what the caller should do.

PlannerError
|-- RequestError      mend the request (it contradicts itself or names what is not there)
|-- InfeasibleError   give more devices or memory, or loosen a constraint
|-- PlanError         use another plan, or make it again (it is not whole, or says what cannot be scored)
|-- RecordsError      give other records of measurements, or more of them
|-- MissingPackageError   install the package that the message names
`-- BundleError       use another bundle of cost models, or make it again
    |-- BundleNotFoundError   check the path or the device's name
    |-- BundleVersionError    make the bundle again with this release
    `-- BundleDamagedError    copy or make the bundle again
"""

from typing import ClassVar

from neuroshard_api.exit_codes import ExitCode


class PlannerError(ValueError):
    """Base of all; the message says what is wrong, what was found and what to try."""

    exit_code: ClassVar[ExitCode] = ExitCode.INVALID_INPUT
    """What a command that fails for this reason ends with."""


class RequestError(PlannerError):
    """The request contradicts itself or names what is not there."""


class InfeasibleError(PlannerError):
    """No plan fits the devices under the constraints."""

    exit_code = ExitCode.INFEASIBLE


class PlanError(PlannerError):
    """A plan does not match its own request, or says what the planner cannot score."""


class MissingPackageError(PlannerError):
    """An optional package is not installed."""

    exit_code = ExitCode.MISSING_PACKAGE


class BundleError(PlannerError):
    """A bundle of cost models cannot be used."""

    exit_code = ExitCode.UNUSABLE_BUNDLE


class BundleNotFoundError(BundleError):
    """There is no bundle of this name or at this path."""


class BundleVersionError(BundleError):
    """The bundle was made for another schema or other features."""


class BundleDamagedError(BundleError):
    """The bundle's files are not what its manifest says."""


class RecordsError(PlannerError):
    """Records of measurements are missing, broken or too few."""
