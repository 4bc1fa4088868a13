"""How far the promises of levers are from the plans with them, and what they add to the time of a plan.

    OMP_NUM_THREADS=1 python -m benchmarks.promises [--tasks 60] [--rows ROWS.json]

Each task is planned plain, and again with each lever, whether it is worth naming or not.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from neuroshard_api.documents.plan import Plan
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.choices.trials import least_gain
from neuroshard_planner.errors import PlannerError
from neuroshard_planner.levers import PROMISE_ERROR, LeverRequest, Promises, questions, saved_share, with_levers
from neuroshard_planner.pipeline import plan as planned
from neuroshard_planner.planning import searched

from benchmarks.permitted_forms import task
from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE

_BUNDLE = bundled_bundle(DEVICE_TYPE)
NAMED_ERROR = 0.03
"""Of the promised step, which promises that are named should keep."""


def judged(plan: Plan, lever: LeverRequest) -> dict[str, Any] | None:
    """Return the promise of a lever and the plan with it. None: nothing fits with it."""
    try:
        promise_ms = Promises(plan, costs=_BUNDLE).total_ms(lever)
        found_ms = searched(lever.request, _BUNDLE, None).predicted.total_ms + lever.added_ms
    except PlannerError:
        return None
    if promise_ms is None:
        return None
    promised, found = (saved_share(plan, lever, ms) for ms in (promise_ms, found_ms))
    return {
        "lever": lever.name,
        "text": lever.text,
        "error": promise_ms / found_ms - 1,
        "is_named": promised > max(least_gain(plan), PROMISE_ERROR),
        "promised": promised,
        "saved": found,
    }


def rows_of(index: int) -> tuple[list[dict[str, Any]], float]:
    """Return the promises of a task, and the processor time of its levers over that of its plan."""
    began = time.process_time()
    plan = planned(task(index), bundle=_BUNDLE)
    planned_s = time.process_time() - began
    began = time.process_time()
    with_levers(plan, costs=_BUNDLE)
    share = (time.process_time() - began) / planned_s
    found = (judged(plan, each) for each in questions(plan, costs=_BUNDLE))
    return [{"task": index, **each} for each in found if each is not None], share


def report(rows: Sequence[dict[str, Any]], shares: Sequence[float], *, num_tasks: int) -> list[str]:
    """Return the result's lines."""
    by_lever: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_lever[row["lever"]].append(row)
    lines = [
        "# Promises of levers next to the plans with them",
        "",
        f"{num_tasks} tasks of 8 to 60 tables on 8, 16, and 32 devices (simulated H100). Named are levers that are",
        f"promised to save more than the cost models can distinguish, and {100 * PROMISE_ERROR:g} %: of a step, or per",
        "sample where the lever changes the samples of a step. The error is that of the promised step. False are",
        "those of the named that save nothing.",
        "",
        f"| lever | plans | median error | worst | named | median | worst | beyond {100 * NAMED_ERROR:g} % | false |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, own in by_lever.items():
        named = [each for each in own if each["is_named"]]
        errors, of_named = ([abs(each["error"]) for each in some] for some in (own, named))
        lines.append(
            f"| {name} | {len(own)} | {_percent(median(errors))} | {_percent(max(errors))} | {len(named)} "
            f"| {_percent(median(of_named)) if named else '-'} | {_percent(max(of_named)) if named else '-'} "
            f"| {sum(each > NAMED_ERROR for each in of_named)} | {sum(each['saved'] <= 0 for each in named)} |"
        )
    lines += [
        "",
        "Processor time of all levers over that of the plan:",
        f"{_percent(median(shares))} in the median, {_percent(max(shares))} at most.",
    ]
    return lines


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--rows", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    shares = []
    for index in range(options.tasks):
        try:
            found, share = rows_of(index)
        except PlannerError:
            continue
        rows += found
        shares.append(share)
        sys.stderr.write(f"task {index}\n")
    if options.rows is not None:
        options.rows.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    lines = report(rows, shares, num_tasks=options.tasks)
    sys.stdout.write("\n".join(lines) + "\n")
    write_result("promises", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
