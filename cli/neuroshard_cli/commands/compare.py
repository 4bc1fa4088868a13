"""``neuroshard compare``: every algorithm on one request."""

import json as json_format
import time
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm.options import RequestOptions

from neuroshard_cli.shared.output import print_document, print_text
from neuroshard_cli.shared.request_options import takes_request_options
from neuroshard_cli.shared.time_limit import TimeLimitError, time_limit

if TYPE_CHECKING:
    from neuroshard_api.documents.request import Algorithm
    from neuroshard_planner.explain.comparison import Comparison
    from neuroshard_planner.explain.robustness import Regret


@takes_request_options
def compare(
    options: RequestOptions,
    algorithms: Annotated[str | None, typer.Option(help="Those to compare, separated by commas. Default: all.")] = None,
    torchrec_seconds: Annotated[
        float,
        typer.Option(min=0.001, max=1e6, help="Time limit of TorchRec's planner, whose search grows with the tables."),
    ] = 60.0,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON; errors are JSON too.")] = False,
) -> None:
    """Compare all algorithms on one request.

    Each is costed by the same cost models and by the simulator of the device, and timed.
    """
    from neuroshard_api.documents.request import Algorithm
    from neuroshard_api.process.errors import MissingPackageError
    from neuroshard_dlrm.devices import find_bundle
    from neuroshard_dlrm.requests import build_request
    from neuroshard_planner.baselines.torchrec import require_torchrec
    from neuroshard_planner.explain.comparison import Comparison, regrets_of
    from neuroshard_planner.explain.comparison import compare as compared
    from neuroshard_report.terminal.comparison import Timed, render_comparison
    from neuroshard_report.terminal.progress import activity

    request = build_request(options, Algorithm.NEUROSHARD)
    bundle = find_bundle(options.bundle, request.topology.device, any_device=options.any_device)
    wanted = chosen_algorithms(algorithms)
    lines: list[Timed] = []
    with activity("comparing", is_silent=json) as shown:
        for number, algorithm in enumerate(wanted):
            shown.begin(f"{algorithm}, {number + 1} of {len(wanted)} algorithms", done=number, total=len(wanted))
            started = time.perf_counter()
            limit = torchrec_seconds if algorithm is Algorithm.TORCHREC else None
            if limit is not None:
                with suppress(MissingPackageError):  # which the comparison reports
                    require_torchrec("the algorithm torchrec")  # an import must not be cut off
            try:
                with time_limit(limit):
                    (found,) = compared(request, bundle=bundle, algorithms=(algorithm,))
            except TimeLimitError:
                problem = f"TorchRec's planner took more than {limit:g} s; hint: raise --torchrec-seconds"
                found = Comparison(algorithm=algorithm, evaluations=0, problem=problem)
            lines.append(Timed(comparison=found, seconds=time.perf_counter() - started))
    if json:
        regrets = regrets_of(timed.comparison for timed in lines)
        described = [_line(each.comparison, each.seconds, regrets.get(each.comparison.algorithm)) for each in lines]
        print_document(json_format.dumps(described, indent=1) + "\n")
    else:
        print_text(render_comparison(request, lines))


def chosen_algorithms(names: str | None) -> "list[Algorithm]":
    """Return the algorithms of a list of names, all for None. Raises CommandError for a name that there is not."""
    from neuroshard_api.documents.request import Algorithm

    chosen = [name.strip() for name in names.split(",")] if names is not None else list(Algorithm)
    unknown = [name for name in chosen if name not in list(Algorithm)]
    if unknown:
        raise CommandError(f"--algorithms: there is no {unknown[0]!r}; hint: choose among {', '.join(Algorithm)}")
    return [each for each in Algorithm if each in chosen]


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
