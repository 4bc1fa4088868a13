"""``neuroshard compare``: every algorithm on one request."""

import json as json_format
from dataclasses import fields
from typing import TYPE_CHECKING

from neuroshard_dlrm.options import RequestOptions

from neuroshard_cli.shared.output import print_document, print_text
from neuroshard_cli.shared.request_options import JsonOption, takes_request_options

if TYPE_CHECKING:
    from neuroshard_report.explain.comparison import Comparison
    from neuroshard_report.explain.robustness import Regret


@takes_request_options("constraints", "dense")
def compare(
    options: RequestOptions,
    json: JsonOption = False,
) -> None:
    """Compare all algorithms on one request.

    Each is costed by the same cost models and by the simulator of the device, and timed.
    """
    from neuroshard_api.documents.request import Algorithm
    from neuroshard_dlrm.comparing import timed_comparison
    from neuroshard_dlrm.devices import find_bundle
    from neuroshard_dlrm.requests import build_request
    from neuroshard_report.explain.comparison import regrets_of
    from neuroshard_report.terminal.comparison import Timed, render_comparison
    from neuroshard_report.terminal.progress import activity

    request = build_request(options, Algorithm.NEUROSHARD, with_dense_of_jobs=True)
    bundle = find_bundle(options.bundle, request.topology.device)
    lines: list[Timed] = []
    with activity("comparing", is_silent=json) as shown:
        for number, algorithm in enumerate(Algorithm):
            shown.begin(f"{number + 1}/{len(Algorithm)} {algorithm}", done=number, total=len(Algorithm))
            lines.append(timed_comparison(request, algorithm, bundle=bundle))
    if json:
        regrets = regrets_of(timed.comparison for timed in lines)
        described = [_line(each.comparison, each.seconds, regrets.get(each.comparison.algorithm)) for each in lines]
        print_document(json_format.dumps(described, indent=1) + "\n")
    else:
        print_text(render_comparison(request, lines))


def _line(comparison: "Comparison", seconds: float, regret: "Regret | None") -> dict[str, object]:
    """Return one algorithm's line as plain data; the costs are whole PlanCost documents."""
    outcome = comparison.outcome
    line: dict[str, object] = {
        "algorithm": comparison.algorithm.value,
        "seconds": seconds,
        "evaluations": comparison.evaluations,
    }
    if outcome is None or regret is None:
        return {**line, "problem": comparison.problem}
    costs = {
        "predicted": outcome.predicted.model_dump(mode="json"),
        "simulated": outcome.simulated.model_dump(mode="json"),
        "step": outcome.step.model_dump(mode="json"),
    }
    numbers = {each.name: getattr(outcome, each.name) for each in fields(outcome) if each.name not in costs}
    return {**line, **costs, **numbers, "median_regret": regret.median, "worst_regret": regret.worst}
