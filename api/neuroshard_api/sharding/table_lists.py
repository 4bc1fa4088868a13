"""The tables of a plan held against those of its request: each is there once, in order, with shards that can be run."""

from collections import Counter
from collections.abc import Iterator, Sequence

from neuroshard_api.documents.plan_parts import TablePlacement
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.sharding.placement_rules import placement_problems


def table_problems(tables: Sequence[TablePlacement], request: PlanRequest) -> list[str]:
    """Return the problems of the tables alone: their names, order, and shards."""
    return list(_list_problems(tables, request)) or list(placement_problems(tables, request))


def _list_problems(tables: Sequence[TablePlacement], request: PlanRequest) -> Iterator[str]:
    wanted = [table.name for table in request.tables.tables]
    found = [table.name for table in tables]
    if found == wanted:
        return
    known = set(wanted)
    for index, name in enumerate(found):
        if name not in known:
            yield f"tables[{index}].name: there is no table {name!r} in the request; hint: remove it"
    repeated = [name for name, count in Counter(found).items() if count > 1 and name in known]
    for name in repeated:
        yield f"tables: {name!r} is in the plan {found.count(name)} times; hint: leave one"
    present = set(found)
    for name in wanted:
        if name not in present:
            yield f"tables: {name!r} of the request is missing; hint: add its shards"
    if Counter(found) == Counter(wanted):
        index = next(index for index, name in enumerate(found) if name != wanted[index])
        yield (
            f"tables[{index}].name: is {found[index]!r}, the request has {wanted[index]!r} there; "
            "keep the request's order"
        )
