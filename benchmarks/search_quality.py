"""Compares the neural search with every baseline on public workloads and on the paper's task distribution.

    OMP_NUM_THREADS=1 python -m benchmarks.search_quality [--tasks 100] [--torchrec-tasks 30]

Every plan is scored twice: by the cost networks that the search used, and by the device simulator without noise, which
the networks were trained on. Writes benchmarks/results/search-quality_<hardware>_<date>.md.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_costs.bundle import CostBundle, bundled_bundle
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.workload_store import read_workload, workload_names
from neuroshard_report.explain.comparison import AlgorithmResult, Comparison, compare

from benchmarks.results_file import write_result
from benchmarks.tasks import (
    DEVICE_TYPE,
    by_columns,
    full_ledger_request,
    task_tables,
    weights_only_request,
    workload_request,
)

DEVICE_COUNTS = (4, 8, 16, 64)
DEVICES_PER_NODE = 8
EXPECTED_GAIN = 0.15
MOST_TORCHREC_TABLES = 60
GREEDY = (Algorithm.DIM_GREEDY, Algorithm.SIZE_GREEDY, Algorithm.LOOKUP_GREEDY, Algorithm.SIZE_LOOKUP_GREEDY)
OTHERS = (*GREEDY, Algorithm.RANDOM, Algorithm.TORCHREC)


@dataclass(frozen=True, kw_only=True)
class Result:
    """All algorithms on one request."""

    name: str
    request: PlanRequest
    found: dict[Algorithm, Comparison]
    """Algorithms that ran, with or without success."""
    lower_bound_ms: float
    """Predicted; infinite where nothing fits."""
    seconds: float
    """Of a whole `plan` call, its baselines included."""
    problem: str | None
    """Why the neural search found nothing."""

    def outcome(self, algorithm: Algorithm) -> AlgorithmResult | None:
        """Return the outcome of the algorithm, or None."""
        comparison = self.found.get(algorithm)
        return comparison.outcome if comparison else None

    def simulated_ms(self, algorithm: Algorithm) -> float:
        """Return the simulated cost; infinite where the algorithm found nothing or did not run."""
        outcome = self.outcome(algorithm)
        return outcome.simulated.total_ms if outcome else np.inf

    def predicted_ms(self, algorithm: Algorithm) -> float:
        """Return the predicted cost; infinite where the algorithm found nothing or did not run."""
        outcome = self.outcome(algorithm)
        return outcome.predicted.total_ms if outcome else np.inf

    @property
    def best_greedy(self) -> Algorithm:
        """The greedy baseline of least simulated cost."""
        return min(GREEDY, key=self.simulated_ms)

    def gain(self, other: Algorithm) -> float:
        """Return the gain of the neural search's simulated cost, as a share of the other's."""
        return 1 - self.simulated_ms(Algorithm.NEUROSHARD) / self.simulated_ms(other)


def measure(name: str, request: PlanRequest, bundle: CostBundle, *, with_torchrec: bool) -> Result:
    """Run every algorithm on a request, and the neural search once more for its time."""
    algorithms = [each for each in Algorithm if each is not Algorithm.TORCHREC or with_torchrec]
    found = {each.algorithm: each for each in compare(request, bundle=bundle, algorithms=algorithms)}
    bound_ms, problem = np.inf, None
    start = time.process_time()
    try:
        bound_ms = plan(request, bundle=bundle).lower_bound_ms
    except InfeasibleError as error:
        problem = str(error)
    seconds = time.process_time() - start
    return Result(
        name=name,
        request=request,
        found=found,
        lower_bound_ms=bound_ms,
        seconds=seconds,
        problem=problem,
    )


def public_workloads(bundle: CostBundle, torchrec_devices: Sequence[int]) -> Iterator[Result]:
    """Measure every bundled workload on every number of devices; TorchRec's planner on these numbers alone."""
    for name in workload_names():
        tables = read_workload(name)
        for num_devices in DEVICE_COUNTS:
            nodes = {"devices_per_node": min(num_devices, DEVICES_PER_NODE)}
            request = by_columns(workload_request(tables, num_devices, **nodes))
            with_torchrec = len(tables.tables) <= MOST_TORCHREC_TABLES and num_devices in torchrec_devices
            yield measure(name, request, bundle, with_torchrec=with_torchrec)


