"""The other forms that a plan was compared with, for the terminal."""

from collections.abc import Sequence

from neuroshard_api.documents.plan_choices import PlanChoice
from rich.console import RenderableType
from rich.text import Text

from neuroshard_report.quantities import format_ms
from neuroshard_report.terminal.tables import TextTable


def choices_table(choices: Sequence[PlanChoice]) -> Sequence[RenderableType]:
    """Return the table of what was tried, after an empty line; nothing where nothing was."""
    rows = tuple(
        (
            choice.name.value.replace("_", " "),
            each.text,
            "-" if each.total_ms is None else format_ms(each.total_ms),
            "-" if each.bound_ms is None else format_ms(each.bound_ms),
            each.refusal or "chosen",
        )
        for choice in choices
        for each in choice.alternatives
    )
    if not rows:
        return ()
    columns = ("choice", "another form", "best ms", "not below ms", "decision")
    return Text(), TextTable(columns=columns, rows=rows, text_columns=(0, 1, 4))
