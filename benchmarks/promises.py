"""How far the promises of levers are from the plans with them, and what they add to the time of a plan.

    OMP_NUM_THREADS=1 python -m benchmarks.promises --kept FILE [--tasks 200] [--first 0] [--minutes M]  # till all are

Each task is planned plain, and again with each lever, whether it is worth naming or not. Types on the wire are planned
as their option permits them, so that a plan without them keeps its placement where that is cheaper. The kept file takes
up each task as it ends, and the same command goes on after the last of them; the result is of all tasks that it has.
``--first`` leaves out tasks that a release was tuned on. ``--plans`` is another kept file: what it found with a lever
counts again, so that a change of promises alone is measured in a fifth of the time.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from neuroshard_api.documents.communication import CommunicationChoices
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.choices.trials import least_gain
from neuroshard_planner.errors import PlannerError
from neuroshard_planner.levers import PROMISE_ERROR, LeverRequest, Promises, questions, saved_share, with_levers
from neuroshard_planner.pipeline import plan as planned

from benchmarks.permitted_forms import task
from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE

_BUNDLE = bundled_bundle(DEVICE_TYPE)
NAMED_ERROR = 0.03
"""Of the promised step, which promises that are named should keep."""


def judged(plan: Plan, promises: Promises, lever: LeverRequest, found: float | None) -> dict[str, Any] | None:
    """Return the promise of a lever and the plan with it. None: nothing fits with it, or its bound excludes it.

    Args:
        plan: without the lever.
        promises: of the plan.
        lever: that is judged.
        found: share that the plan with the lever saves. None: it is planned.
    """
    try:
        promise_ms = promises.total_ms(lever)
        if promise_ms is None:
            return None
        if found is None:
            found_ms = planned(permitting(lever), bundle=_BUNDLE).predicted.total_ms + lever.added_ms
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


def measured(index: int, known: Mapping[str, float]) -> dict[str, Any]:
    """Return the promises of a task, and the processor time of its levers over that of its plan. None: nothing fits.

    ``known`` are shares that plans with levers save, by their texts.
    """
    began = time.process_time()
    try:
        plan = planned(task(index), bundle=_BUNDLE)
    except PlannerError:
        return {"task": index, "share": None, "rows": []}
    planned_s = time.process_time() - began
    began = time.process_time()
    with_levers(plan, costs=_BUNDLE)
    share = (time.process_time() - began) / planned_s
    promises = Promises(plan, costs=_BUNDLE)
    found = (judged(plan, promises, each, known.get(each.text)) for each in questions(plan, costs=_BUNDLE))
    return {"task": index, "share": share, "rows": [each for each in found if each is not None]}


def kept(file: Path) -> list[dict[str, Any]]:
    """Return the measured tasks of a file; empty: there is none yet."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def report(tasks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the result's lines."""
    by_lever: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in (row for each in tasks for row in each["rows"]):
        by_lever[row["lever"]].append(row)
    every = [row for rows in by_lever.values() for row in rows if row["is_named"]]
    beyond, false = (sum(map(is_so, every)) for is_so in (_is_beyond, lambda row: row["saved"] <= 0))
    others = (row["saved"] for rows in by_lever.values() for row in rows if not row["is_named"])
    missed = [saved for saved in others if saved > PROMISE_ERROR]
    gain = max(missed, default=0.0)
    shares = [each["share"] for each in tasks if each["share"] is not None]
    lines = [
        "# Promises of levers next to the plans with them",
        "",
        f"{len(shares)} tasks of 8 to 60 tables on 8, 16, and 32 devices (simulated H100). Named are levers that are",
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
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="task to begin with")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no task after so long")
    parser.add_argument("--plans", type=Path, help="kept file of the same planner, whose plans count again")
    options = parser.parse_args()
    ends = time.monotonic() + 60 * options.minutes
    known = {each["task"] for each in kept(options.kept)}
    again = [] if options.plans is None else kept(options.plans)
    plans = {each["task"]: {row["text"]: row["saved"] for row in each["rows"]} for each in again}
    for index in range(options.first, options.first + options.tasks):
        if index not in known and time.monotonic() < ends:
            with options.kept.open("a") as file:
                file.write(json.dumps(measured(index, plans.get(index, {}))) + "\n")
    lines = report(kept(options.kept))
    sys.stdout.write("\n".join(lines) + "\n")
    write_result("promises", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