def workload_lines(results: Sequence[Result]) -> list[str]:
    """Return the public workloads as Markdown."""
    fitting = [result for result in results if result.problem is None]
    lines = [
        "",
        f"## Public workloads on {DEVICE_TYPE}",
        "",
        "Simulated milliseconds of the embedding part of a step; `-`: found no plan; `.`: not run. Gain: over the best",
        "greedy. Gap: predicted cost over the lower bound under the networks. Seconds: a whole `plan` call.",
        "",
        "| workload | tables | devices | neuroshard | best greedy | which | gain | torchrec | random | gap | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {result.name} | {len(result.request.tables.tables)} | {result.request.topology.num_devices} "
        f"| {_ms(result, Algorithm.NEUROSHARD)} | {_ms(result, result.best_greedy)} "
        f"| {_greedy_name(result)} | {_gain(result)} | {_ms(result, Algorithm.TORCHREC)} "
        f"| {_ms(result, Algorithm.RANDOM)} | {_gap(result):.1%} | {result.seconds:.3f} |"
        for result in fitting
    ]
    lines += ["", *_beaten_lines(fitting)]
    if len(fitting) < len(results):
        lines += ["", "No plan fits:", ""]
        lines += [
            f"- {result.name}, {result.request.topology.num_devices} devices: {result.problem}"
            for result in results
            if result.problem
        ]
    return lines


def task_lines(title: str, rule: str, results: Sequence[Result]) -> list[str]:
    """Return one task set as Markdown."""
    fitting = [result for result in results if result.problem is None]
    with_greedy = [result for result in fitting if np.isfinite(result.simulated_ms(result.best_greedy))]
    lines = [
        "",
        f"## {title}",
        "",
        rule,
        "",
        f"Infeasible: {len(results) - len(fitting)} of {len(results)} tasks. Least, quartiles and most over the rest:",
        f"search {_quantiles([each.seconds for each in fitting], '.3f')} s,",
        f"gap to the lower bound {_quantiles([_gap(each) for each in fitting], '.1%')}.",
        "",
        "| gain of neuroshard over | tasks where it found a plan | least | quartile | median | quartile | most |",
        "|---|---|---|---|---|---|---|",
        _gain_row("the best greedy of each task, simulated", [each.gain(each.best_greedy) for each in with_greedy]),
        _gain_row("the same, predicted", [_predicted_gain(each) for each in with_greedy]),
        _gain_row("the same, if the lower bound were reached", [_headroom(each) for each in with_greedy]),
    ]
    for algorithm in OTHERS:
        ran = [result for result in fitting if algorithm in result.found]
        found = [result for result in ran if result.outcome(algorithm)]
        if ran:
            lines.append(_gain_row(f"{algorithm.value}, simulated", [each.gain(algorithm) for each in found]))
    return [*lines, "", *_verdict_lines(with_greedy), "", *_beaten_lines(fitting), "", *_miss_lines(results)]


def _verdict_lines(results: Sequence[Result]) -> list[str]:
    """Return whether the expected gain was met, and what could be met at best."""
    simulated = median(result.gain(result.best_greedy) for result in results)
    most = median(_headroom(result) for result in results)
    met = "met" if simulated >= EXPECTED_GAIN else "missed"
    reason = (
        f"; no plan could gain more than {most:.1%} in the median under these networks, because the best of four greedy"
        " plans per task is that near to the lower bound"
        if most < EXPECTED_GAIN
        else f"; the lower bound would allow {most:.1%}"
    )
    return [f"Expected: a median gain of {EXPECTED_GAIN:.0%} over the best greedy; {met} with {simulated:.1%}{reason}."]


def _beaten_lines(results: Sequence[Result]) -> list[str]:
    """Return the requests where a baseline's simulated cost is below the neural search's."""
    beaten = [
        (result, algorithm)
        for result in results
        for algorithm in OTHERS
        if result.simulated_ms(algorithm) < result.simulated_ms(Algorithm.NEUROSHARD) * (1 - 1e-9)
    ]
    if not beaten:
        return ["No baseline's simulated cost is below the neural search's anywhere."]
    lines = [
        "A baseline's simulated cost is below the neural search's here (what the networks predict in brackets):",
        "",
    ]
    lines += [
        f"- {result.name}, {result.request.topology.num_devices} devices: {algorithm.value} "
        f"{result.simulated_ms(algorithm):.4f} ms ({result.predicted_ms(algorithm):.4f}), neuroshard "
        f"{result.simulated_ms(Algorithm.NEUROSHARD):.4f} ms ({result.predicted_ms(Algorithm.NEUROSHARD):.4f})"
        for result, algorithm in beaten
    ]
    return lines


