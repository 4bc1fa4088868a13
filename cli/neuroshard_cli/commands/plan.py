"""``neuroshard plan``: from tables to a plan."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_dlrm.options import RequestOptions

from neuroshard_cli.shared.batch_sizes import print_sizes, requests_of, with_sizes
from neuroshard_cli.shared.output import ResultFile, deliver, places_of, print_document, print_text
from neuroshard_cli.shared.request_options import MOST_USED, SEARCH, WHAT, JsonOption, takes_request_options

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import Plan
    from neuroshard_api.documents.request import PlanRequest
    from neuroshard_planner.search_state import SearchState
    from neuroshard_report.explain.batch_sizes import BatchSize
    from neuroshard_report.explain.robustness import TrafficCost


@takes_request_options()
def plan(
    options: RequestOptions,
    *,
    batch_sizes: tuple[int, ...],
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            help="Write the plan, or its report where FILE ends in .html; may be repeated.",
            metavar="FILE",
            rich_help_panel=MOST_USED,
        ),
    ] = None,
    statistics: Annotated[
        Path | None,
        typer.Option(
            help="Inputs as a trainer counted them (input-statistics.json), in place of the table set's.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    incumbent: Annotated[
        Path | None,
        typer.Option(
            help="The plan in force; of nearly equal plans the one that moves least is taken.", rich_help_panel=SEARCH
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Plan the placement of a model's embedding tables.

    Several numbers as --batch-size, such as 8192,4096,16384, are compared; the plan is for the first of them.
    """
    from neuroshard_api.documents.request import PlanRequest
    from neuroshard_dlrm.devices import find_bundle
    from neuroshard_dlrm.requests import read_source, request_of
    from neuroshard_planner.errors import InfeasibleError
    from neuroshard_planner.incumbent_file import read_incumbent
    from neuroshard_planner.levers import with_levers
    from neuroshard_planner.pipeline import plan as search
    from neuroshard_planner.searches import remembered
    from neuroshard_planner.server_remedy import with_servers_priced
    from neuroshard_report.explain.batch_sizes import at_batch_size
    from neuroshard_report.explain.robustness import traffic_costs
    from neuroshard_report.levers import of_request
    from neuroshard_report.terminal.plan import render_plan
    from neuroshard_report.terminal.progress import activity

    places = places_of(out)
    source = read_source(options.tables)
    sized = requests_of(source, options, batch_sizes)
    request = sized[0] if sized else request_of(source, options, None, with_dense_of_jobs=True)
    bundle = find_bundle(options.bundle, request.topology.device)
    request, *sized = _measured((request, *sized), statistics)
    before = None if incumbent is None else read_incumbent(incumbent)
    of_sizes: list[BatchSize] = []
    try:
        with activity("searching", is_silent=json) as shown:
            searched = remembered(
                partial(search, bundle=bundle, incumbent=before, watch=lambda state: shown.show(*_state(state)))
            )
            sizing = partial(at_batch_size, search=searched)
            of_sizes += map(sizing, shown.of(sized, total=len(sized) + 1, amount=lambda _: 1))
            found = searched(request)
            shown.show("what would save time", None)
            found = with_levers(found, costs=bundle)
            traffic = () if places.page is None else traffic_costs(found, bundle=bundle)
    except InfeasibleError as error:
        print_sizes(of_sizes, source=bundle.manifest.source, as_json=json)
        raise with_servers_priced(error, request, bundle=bundle) from error

    shown_plan = of_request(found) if isinstance(source, PlanRequest) else found

    def show() -> None:
        if json:
            print_document(with_sizes(found, of_sizes))
            return
        print_text(render_plan(shown_plan, traffic=traffic))
        print_sizes(of_sizes, source=bundle.manifest.source, as_json=False)

    page = ResultFile("report", places.page, lambda: _page(shown_plan, traffic))
    deliver(show, ResultFile("plan", places.document, found.to_json), page, says=not json)


def _state(state: "SearchState") -> tuple[str, float]:
    """Return a search's state, as a phrase that fits next to its times in 60 columns, and the share of its work."""
    from neuroshard_report.quantities import format_ms, format_percent

    gap = f", gap {format_percent(state.gap)}" if state.bound_ms else ""
    return f"best {format_ms(state.best_ms)} ms{gap}", state.work_share


def _page(found: "Plan", traffic: "Sequence[TrafficCost]") -> str:
    from neuroshard_report.html.page import render_html  # the template engine takes a fifth of a start

    return render_html(found, traffic=traffic)


def _measured(requests: "Sequence[PlanRequest]", statistics: Path | None) -> "Sequence[PlanRequest]":
    """Return requests for inputs as a trainer counted them; None: as they are."""
    from neuroshard_api.documents.input_statistics import InputStatistics
    from neuroshard_costs.reuse.measured_inputs import with_measured_inputs

    if statistics is None:
        return requests
    counted = InputStatistics.read(statistics)
    return [with_measured_inputs(each, counted) for each in requests]
