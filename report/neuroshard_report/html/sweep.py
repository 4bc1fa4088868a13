"""A sweep as one HTML file, in the styles of the report."""

from neuroshard_report.html.page import environment, page_style
from neuroshard_report.sweep import WAY_COLUMNS, SweepView, best_first, result_columns, result_row


def render_sweep_html(view: SweepView) -> str:
    """Return the page. Equal sweeps give equal pages."""
    return (
        environment()
        .get_template("sweep.html.j2")
        .render(
            view=view,
            way_columns=WAY_COLUMNS,
            result_columns=result_columns(view.results),
            results=[(result, result_row(result)) for result in best_first(view.results)],
            style=page_style(),
        )
    )
