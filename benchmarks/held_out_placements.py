"""Plans of all types next to TorchRec's planner and published strategies, on held-out tasks on 1, 2, and 8 nodes.

    OMP_NUM_THREADS=1 python -m benchmarks.held_out_placements [--tasks 100] [--torchrec-seconds 60] [--records FILE]

All have the same tables, topology, memory ledger, and sharding types. TorchRec's planner runs once for each of four
least widths of shards, and the best of its plans under the cost networks counts, as the best variant of
each strategy does. Plans are judged by the simulator without noise. A file of records takes up each task as it ends;
the same command goes on after the last of them, --again searches their plans again, and --report writes the result of
those that it has. Writes
benchmarks/results/held-out-placements_any_<date>.md.
"""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from types import FrameType
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.baselines.torchrec import require_torchrec, torchrec_placement
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.pipeline import plan
from neuroshard_planner.plans.tables import placement_of
from neuroshard_planner.problem.plan_cost import simulated_cost
from neuroshard_planner.problem.problem import Placement, Problem

from benchmarks.published_strategies import all_row_wise, all_table_row_wise, copies_and_table_row_wise, embark
from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE, FEWEST_TABLES, MOST_TABLES, draw_pool, sampled_tables, workload_request

NODE_COUNTS = (1, 2, 8)
DEVICES_PER_NODE = 8
BATCH_SIZE_PER_DEVICE = 8192
FIRST_SEED = 9_150_000
"""Of the tasks; other benchmarks have others, and so had the tasks that the search was developed with."""
TIE = 0.001
"""Of a plan's cost: two plans that are closer are called equal."""
TORCHREC = "TorchRec's planner, all types"
STRATEGIES: Mapping[str, Callable[[Problem], Iterator[Placement]]] = {
    "all row_wise": all_row_wise,
    "all table_row_wise": all_table_row_wise,
    "copies, the rest table_row_wise": copies_and_table_row_wise,
    "EMBark's strategy": embark,
}


class Task(NamedTuple):
    """Simulated milliseconds of one task's plans."""

    seed: int
    num_nodes: int
    ours_ms: float
    """Infinite where no plan fits."""
    others_ms: Mapping[str, float | None]
    """None: no plan, or none in time."""


class TimeIsOverError(BaseException):
    """Code that catches every Exception does not swallow it."""


@contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raise TimeIsOverError in the block after these seconds of processor time of this process."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TimeIsOverError

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def task_request(seed: int, num_nodes: int) -> PlanRequest:
    """Return a task of the paper's kind on nodes of whole devices, all sharding types allowed."""
    generator = np.random.default_rng(seed)
    num_tables = int(generator.integers(FEWEST_TABLES, MOST_TABLES + 1))
    tables = sampled_tables(draw_pool(), num_tables, generator, name=f"task {seed}")
    asked = workload_request(tables, num_nodes * DEVICES_PER_NODE, devices_per_node=DEVICES_PER_NODE)
    every = Constraints(sharding_types=tuple(ShardingType))
    return asked.model_copy(update={"batch_size_per_device": BATCH_SIZE_PER_DEVICE, "constraints": every})


def measured(seed: int, num_nodes: int, *, torchrec_seconds: float) -> Task:
    """Plan one task in all ways."""
    problem = Problem(task_request(seed, num_nodes), bundled_bundle(DEVICE_TYPE))
    ours_ms = searched_ms(problem)
    others = {name: _cheapest(problem, placements(problem)) for name, placements in STRATEGIES.items()}
    try:
        with processor_limit(torchrec_seconds):
            others[TORCHREC] = torchrec_placement(problem)
    except (InfeasibleError, TimeIsOverError) as error:
        sys.stderr.write(f"seed {seed}: {type(error).__name__} {error}\n")
        others[TORCHREC] = None
    others_ms = {
        name: None if each is None else simulated_cost(problem, each).total_ms for name, each in others.items()
    }
    result = Task(seed, num_nodes, ours_ms, others_ms)
    sys.stderr.write(f"{num_nodes} nodes, seed {seed}, {len(problem.request.tables.tables)} tables: {result}\n")
    return result


def searched_ms(problem: Problem) -> float:
    """Return the simulated milliseconds of the search's plan; infinite where none fits."""
    try:
        found = plan(problem.request, bundle=bundled_bundle(DEVICE_TYPE))
    except InfeasibleError:
        return np.inf
    return simulated_cost(problem, placement_of(found.tables, problem)).total_ms


def planned_again(task: Task) -> Task:
    """Return a task with the plan of today's search; what the others cost stays."""
    problem = Problem(task_request(task.seed, task.num_nodes), bundled_bundle(DEVICE_TYPE))
    return task._replace(ours_ms=searched_ms(problem))


