"""What changes from one plan to another, in the words that text and HTML share. Computes no cost."""

from collections.abc import Sequence

from neuroshard_api.process.sizes import format_bytes

from neuroshard_report.explain.difference import FieldChange, PlanDifference, PlanPrice
from neuroshard_report.quantities import format_ms, format_percent
from neuroshard_report.summary import COST_TERMS, EXPANSION_TERM, SERVER_TERM

PART_NAMES = dict((*COST_TERMS, EXPANSION_TERM, SERVER_TERM))
"""Names of the parts of a step for people, by their fields."""
_OF_DEVICE = ("topology.device.", "topology.intra_node.", "topology.inter_node.")
"""Fields of a request that follow from the kind of device."""
_DEVICE_NAME = "topology.device.name"
MOST_NAMED = 5
"""Tables, and fields of the request, that are named in a sentence."""


def change_text(before_ms: float, after_ms: float) -> str:
    """Return a change of milliseconds with its sign, and its share of what was before: ``-0.12 (-4.1 %)``."""
    change_ms = after_ms - before_ms
    sign = "+" if change_ms >= 0 else "-"
    share = f" ({sign}{format_percent(abs(change_ms) / before_ms)})" if before_ms else ""
    return f"{sign}{format_ms(abs(change_ms))}{share}"


def difference_facts(found: PlanDifference) -> list[tuple[str, str]]:
    """Return the difference in a few lines, each with its name."""
    facts = [("model", found.name), ("predicted", _predicted(found))]
    if found.before is not None and found.after is not None and not found.has_equal_costs:
        facts.append(("prices", _prices(found.before, found.after)))
    facts.append(("moves", _moves(found)))
    for name, tables in (("removed", found.removed), ("added", found.added), ("reshaped", found.reshaped)):
        if tables:
            facts.append((name, f"{_named(tables)}; their bytes are not counted"))
    asked = _without_data_sheet(found.asked)
    if asked:
        facts.append(("asked", "; ".join(map(field_text, asked[:MOST_NAMED])) + _rest(len(asked))))
    return facts


def _without_data_sheet(asked: Sequence[FieldChange]) -> Sequence[FieldChange]:
    """Return the fields that differ, of another kind of device its name alone."""
    if all(each.field != _DEVICE_NAME for each in asked):
        return asked
    return [each for each in asked if each.field == _DEVICE_NAME or not each.field.startswith(_OF_DEVICE)]


def field_text(change: FieldChange) -> str:
    """Return a field of the request with both values, as far as they are short."""
    if change.before is None and change.after is None:
        return f"{change.field} differs"
    before, after = (_value_text(change.field, value) for value in (change.before, change.after))
    return f"{change.field}: {before} -> {after}"


def _value_text(field: str, value: str | None) -> str:
    if value is None:
        return "not set"
    return format_bytes(int(value)) if field.endswith("_bytes") and value.isdigit() else value


def _predicted(found: PlanDifference) -> str:
    before, after = found.before, found.after
    if before is None or after is None:
        return f"{'neither plan has a' if before is after else 'one of the plans has no'} price; times are not compared"
    times = f"{format_ms(before.total_ms)} -> {format_ms(after.total_ms)} ms"
    slowest = f"slowest device {before.slowest_device} -> {after.slowest_device}"
    return f"{times}, {change_text(before.total_ms, after.total_ms)}; {slowest}"


def _prices(before: PlanPrice, after: PlanPrice) -> str:
    sources = before.source if before.source == after.source else f"{before.source} -> {after.source}"
    return f"by different cost models ({sources}): their times cannot be compared; price both by `neuroshard score`"


def _moves(found: PlanDifference) -> str:
    if not found.tables:
        return f"none of {found.num_tables} tables moves"
    share = f" ({format_percent(found.moved_bytes / found.all_bytes)} of all)" if found.all_bytes else ""
    return f"{len(found.tables)} of {found.num_tables} tables, {format_bytes(found.moved_bytes)}{share}"


def _named(tables: tuple[str, ...]) -> str:
    return ", ".join(tables[:MOST_NAMED]) + _rest(len(tables))


def _rest(count: int) -> str:
    return f", and {count - MOST_NAMED} more" if count > MOST_NAMED else ""
