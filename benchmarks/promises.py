"""How far the promises of levers are from the plans with them, and what they add to the time of a plan.

    OMP_NUM_THREADS=1 python -m benchmarks.promises --kept FILE [--sets pool] [--tasks 200] [--first 0] [--minutes M]

Each task is planned plain, and again with each lever, whether it is worth naming or not. Types on the wire are planned
as their option permits them, so that a plan without them keeps its placement where that is cheaper. Tasks are those of
``permitted_forms``, of the pool of published tables, or of random tables. The kept file takes up each task as it ends,
and the same command goes on after the last of them; the result is of all tasks that it has, of both sets. ``--first``
leaves out tasks that a release was tuned on. ``--plans`` is another kept file: what it found with a lever counts again,
so that a change of promises alone is measured in a fifth of the time.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from neuroshard_api.documents.communication import CommunicationChoices
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import Constraints, PlanRequest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.choices.trials import least_gain
from neuroshard_planner.errors import PlannerError
from neuroshard_planner.levers import PROMISE_ERROR, LeverRequest, Promises, questions, saved_share, with_levers
from neuroshard_planner.pipeline import plan as planned
from neuroshard_planner.planning import Bundle

from benchmarks.permitted_forms import task, tight
from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE, random_tables

NAMED_ERROR = 0.03
"""Of the promised step, which promises that are named should keep."""
FIRST_SEED = 77_000
DEVICE_TYPES = (DEVICE_TYPE, "a100-80gb", "h200-141gb", DEVICE_TYPE)
DEVICES = ((1, 2), (1, 4), (1, 8), (2, 4), (2, 8), (3, 8))
TIGHT = 1.3
"""Memory of a device over its share of the weights, in a third of the random tasks."""


def pool_task(index: int) -> tuple[str, PlanRequest]:
    """Return the device type and the request of a task of published tables."""
    return DEVICE_TYPE, task(index)


def random_task(index: int) -> tuple[str, PlanRequest]:
    """Return the device type and the request of a task of random tables; in half of the tasks a third repeats lists."""
    generator = np.random.default_rng(FIRST_SEED + index)
    num_nodes, per_node = DEVICES[int(generator.integers(len(DEVICES)))]
    num_devices = num_nodes * per_node
    tables = random_tables(int(generator.integers(4, 64)), num_devices, generator, name=f"random {index}")
    repeated = {"duplication_group": "user", "duplication_factor": float(generator.choice([1.0, 3.0]))}
    if index % 2:
        own = (each if at % 3 else each.model_copy(update=repeated) for at, each in enumerate(tables.tables))
        tables = tables.model_copy(update={"session_run": 8, "tables": tuple(own)})
    constraints = Constraints()
    if index % 3 == 0:
        constraints = tight(tables, num_devices, room=TIGHT)
    device_type = DEVICE_TYPES[index % len(DEVICE_TYPES)]
    return device_type, PlanRequest(
        tables=tables,
        topology=preset(device_type).topology(num_nodes=num_nodes, devices_per_node=per_node),
        batch_size_per_device=int(generator.choice([512, 2048, 8192])),
        optimizer=Optimizer.ROWWISE_ADAGRAD,
        constraints=constraints,
    )


SETS: dict[str, tuple[str, Callable[[int], tuple[str, PlanRequest]]]] = {
    "pool": ("8 to 60 published tables on 8, 16, and 32 devices (simulated H100)", pool_task),
    "random": ("4 to 63 random tables on 2 to 24 devices (simulated A100, H100, and H200)", random_task),
}
"""Of both kinds of sets what they are, and what makes a task of one."""


def judged(
    plan: Plan, promises: Promises, lever: LeverRequest, found: float | None, *, bundle: Bundle
) -> dict[str, Any] | None:
    """Return the promise of a lever and the plan with it. None: nothing fits with it, or its bound excludes it.

    Args:
        plan: without the lever.
        promises: of the plan.
        lever: that is judged.
        found: share that the plan with the lever saves. None: it is planned.
        bundle: of the plan.
    """
    try:
        promise_ms = promises.total_ms(lever)
        if promise_ms is None:
            return None
        if found is None:
            found_ms = planned(permitting(lever), bundle=bundle).predicted.total_ms + lever.added_ms
            found = saved_share(plan, lever, found_ms)
    except PlannerError:
        return None
    promised = saved_share(plan, lever, promise_ms)
    return {
        "lever": lever.name,
        "text": lever.text,
        "error": (1 - promised) / (1 - found) - 1,
        "is_named": promised > max(least_gain(plan), PROMISE_ERROR),
        "promised": promised,
        "saved": found,
    }


def permitting(lever: LeverRequest) -> PlanRequest:
    """Return the request that the option of a lever asks for; types on the wire are permitted and not given."""
    types = lever.request.wire
    if types is None:
        return lever.request
    choices = CommunicationChoices(forward=(types.forward,), backward=(types.backward,))
    return lever.request.model_copy(update={"wire": None, "communication": choices})


def measured(sets: str, index: int, known: Mapping[str, float]) -> dict[str, Any]:
    """Return the promises of a task, and the processor time of its levers over that of its plan. None: nothing fits.

    Args:
        sets: kind of the task's tables.
        index: of the task.
        known: shares that plans with levers save, by their texts.
    """
    device_type, request = SETS[sets][1](index)
    bundle, of_task = bundled_bundle(device_type), {"sets": sets, "task": index}
    began = time.process_time()
    try:
        plan = planned(request, bundle=bundle)
    except PlannerError:
        return {**of_task, "share": None, "rows": []}
    planned_s = time.process_time() - began
    began = time.process_time()
    with_levers(plan, costs=bundle)
    share = (time.process_time() - began) / planned_s
    promises = Promises(plan, costs=bundle)
    levers = questions(plan, costs=bundle)
    found = (judged(plan, promises, each, known.get(each.text), bundle=bundle) for each in levers)
    return {**of_task, "share": share, "rows": [each for each in found if each is not None]}


def kept(file: Path) -> list[dict[str, Any]]:
    """Return the measured tasks of a file; empty: there is none yet."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def report(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the result's lines."""
    lines = [
        "# Promises of levers next to the plans with them",
        "",
        "Named are levers that are promised to save more than the cost models can distinguish, and",
        f"{100 * PROMISE_ERROR:g} %: of a step, or per sample where the lever changes the samples of a step. The error",
        "is that of the promised step. False are those of the named that save nothing.",
    ]
    for sets, (text, _) in SETS.items():
        own = [each for each in tasks if each["sets"] == sets and each["share"] is not None]
        if own:
            lines += ["", f"## {len(own)} tasks of {text}", "", *_table(own)]
    return lines


