"""Which tables a plan stores in other types than their own, and what that gives, as sentences."""

from neuroshard_api.documents.plan import Plan
from neuroshard_api.process.sizes import format_bytes
from neuroshard_api.sharding.kinds import ShardingType

MOST_NAMED = 5


def stored_types_text(plan: Plan) -> str | None:
    """Return a sentence on the tables' types, their saving, and changed results. None: there was no choice."""
    decided = plan.stored_types
    if decided is None:
        return None
    if not decided.tables:
        return f"the tables' own: {decided.reason}"
    by_type: dict[str, list[str]] = {}
    for table in decided.tables:
        by_type.setdefault(table.chosen.value, []).append(table.name)
    named = "; ".join(f"{_names(names)} as {kind}" for kind, names in sorted(by_type.items()))
    price = (
        "no plan with their own types was found or permitted"
        if decided.own_ms is None
        else f"{decided.own_ms:.3f} -> {plan.predicted.total_ms:.3f} ms"
    )
    saved = f"{format_bytes(decided.saved_bytes)} of weights less"
    return f"{named}: {saved}, {price}; weights are rounded, which changes results"


def stored_type_of(plan: Plan, name: str) -> str | None:
    """Return the type of a table that the plan chose, or the reason for its own. None: there was no choice."""
    decided = plan.stored_types
    if decided is None:
        return None
    found = next((table for table in decided.tables if table.name == name), None)
    if found is None:
        if len(plan.request.constraints.data_types_of(name) or ()) < 2:  # noqa: PLR2004 - one is no choice
            return None
        placed = next(table for table in plan.tables if table.name == name)
        is_copy = placed.sharding_type is ShardingType.DATA_PARALLEL
        why = "data_parallel tables are trained in it" if is_copy else "a narrow type would not shorten the step"
        return f"its own: {decided.reason or why}"
    return (
        f"{found.chosen} in place of {found.own}: {format_bytes(found.saved_bytes)} of weights less; weights are "
        "rounded after each update, which changes results"
    )


def _names(names: list[str]) -> str:
    shown = ", ".join(names[:MOST_NAMED])
    return shown if len(names) <= MOST_NAMED else f"{shown}, and {len(names) - MOST_NAMED} more"
