"""Errors of the planner, named after what the caller should do.

PlannerError
|-- RequestError      mend the request (it contradicts itself or names what is not there)
|-- InfeasibleError   give more devices or memory, or loosen a constraint
`-- BundleError       use another bundle of cost models, or make it again
"""


class PlannerError(ValueError):
    """Base of all; the message says what is wrong, what was found and what to try."""


class RequestError(PlannerError):
    """The request contradicts itself or names what is not there."""


class InfeasibleError(PlannerError):
    """No plan fits the devices under the constraints."""


class BundleError(PlannerError):
    """A bundle of cost models cannot be used."""