def _table(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the tasks of one kind of sets."""
    by_lever: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in (row for each in tasks for row in each["rows"]):
        by_lever[row["lever"]].append(row)
    every = [row for rows in by_lever.values() for row in rows if row["is_named"]]
    beyond, false = (sum(map(is_so, every)) for is_so in (_is_beyond, lambda row: row["saved"] <= 0))
    others = (row["saved"] for rows in by_lever.values() for row in rows if not row["is_named"])
    missed = [saved for saved in others if saved > PROMISE_ERROR]
    gain = max(missed, default=0.0)
    shares = [each["share"] for each in tasks]
    lines = [
        f"| lever | plans | median error | worst | named | median | worst | beyond {100 * NAMED_ERROR:g} % | false |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, own in by_lever.items():
        named = [each for each in own if each["is_named"]]
        errors, of_named = ([abs(each["error"]) for each in some] for some in (own, named))
        lines.append(
            f"| {name} | {len(own)} | {_percent(median(errors))} | {_percent(max(errors))} | {len(named)} "
            f"| {_percent(median(of_named)) if named else '-'} | {_percent(max(of_named)) if named else '-'} "
            f"| {sum(map(_is_beyond, named))} | {sum(each['saved'] <= 0 for each in named)} |"
        )
    lines += [
        "",
        f"Of {len(every)} named promises {beyond} are beyond {100 * NAMED_ERROR:g} %, and {false} are false.",
        f"{len(missed)} levers that save over {100 * PROMISE_ERROR:g} % are not named, at most {_percent(gain)}.",
        "",
        "Processor time of all levers over that of the plan:",
        f"{_percent(median(shares))} in the median, {_percent(max(shares))} at most.",
    ]
    return lines


def _is_beyond(row: Mapping[str, Any]) -> bool:
    return bool(abs(row["error"]) > NAMED_ERROR)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--kept", type=Path, required=True, help="file that takes up each task as it ends")
    parser.add_argument("--sets", choices=tuple(SETS), default="pool", help="tables of the tasks")
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="task to begin with")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no task after so long")
    parser.add_argument("--plans", type=Path, help="kept file of the same planner, whose plans count again")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    known = {each["task"] for each in kept(options.kept) if each["sets"] == options.sets}
    again = [] if options.plans is None else [each for each in kept(options.plans) if each["sets"] == options.sets]
    plans = {each["task"]: {row["text"]: row["saved"] for row in each["rows"]} for each in again}
    for index in range(options.first, options.first + options.tasks):
        if index not in known and time.monotonic() < ends:
            found = measured(options.sets, index, plans.get(index, {}))
            with options.kept.open("a") as file:
                file.write(json.dumps(found) + "\n")
    lines = report(kept(options.kept))
    sys.stdout.write("\n".join(lines) + "\n")
    write_result("promises", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
