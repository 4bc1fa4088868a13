"""What changes from one plan to another, for the terminal."""

from neuroshard_api.process.sizes import format_bytes
from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.difference import PART_NAMES, change_text, difference_facts
from neuroshard_report.explain.difference import DeviceChange, PlanDifference
from neuroshard_report.quantities import format_ms
from neuroshard_report.summary import shards_text
from neuroshard_report.terminal.tables import TextTable, fact_grid

MAX_TABLES = 20
MAX_DEVICES = 16


def render_difference(found: PlanDifference) -> RenderableType:
    """Return facts, the parts of the step, the tables that move, and the devices that change."""
    shown: list[RenderableType] = [fact_grid(difference_facts(found), strong="predicted")]
    if found.parts:
        rows = tuple(
            (
                PART_NAMES[part.field],
                format_ms(part.before_ms),
                format_ms(part.after_ms),
                change_text(part.before_ms, part.after_ms),
            )
            for part in found.parts
        )
        shown += [Text(), TextTable(columns=("part, slowest device", "before ms", "after ms", "change"), rows=rows)]
    if found.tables:
        rows = tuple(
            (table.name, format_bytes(table.moved_bytes), shards_text(table.before), shards_text(table.after))
            for table in found.tables[:MAX_TABLES]
        )
        headings = ("table", "moves", "before: device (columns)", "after: device (columns)")
        shown += [Text(), TextTable(columns=headings, rows=rows, text_columns=(0, 2, 3))]
        if len(found.tables) > MAX_TABLES:
            shown.append(Text(f"and {len(found.tables) - MAX_TABLES} more tables that move"))
    changed = [device for device in found.devices if _changes(device)]
    if changed:
        columns = ("dev", "receives", "before ms", "after ms", "mem before", "mem after")
        shown += [Text(), TextTable(columns=columns, rows=tuple(map(_device_row, changed[:MAX_DEVICES])))]
        if len(changed) > MAX_DEVICES:
            shown.append(Text(f"and {len(changed) - MAX_DEVICES} more devices that change"))
    return Group(*shown)


def _changes(device: DeviceChange) -> bool:
    return (
        bool(device.received_bytes) or device.before_ms != device.after_ms or device.before_bytes != device.after_bytes
    )


def _device_row(device: DeviceChange) -> tuple[str, ...]:
    return (
        str(device.device),
        format_bytes(device.received_bytes),
        *("-" if ms is None else format_ms(ms) for ms in (device.before_ms, device.after_ms)),
        *("-" if size is None else format_bytes(size) for size in (device.before_bytes, device.after_bytes)),
    )
