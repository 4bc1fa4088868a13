"""Tables of the reference that are written from code: ``python docs/reference_tables.py`` (`make tables`).

Each table is the part of a page between ``<!-- NAME: ... -->`` and ``<!-- end of NAME -->``.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from neuroshard_api.documents.docstrings import attribute_docstrings
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_decisions.actions import Event, EventReason
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_operator.process.metrics import OperatorMetrics
from neuroshard_operator.settings import PREFIX, Settings
from prometheus_client.metrics import MetricWrapperBase

REFERENCE = Path(__file__).parent / "reference"
NOTE = "written by `make tables` from the code; change that"


def settings_table() -> str:
    """Return the environment variables of the operator with their defaults and meanings."""
    meanings = attribute_docstrings(Settings)
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = "required" if field.is_required() else _default(name, field.default)
        rows.append(f"| `{PREFIX}{name.upper()}` | {default} | {_one_line(meanings[name])} |")
    return "\n".join(rows)


def _default(name: str, default: object) -> str:
    if isinstance(default, tuple):
        return ", ".join(default) or ("all" if name == "namespaces" else "none")
    return "none" if default is None else str(default).lower() if isinstance(default, bool) else str(default)


def metrics_table() -> str:
    """Return the metrics of the operator by the names that Prometheus shows."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    families = {family.name: family for family in OperatorMetrics().registry.collect()}
    for metric in vars(OperatorMetrics()).values():
        if isinstance(metric, MetricWrapperBase):
            (described,) = metric.describe()
            families.pop(described.name)
            name = f"{described.name}_total" if described.type == "counter" else described.name
            labels = ", ".join(metric._labelnames)  # noqa: SLF001 - prometheus_client has no public accessor
            rows.append(f"| `{name}` | {described.type} | {labels} | {_one_line(described.documentation)} |")
    assert not families, f"metrics without an attribute: {', '.join(families)}"
    return "\n".join(rows)


def exit_codes_table() -> str:
    """Return the exit codes with their meanings and remedies."""
    docstrings = dict(_member_docstrings(ExitCode))
    rows = ["| code | name | meaning | what to do |", "|---|---|---|---|"]
    for code in ExitCode:
        meaning, _, remedy = docstrings[code.name].partition("\n\n")
        name = code.name.lower().replace("_", " ")
        rows.append(f"| {code.value} | {name} | {_one_line(meaning)} | {_one_line(remedy)} |")
    return "\n".join(rows)


def conditions_table() -> str:
    """Return the types of conditions with what holds where one is True."""
    docstrings = dict(_member_docstrings(ConditionType))
    return "\n".join(
        [
            "| condition | True if |",
            "|---|---|",
            *(f"| `{kind}` | {_one_line(docstrings[kind.name])} |" for kind in ConditionType),
        ]
    )


def reasons_table() -> str:
    """Return the reasons of conditions with their meanings and remedies, below a heading for each group of the enum."""
    docstrings = dict(_member_docstrings(Reason))
    titles = _titles(Reason)
    parts: list[str] = []
    for reason in Reason:
        if reason.name in titles:
            parts += ["", f"### {titles[reason.name]}", "", "| reason | meaning | what to do |", "|---|---|---|"]
        meaning, _, remedy = docstrings[reason.name].partition("\n\n")
        parts.append(f"| `{reason}` | {_one_line(meaning)} | {_one_line(remedy)} |")
    return "\n".join(parts).strip()


def events_table() -> str:
    """Return the reasons of events with their types and meanings."""
    docstrings = dict(_member_docstrings(EventReason))
    rows = ["| reason | type | when |", "|---|---|---|"]
    for reason in EventReason:
        kind = Event(reason=reason, message="").kind
        rows.append(f"| `{reason}` | {kind} | {_one_line(docstrings[reason.name])} |")
    return "\n".join(rows)


def _titles(cls: type) -> dict[str, str]:
    """Return the comments in the body of an enum by the name of the member below each."""
    found = re.findall(r"^    # (.*)\n    ([A-Z_]+) = ", inspect.getsource(cls), flags=re.MULTILINE)
    return {name: title for title, name in found}


def _member_docstrings(cls: type) -> Iterator[tuple[str, str]]:
    """Give the members of an enum with the docstrings below them."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(definition, ast.ClassDef)
    for above, below in pairwise(definition.body):
        match above, below:
            case ast.Assign(targets=[ast.Name(id=name)]), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, inspect.cleandoc(text)


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "&#124;")


TABLES: Mapping[str, tuple[str, Callable[[], str]]] = {
    "settings": ("operator.md", settings_table),
    "metrics": ("operator.md", metrics_table),
    "exit codes": ("exit-codes.md", exit_codes_table),
    "conditions": ("reasons.md", conditions_table),
    "reasons": ("reasons.md", reasons_table),
    "events": ("reasons.md", events_table),
}
"""The page and the writer of each table."""


def with_table(page: str, name: str, table: str) -> str:
    """Return a page with the named table replaced. Raises ValueError if the page does not have its two marks once."""
    begin, end = f"<!-- {name}: {NOTE} -->\n", f"<!-- end of {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page must have {begin.strip()!r} and {end!r} once each")
    return re.sub(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: f"{begin}\n{table}\n\n{end}", page, flags=re.DOTALL
    )


def main() -> None:
    """Write all tables into their pages."""
    for name, (file, write) in TABLES.items():
        page = REFERENCE / file
        page.write_text(with_table(page.read_text(encoding="utf-8"), name, write()), encoding="utf-8")


if __name__ == "__main__":
    main()
