"""The search as its callers see it: from a request to its plan."""

from collections.abc import Callable
from typing import TypeVar

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest

from neuroshard_planner.errors import InfeasibleError

Search = Callable[[PlanRequest], Plan]


Asked = TypeVar("Asked")


def remembered(search: Callable[[Asked], Plan]) -> Callable[[Asked], Plan]:
    """Return a search that is run once for equal requests; one without a plan raises the same error again."""
    found: list[tuple[Asked, Plan | InfeasibleError]] = []

    def search_once(request: Asked) -> Plan:
        result = next((each for asked, each in found if asked == request), None)
        if result is None:
            try:
                result = search(request)
            except InfeasibleError as error:
                result = error
            found.append((request, result))
        if isinstance(result, InfeasibleError):
            raise result
        return result

    return search_once
