"""``neuroshard compare``: every algorithm on one request."""

import json as json_format
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from neuroshard_cli.output import print_document, print_text, progress_console
from neuroshard_cli.request_options import RequestOptions, build_request, find_bundle, takes_request_options

if TYPE_CHECKING:
    from neuroshard_planner.explain.comparison import Comparison


@takes_request_options
def compare(
    options: RequestOptions,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON; errors are JSON too.")] = False,
) -> None:
    """Compare all algorithms on one request.

    Each is costed by the same cost models and by the simulator of the device, and timed.
    """
    from neuroshard_api.request import Algorithm
    from neuroshard_planner.explain.comparison import compare as compared
    from neuroshard_report.terminal.comparison import Timed, render_comparison

    request = build_request(options, Algorithm.NEUROSHARD)
    bundle = find_bundle(options.bundle, request.topology.device.name)
    lines: list[Timed] = []
    with progress_console().status("comparing all algorithms") as status:
        outcomes = compared(request, bundle=bundle)
        started = time.perf_counter()
        for found in outcomes:
            now = time.perf_counter()
            lines.append(Timed(comparison=found, seconds=now - started))
            status.update(f"compared {len(lines)} of {len(Algorithm)} algorithms")
            started = now
    if json:
        print_document(json_format.dumps([_line(timed.comparison, timed.seconds) for timed in lines], indent=1) + "\n")
    else:
        print_text(render_comparison(request, lines))


def _line(comparison: "Comparison", seconds: float) -> dict[str, object]:
    """Return one algorithm's line as plain data; the costs are whole PlanCost documents."""
    outcome = comparison.outcome
    line: dict[str, object] = {
        "algorithm": comparison.algorithm.value,
        "seconds": seconds,
        "evaluations": comparison.evaluations,
    }
    if outcome is None:
        return {**line, "problem": comparison.problem}
    costs = {
        "predicted": outcome.predicted.model_dump(mode="json"),
        "simulated": outcome.simulated.model_dump(mode="json"),
    }
    numbers = {each.name: getattr(outcome, each.name) for each in fields(outcome) if each.name not in costs}
    return {**line, **costs, **numbers}
