"""What changes from one plan to another as one HTML file, in the styles of the report."""

from neuroshard_report.difference import PART_NAMES, change_text, difference_facts, field_text
from neuroshard_report.explain.difference import PlanDifference
from neuroshard_report.html.page import environment, page_style
from neuroshard_report.summary import shards_text

MAX_TABLES = 5000
"""Rows of tables: about 1 MB."""


def render_difference_html(found: PlanDifference) -> str:
    """Return the page of a difference. Equal differences give equal pages."""
    return (
        environment()
        .get_template("difference.html.j2")
        .render(
            found=found,
            facts=difference_facts(found),
            part_names=PART_NAMES,
            change=change_text,
            field_text=field_text,
            shards=shards_text,
            tables=found.tables[:MAX_TABLES],
            style=page_style(),
        )
    )
