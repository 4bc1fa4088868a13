"""The search as its callers see it: from a request to its plan."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest

from neuroshard_planner.errors import InfeasibleError

Search = Callable[[PlanRequest], Plan]

Asked = ParamSpec("Asked")
Found = TypeVar("Found")


def remembered(search: Callable[Asked, Found]) -> Callable[Asked, Found]:
    """Return a search that is run once for equal arguments; one that finds nothing raises the same error again."""
    found: list[tuple[object, Found | InfeasibleError]] = []

    def search_once(*request: Asked.args, **options: Asked.kwargs) -> Found:
        asked = request, options
        result = next((each for known, each in found if known == asked), None)
        if result is None:
            try:
                result = search(*request, **options)
            except InfeasibleError as error:
                result = error
            found.append((asked, result))
        if isinstance(result, InfeasibleError):
            raise result
        return result

    return search_once
