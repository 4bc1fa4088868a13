"""Errors of the planner, named after what the caller should do.

PlannerError
|-- RequestError      fix the request (it contradicts itself or names what is not there)
|-- InfeasibleError   give more devices or memory, or loosen a constraint
`-- PlanError         use another plan, or make it again (it is not whole, or says what cannot be scored)
"""

from collections.abc import Iterator
from contextlib import contextmanager

from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.exit_codes import ExitCode


class PlannerError(ExpectedError, ValueError):
    """Base of all; the message says what is wrong, what was found and what to try."""


class RequestError(PlannerError):
    """The request contradicts itself or names what is not there."""


class InfeasibleError(PlannerError):
    """No plan fits the devices under the constraints."""

    exit_code = ExitCode.INFEASIBLE


class PlanError(PlannerError):
    """A plan does not match its own request, or says what the planner cannot score."""


@contextmanager
def in_its_names(request: PlanRequest) -> Iterator[None]:
    """Let errors about a request name its settings as the user wrote them."""
    try:
        yield
    except PlannerError as error:
        error.args = (request.in_its_names(str(error)),)
        raise
