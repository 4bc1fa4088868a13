"""The samples per device and step: the smallest batch of nearly the most samples per second that fits.

Each batch has the first plan that fits, dense part included, and the chosen one further choices. Powers of two come
first, in ascending order up to the first that does not fit, for no larger one does; then the steps next to the fastest.
A larger batch changes the training more than the cost models' differences are worth, so that among those within 2 % of
the fastest the smallest is taken.
"""

from collections.abc import Sequence

from neuroshard_api.documents.batch_choice import BatchChoices, BatchDecision, TriedBatch
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest

from neuroshard_planner.choices.trials import LEAST_SHARE
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.searches import Search


def plan_of_best_batch(request: PlanRequest, choices: BatchChoices, *, first: Search, search: Search) -> Plan:
    """Return the plan at the chosen batch size, whose request has that size; equal arguments give equal plans.

    Args:
        request: what is planned.
        choices: of the request.
        first: finds the first plan that fits of a request without such a choice.
        search: finds the plan of such a request.

    Raises:
        RequestError: the dense part was not counted, so that it is not known what fits; or as the search does.
        InfeasibleError: nothing fits at the smallest size either.
    """
    if choices.dense is None:
        raise RequestError(
            "batch_size_per_device: is chosen with the dense part counted at each size, and it was not counted"
            "; hint: count it by `python -m neuroshard_trainer.dense_profile`, or give a number"
        )
    requests = {
        each.batch_size_per_device: request.with_batch(each.batch_size_per_device, each) for each in choices.dense
    }
    tried: dict[int, Plan | InfeasibleError] = {}

    def is_found(size: int) -> bool:
        if size not in tried:
            try:
                tried[size] = first(requests[size])
            except InfeasibleError as error:
                tried[size] = error
        return isinstance(tried[size], Plan)

    sizes = choices.sizes
    for size in sizes[::2]:
        if not is_found(size):
            break
    smallest = tried[sizes[0]]
    if isinstance(smallest, InfeasibleError):
        raise InfeasibleError(
            f"at {sizes[0]:,} samples per device, the fewest of batch_size_per_device Auto: {smallest}"
        ) from smallest
    for size in _neighbors(sizes, _fastest(tried)):
        is_found(size)
    found = {size: each for size, each in tried.items() if isinstance(each, Plan)}
    enough = (1 - LEAST_SHARE) * found[_fastest(tried)].samples_per_second
    chosen = search(requests[min(size for size, each in found.items() if each.samples_per_second >= enough)])
    decision = BatchDecision(tried=tuple(_described(size, tried[size]) for size in sorted(tried)))
    return chosen.model_copy(update={"batch": decision})


def _fastest(tried: dict[int, Plan | InfeasibleError]) -> int:
    """Return the size of the most samples per second, of equals the smallest."""
    speeds = {size: each.samples_per_second for size, each in tried.items() if isinstance(each, Plan)}
    return max(sorted(speeds), key=lambda size: speeds[size])


def _neighbors(sizes: Sequence[int], size: int) -> Sequence[int]:
    place = sizes.index(size)
    return sizes[max(place - 1, 0) : place + 2]


def _described(size: int, found: Plan | InfeasibleError) -> TriedBatch:
    if isinstance(found, Plan):
        return TriedBatch(samples_per_device=size, samples_per_second=found.samples_per_second)
    return TriedBatch(samples_per_device=size, problem=str(found))