def _cheapest(problem: Problem, placements: Iterator[Placement]) -> Placement | None:
    """Return the cheapest by the networks of those that fit. None: there is none."""
    fitting = [each for each in placements if problem.fits(each)]
    return fitting[int(problem.total_ms(fitting).argmin())] if fitting else None


def recorded(path: Path | None) -> list[Task]:
    """Return the tasks in a file of records, one a line as JSON; none where there is no file."""
    if path is None or not path.exists():
        return []
    return [Task(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def written(task: Task) -> str:
    """Return a task as a line of a file of records."""
    return json.dumps(task._asdict()) + "\n"


def lines_of(tasks: Sequence[Task], name: str) -> Iterator[str]:
    """Yield a baseline's line for each number of nodes, and for all."""
    for num_nodes in (*NODE_COUNTS, None):
        chosen = [each for each in tasks if num_nodes in {None, each.num_nodes}]
        gains = [1 - each.ours_ms / ms for each in chosen if (ms := each.others_ms[name]) is not None]
        if not gains:
            continue
        low, _, high = quantiles(gains, n=4, method="inclusive") if len(gains) > 1 else gains * 3
        not_worse = sum(gain >= -TIE for gain in gains)
        cells = (
            name,
            num_nodes or "all",
            f"{len(gains)} of {len(chosen)}",
            f"{not_worse} ({not_worse / len(gains):.0%})",
            sum(gain > TIE for gain in gains),
            f"{median(gains):.1%}",
            f"{low:.1%} to {high:.1%}",
            f"{min(gains):.1%}",
            f"{max(gains):.1%}",
        )
        yield f"| {' | '.join(map(str, cells))} |"


def seed_ranges(tasks: Sequence[Task]) -> Iterator[str]:
    """Yield the seeds of tasks, runs of successive ones as "first to last"."""
    seeds = [task.seed for task in tasks]
    firsts = [seed for seed in seeds if seed - 1 not in seeds]
    lasts = [seed for seed in seeds if seed + 1 not in seeds]
    for first, last in zip(sorted(firsts), sorted(lasts), strict=True):
        yield f"{first} to {last}"


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100, help="in all, divided among the numbers of nodes")
    parser.add_argument("--torchrec-seconds", type=float, default=60.0, help="of processor time for one task")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED)
    parser.add_argument("--records", type=Path, help="file that takes up each task as it ends, as JSON")
    parser.add_argument("--report", action="store_true", help="plan nothing: write the result of the records")
    parser.add_argument("--again", action="store_true", help="search plans of the recorded tasks again, after a change")
    arguments = parser.parse_args()
    if not arguments.report:
        require_torchrec("this benchmark")
    tasks = recorded(arguments.records)
    if arguments.again and arguments.records is not None:
        tasks = [planned_again(task) for task in tasks]
        arguments.records.write_text("".join(map(written, tasks)), encoding="utf-8")
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.tasks)
    for seed in () if arguments.report else seeds[len(tasks) :]:
        num_nodes = NODE_COUNTS[(seed - arguments.first_seed) % len(NODE_COUNTS)]
        tasks.append(measured(seed, num_nodes, torchrec_seconds=arguments.torchrec_seconds))
        if arguments.records is not None:
            with arguments.records.open("a", encoding="utf-8") as file:
                file.write(written(tasks[-1]))
    lines = [
        "# Plans of all types on held-out tasks",
        "",
        f"{len(tasks)} tasks of the paper's kind ({FEWEST_TABLES} to {MOST_TABLES} tables), seeds",
        f"{' and '.join(seed_ranges(tasks))}, {BATCH_SIZE_PER_DEVICE} samples per device, on nodes of",
        f"{DEVICES_PER_NODE} {DEVICE_TYPE} with all of their memory. Simulated without noise; nothing was",
        "measured on a GPU. All sharding types are allowed; TorchRec's planner runs once for each of four least widths",
        "of shards, also by columns.",
        f"It is stopped after {arguments.torchrec_seconds:g} s of processor time, and such a task does not count. Of a",
        "strategy's variants (numbers of copies and halvings) the cheapest by the networks counts. A gain of 1 % is a",
        f"plan of the search that costs 1 % less; not worse: at most {TIE:.1%} dearer; cheaper: by more than that.",
        "",
        "| next to | nodes | tasks | not worse | cheaper | median gain | quartiles | least | most |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in (TORCHREC, *STRATEGIES):
        lines += lines_of(tasks, name)
    worse = [
        f"- seed {each.seed}, {each.num_nodes} nodes: {each.ours_ms:.3f} ms, {name} {ms:.3f} ms"
        for each in tasks
        for name, ms in each.others_ms.items()
        if ms is not None and each.ours_ms > ms * (1 + TIE)
    ]
    lines += ["", "Where the search is dearer:" if worse else "The search is dearer nowhere.", "", *worse]
    write_result("held-out-placements", lines, hardware="any")


if __name__ == "__main__":
    main()