def _miss_lines(results: Sequence[Result]) -> list[str]:
    """Return the reasons that the infeasible requests are infeasible."""
    return [
        f"- {result.name}, {len(result.request.tables.tables)} tables: {result.problem}"
        for result in results
        if result.problem
    ]


def _gain_row(name: str, gains: Sequence[float]) -> str:
    return f"| {name} | {len(gains)} | " + _quantiles(gains, ".1%").replace(", ", " | ") + " |"


def _quantiles(values: Sequence[float], form: str) -> str:
    quantiles = np.quantile(values, [0.0, 0.25, 0.5, 0.75, 1.0]) if values else np.full(5, np.nan)
    return ", ".join(format(float(each), form) for each in quantiles)


def _ms(result: Result, algorithm: Algorithm) -> str:
    if algorithm not in result.found:
        return "."
    cost = result.simulated_ms(algorithm)
    return f"{cost:.3f}" if np.isfinite(cost) else "-"


def _greedy_name(result: Result) -> str:
    return result.best_greedy.value.removesuffix("_greedy") if result.outcome(result.best_greedy) else "none"


def _gain(result: Result) -> str:
    return f"{result.gain(result.best_greedy):.1%}" if result.outcome(result.best_greedy) else "-"


def _gap(result: Result) -> float:
    return result.predicted_ms(Algorithm.NEUROSHARD) / result.lower_bound_ms - 1


def _predicted_gain(result: Result) -> float:
    best_ms = min(result.predicted_ms(algorithm) for algorithm in GREEDY)
    return 1 - result.predicted_ms(Algorithm.NEUROSHARD) / best_ms


def _headroom(result: Result) -> float:
    return 1 - result.lower_bound_ms / min(result.predicted_ms(algorithm) for algorithm in GREEDY)


CAVEATS = [
    "# Plan cost of the neural search and of the baselines",
    "",
    "Read first: all costs are simulated or predicted by networks trained on the simulator; none is measured on a GPU.",
    "The search minimises the networks' prediction, so that the simulated cost shows what prediction error takes away",
    "again, and nothing about how near the simulator is to a device (simulator-vs-published). The tasks are redrawn",
    "from sums (task-pool). Greedy baselines never split a table. TorchRec's planner runs with four least shard widths",
    "and the best result under the networks counts. Seconds are of one thread's processor time.",
]


def main() -> None:
    """Measure everything and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100, help="tasks of each set (default: all 100)")
    parser.add_argument("--torchrec-tasks", type=int, default=30, help="of these, TorchRec's planner gets this number")
    parser.add_argument(
        "--torchrec-devices", type=int, nargs="*", default=DEVICE_COUNTS, help="on which it gets the public workloads"
    )
    arguments = parser.parse_args()
    bundle = bundled_bundle(DEVICE_TYPE)
    errors = ", ".join(f"{each.name} {each.hold_out.mape:.1%}" for each in bundle.manifest.networks)
    lines = [*CAVEATS, "", f"Bundle: {bundle.manifest.name}, {bundle.manifest.source}, hold-out MAPE {errors}."]
    lines += [
        f"TorchRec's planner takes seconds to minutes: it gets workloads of at most {MOST_TORCHREC_TABLES} tables on",
        f"{', '.join(map(str, arguments.torchrec_devices))} devices, and {arguments.torchrec_tasks} tasks of each set.",
    ]
    lines += workload_lines(list(_shown(public_workloads(bundle, arguments.torchrec_devices))))
    tables = task_tables()[: arguments.tasks]
    weights_only = (
        "4 GB hold the weights, FP32 with SGD; pooled embeddings and inputs have room of their own (tasks.py)."
    )
    everything = "4 GB hold all that training needs: weights, row-wise Adagrad, embeddings, inputs, 10 % reserve."
    for title, rule, build, num_devices in (
        ("Tasks on 4 devices, the paper's memory rule", weights_only, weights_only_request, 4),
        ("The same tasks on 8 devices", weights_only, weights_only_request, 8),
        ("Tasks on 4 devices, full memory ledger", everything, full_ledger_request, 4),
    ):
        results = _shown(
            measure(each.name, build(each, num_devices), bundle, with_torchrec=index < arguments.torchrec_tasks)
            for index, each in enumerate(tables)
        )
        lines += task_lines(title, rule, list(results))
    print(write_result("search-quality", lines))


def _shown(results: Iterator[Result]) -> Iterator[Result]:
    for result in results:
        print(f"{result.name}, {result.request.topology.num_devices} devices: {result.seconds:.3f} s", file=sys.stderr)
        yield result


if __name__ == "__main__":
    main()
