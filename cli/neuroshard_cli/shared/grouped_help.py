"""Help of one command as plain text, its options in titled groups."""

from gettext import gettext
from typing import Any

import typer
from typer.core import TyperCommand


class GroupedCommand(TyperCommand):
    """A command that lists each option under the title that it has, and those without one last."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # noqa: ANN401 - typer's formatter is private
        """Write the arguments, and the groups in the order in which their first options come."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else _title(parameter)
                sections.setdefault(title, []).append(record)
        untitled = sections.pop("Options", [])
        for title, records in {**sections, "Options": untitled}.items():
            if records:
                with formatter.section(gettext(title)):
                    formatter.write_dl(records)


def _title(parameter: Any) -> str:  # noqa: ANN401 - typer's parameters are private
    return getattr(parameter, "rich_help_panel", None) or "Options"
