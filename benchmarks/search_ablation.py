"""Leaves out one part of the search after the other: what each brings, and what it takes.

    OMP_NUM_THREADS=1 python -m benchmarks.search_ablation --kept FILE [--first 0] [--tasks 200] [--public]
        [--parts PART ...] [--named NAME] [--most-pairs N] [--minutes M] [--report]

Tasks have 4 to 1,000 tables on 4 to 512 devices of 1 to 64 nodes, log-uniform within a size: half have up to 40 tables
on up to 16 devices, nine twentieths up to 120 on up to 64, and a twentieth any number. Half have tables of the pool of
the task distribution, half random ones (100 to 40 million rows, widths 16 to 128). Memory is tight in a third, a sixth
is by columns alone, an eighth may use host memory. --public plans the public workloads in their place, on 1 and 2
nodes of 8 devices, where they fit. --first names the first task: from 1,000 on they have tuned nothing. The kept file
takes up each plan as it ends, and the same command goes on after the last of them; --minutes ends it, and --most-pairs
leaves tasks of more tables times devices for later. --named plans the whole search alone and keeps it under a name, so
that one file holds those of two checkouts. --report writes
benchmarks/results/search-ablation_<hardware>_<date>.md from the kept file, public-ablation_* from its public
workloads, and search-checkouts_* where there are plans of two checkouts.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.topology import HostMemory
from neuroshard_api.sharding.kinds import ComputeKernel
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.memory_ledger import MemoryLedger
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.memory.packing import Packing
from neuroshard_planner.planning import searched
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.workload_store import read_workload, workload_names

from benchmarks.results_file import write_result
from benchmarks.tasks import (
    DEVICE_TYPE,
    RESERVE_FRACTION,
    by_columns,
    draw_pool,
    random_tables,
    sampled_tables,
)

FIRST_SEED = 40_270_000
"""Of the tasks; other benchmarks have others."""
FEWEST_TABLES, FEWEST_DEVICES = 4, 4
SMALL, MEDIUM, LARGE = (40, 16), (120, 64), (1_000, 512)
"""Most tables and most devices of a task."""
TIGHT_ROOMS = (1.12, 1.3, 1.6, 2.2, 3.5)
"""Memory of a device over an even share of what the tables need, where it is tight: the first in which they fit."""
PUBLIC_NODES = (1, 2)
"""Nodes of 8 devices for each public workload; their tasks have negative numbers."""
WHOLE, SEED = "whole search", "another seed"
COLUMNS = (
    *("without", "tasks", "cost (geometric mean)", "spread (standard deviation)", "dearer by 0.3 %"),
    *("cheaper by 0.3 %", "worst", "best", "no plan", "shards", "time"),
)
PARTS: Mapping[str, Mapping[str, Any]] = {
    WHOLE: {},
    SEED: {},
    "opening and assignments": {"most_opened_units": 0},
    "levels of the beam": {"patience": 0},
    "proposals by width": {"widths": ()},
    "proposals by memory": {"memory_shares": (1.0,)},
    "prices of memory": {"memory_prices": (0.0,)},
    "3 prices of memory, not 2": {"memory_prices": (0.0, 1.0)},
    "limits on columns": {"dim_limits": (1.1, float("inf"))},
    "rounds": {"most_rounds": 0},
    "end near the bound": {"near": 1.0},
    "more work far above the bound": {"far": float("inf")},
    "half of the moves": {"num_targets": 8, "num_judged": 16},
}
MIXED_PARTS: Mapping[str, Mapping[str, Any]] = {
    "assignments of 4 powers, not 2": {"powers": (4, 16)},
    "assignments of 4 powers, not 1": {"powers": (8,)},
    "conversions": {"has_conversions": False},
}
HOST_PARTS: Mapping[str, Mapping[str, Any]] = {
    "limits on a shard": {"most_alone": (float("inf"),)},
}


class Task(NamedTuple):
    """A request and the parts that its search has."""

    request: PlanRequest
    parts: Mapping[str, Mapping[str, Any]]


class Record(NamedTuple):
    """A plan of one task without one part."""

    task: int
    part: str
    ms: float | None
    """None: no plan was found."""
    gap: float
    num_shards: int
    evaluations: int
    seconds: float
    """Processor time."""
    num_tables: int
    num_devices: int


def drawn(task: int) -> Task:
    """Return the task of a number."""
    generator = np.random.default_rng(FIRST_SEED + task)
    most_tables, most_devices = LARGE if task % 20 == 19 else SMALL if task % 2 == 0 else MEDIUM  # noqa: PLR2004 - see the module's docstring
    num_tables = int(np.exp(generator.uniform(np.log(FEWEST_TABLES), np.log(most_tables))))
    num_devices = 2 ** int(generator.integers(np.log2(FEWEST_DEVICES), np.log2(most_devices) + 1))
    per_node = min(num_devices, 8 if num_devices > 64 else int(generator.choice([4, 8])))  # noqa: PLR2004 - 64 nodes
    name = f"task {task}"
    of_pool = generator.random() < 1 / 2
    tables = (
        sampled_tables(draw_pool(), num_tables, generator, name=name)
        if of_pool
        else random_tables(num_tables, num_devices, generator, name=name)
    )
    request = PlanRequest(
        tables=tables,
        topology=preset(DEVICE_TYPE).topology(num_nodes=num_devices // per_node, devices_per_node=per_node),
        batch_size_per_device=max(512, 65_536 // num_devices) if generator.random() < 1 / 2 else 8_192,
    )
    is_on_host, is_tight = task % 8 == 3, task % 3 == 1  # noqa: PLR2004 - see the module's docstring
    if is_on_host:
        return Task(_on_host(request), {WHOLE: {}, SEED: {}, **HOST_PARTS})
    if is_tight:
        request = _tight(request)
    if task % 6 == 5:  # noqa: PLR2004 - see the module's docstring
        return Task(by_columns(request), PARTS)
    return Task(request, {**PARTS, **MIXED_PARTS})


def public(task: int) -> Task:
    """Return a public workload by its number, -1 and below."""
    nodes, name = list(product(PUBLIC_NODES, workload_names()))[-1 - task]
    topology = preset(DEVICE_TYPE).topology(num_nodes=nodes, devices_per_node=8)
    request = PlanRequest(tables=read_workload(name), topology=topology, batch_size_per_device=8_192)
    return Task(request, {**PARTS, **MIXED_PARTS})


def public_tasks() -> Sequence[int]:
    """Return the numbers of the public workloads."""
    return range(-1, -1 - len(PUBLIC_NODES) * len(workload_names()), -1)


def _tight(request: PlanRequest) -> PlanRequest:
    """Return the request on devices with the least of the rooms in which the tables fit, packed by memory."""
    for room in TIGHT_ROOMS:
        limits = Constraints(max_memory_bytes_per_device=_limit(request, room=room))
        tight = request.model_copy(update={"constraints": limits})
        packing = Packing(tight)
        if packing.capacity_bytes > 0 and packing.pack(packing.capacity_bytes) is not None:
            return tight
    return request


def _limit(request: PlanRequest, *, room: float) -> int:
    """Return the memory of a device that leaves shards this many times an even share."""
    ledger, tables = MemoryLedger(request), request.tables.tables
    rows = np.array([table.num_embeddings for table in tables])
    columns = np.array([table.embedding_dim for table in tables])
    share = int(ledger.shard_bytes(np.arange(len(rows)), rows, columns).sum()) // request.topology.num_devices
    limit = int((room * share + ledger.tensor_bytes) / (1 - RESERVE_FRACTION))
    return min(limit, request.topology.device.memory_bytes)


def _on_host(request: PlanRequest) -> PlanRequest:
    """Return the request on devices with room for two thirds of the tables, and host memory for all."""
    host = HostMemory(bytes_per_node=2 * 10**12, link=preset(DEVICE_TYPE).host_link)
    topology = request.topology.model_copy(update={"host_memory": host})
    constraints = Constraints(
        max_memory_bytes_per_device=_limit(request, room=2 / 3), compute_kernels=tuple(ComputeKernel)
    )
    return request.model_copy(update={"topology": topology, "constraints": constraints})


def measured(number: int, task: Task, part: str) -> Record:
    """Plan a task without one part, or with all where it has no such part."""
    tuning = replace(SearchTuning(), **task.parts.get(part, {}))
    request = task.request
    if part == SEED:
        request = request.model_copy(update={"search": request.search.model_copy(update={"seed": 1})})
    begin = time.process_time()
    ms, gap, num_shards, evaluations = None, 0.0, 0, 0
    try:
        found = searched(request, bundled_bundle(DEVICE_TYPE), None, tuning=tuning)
    except InfeasibleError:
        pass
    else:
        ms, gap, evaluations = found.predicted.total_ms, found.gap, found.search.evaluations
        num_shards = sum(len(table.shards) for table in found.tables)
    spent = round(time.process_time() - begin, 3)
    num_tables, num_devices = len(request.tables.tables), request.topology.num_devices
    return Record(number, part, ms, gap, num_shards, evaluations, spent, num_tables, num_devices)


def recorded(path: Path) -> list[Record]:
    """Return the plans in a file of records, one a line as JSON; none where there is no file."""
    if not path.exists():
        return []
    return [Record(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def measured_all(
    path: Path, tasks: Iterable[int], *, parts: Sequence[str], name: str, most_pairs: int, minutes: float
) -> None:
    """Add the plans that the file lacks, in ``minutes`` of processor time.

    Args:
        path: of the records.
        tasks: their numbers.
        parts: that are left out; empty: all. Tasks whose search has none of them are not planned.
        name: under which plans with all parts are kept, and no others made; empty: those of ``parts`` are made.
        most_pairs: of tables and devices; larger tasks are left for later.
        minutes: after which no further plan is begun.
    """
    known = {(record.task, record.part) for record in recorded(path)}
    with path.open("a", encoding="utf-8") as file:
        for number in tasks:
            task = drawn(number) if number >= 0 else public(number)
            if len(task.request.tables.tables) * task.request.topology.num_devices > most_pairs:
                continue
            if parts and not set(parts).intersection(task.parts).difference((WHOLE, SEED)):
                continue
            for part in (name,) if name else task.parts:
                if (number, part) in known or (parts and part not in parts):
                    continue
                if time.process_time() > 60 * minutes:
                    return
                record = measured(number, task, part)
                file.write(json.dumps(record._asdict()) + "\n")
                file.flush()
                sys.stderr.write(f"{record}\n")


def report(records: Sequence[Record], tasks: str) -> list[str]:
    """Return the gain of each part as lines of Markdown; ``tasks`` names those of the records."""
    whole = {record.task: record for record in records if record.part == WHOLE and record.ms is not None}
    gap, seconds = median(record.gap for record in whole.values()), sum(each.seconds for each in whole.values())
    most_pairs = max(record.num_tables * record.num_devices for record in whole.values())
    return [
        "# What each part of the search brings",
        "",
        f"{len(whole)} {tasks}, of up to {most_pairs:,} tables times",
        f"devices; median gap {gap:.1%}, {seconds:.0f} s of processor time with all parts. A row is of the",
        "tasks whose search has the part: cost, shards, and time of the search without it, over those of the whole",
        "search; time over that with another seed where there is one, since the first plan of a task also counts its",
        "tables' hits. A part pays above 0 % of cost.",
        f"`{SEED}` leaves out nothing: what chance does. Other names than those of parts are of another checkout.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *_rows(records, whole),
    ]


def _rows(records: Sequence[Record], whole: Mapping[int, Record]) -> Iterator[str]:
    warm = {record.task: record for record in records if record.part == SEED}
    for part in dict.fromkeys(record.part for record in records):
        pairs = [(record, whole[record.task]) for record in records if record.part == part and record.task in whole]
        both = [(one, other) for one, other in pairs if one.ms is not None and other.ms is not None]
        if part == WHOLE or not both:
            continue
        logs = np.array([np.log(one.ms / other.ms) for one, other in both if one.ms and other.ms])
        lost = sum(one.ms is None and other.ms is not None for one, other in pairs)
        shards = sum(one.num_shards for one, _ in both) / sum(other.num_shards for _, other in both)
        seconds = sum(one.seconds for one, _ in pairs) / sum(warm.get(other.task, other).seconds for _, other in pairs)
        yield (
            f"| {part} | {len(pairs)} | {np.expm1(logs.mean()):+.2%} | {logs.std():.2%} | {(logs > 0.003).sum()} "  # noqa: PLR2004 - the heading
            f"| {(logs < -0.003).sum()} | {np.expm1(logs.max()):+.2%} | {np.expm1(logs.min()):+.2%} | {lost} "  # noqa: PLR2004 - the heading
            f"| {shards - 1:+.1%} | {seconds - 1:+.0%} |"
        )


def main() -> None:
    """Plan what the records lack, or write the result."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kept", type=Path, required=True, help="file that takes up each plan as it ends")
    parser.add_argument("--first", type=int, default=0, help="number of the first task")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--public", action="store_true", help="plan public workloads in the place of drawn tasks")
    parser.add_argument("--parts", nargs="+", default=(), help="that are left out, by their names in the result")
    parser.add_argument("--named", default="", help="plan the whole search alone, and keep it under this name")
    parser.add_argument("--most-pairs", type=int, default=10**9, help="of tables and devices of a task")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="processor time after which to end")
    parser.add_argument("--report", action="store_true", help="write the result of the kept plans")
    arguments = parser.parse_args()
    if arguments.report:
        found = recorded(arguments.kept)
        of_public = [record for record in found if record.task < 0]
        of_drawn = [record for record in found if record.task >= 0]
        if of_public:
            print(write_result("public-ablation", report(of_public, "public workloads on 1 and 2 nodes of 8 devices")))
        if of_drawn:
            drawn = "tasks of those that `benchmarks/search_ablation.py` draws"
            known = {WHOLE, SEED, *PARTS, *MIXED_PARTS, *HOST_PARTS}
            is_of_parts = {record.part for record in of_drawn} <= known
            print(write_result("search-ablation" if is_of_parts else "search-checkouts", report(of_drawn, drawn)))
    else:
        limits = {"most_pairs": arguments.most_pairs, "minutes": arguments.minutes}
        drawn_tasks = range(arguments.first, arguments.first + arguments.tasks)
        numbers = public_tasks() if arguments.public else drawn_tasks
        measured_all(arguments.kept, numbers, parts=arguments.parts, name=arguments.named, **limits)


if __name__ == "__main__":
    main()
