"""How far the promises of levers are from the plans with them.

    OMP_NUM_THREADS=1 python -m benchmarks.promises [--tasks 60]

Each task is planned plain, and again with each lever, whether it is worth naming or not.
"""

import argparse
import sys
from collections import defaultdict
from statistics import median

from neuroshard_api.documents.levers import LeverName
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_planner.choices.trials import least_gain
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.levers import PROMISE_ERROR, promised_ms, questions
from neuroshard_planner.planning import searched

from benchmarks.permitted_forms import task
from benchmarks.results_file import write_result
from benchmarks.tasks import DEVICE_TYPE


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--tasks", type=int, default=60)
    options = parser.parse_args()
    bundle = bundled_bundle(DEVICE_TYPE)
    errors: dict[LeverName, list[float]] = defaultdict(list)
    named: dict[LeverName, list[float]] = defaultdict(list)
    num_false = 0
    for index in range(options.tasks):
        try:
            plan = searched(task(index), bundle, None)
        except InfeasibleError:
            continue
        for each in questions(plan):
            try:
                found_ms = searched(each.request, bundle, None).predicted.total_ms
            except InfeasibleError:
                continue
            promised = promised_ms(plan, each.request, costs=bundle)
            error, now_ms = promised / found_ms - 1, plan.predicted.total_ms
            errors[each.name].append(error)
            if 1 - promised / now_ms > max(least_gain(plan), PROMISE_ERROR):
                named[each.name].append(error)
                num_false += found_ms >= now_ms
        sys.stderr.write(f"task {index}\n")
    lines = [
        "# Promises of levers next to the plans with them",
        "",
        f"{options.tasks} tasks of 8 to 60 tables on 8, 16, and 32 devices (simulated H100). Named are levers that are",
        "promised to save more than the cost models can distinguish, and 5 %. The error is that of the promised step.",
        "",
        "| lever | plans | median error | worst | named | worst of these | beyond 5 % of these |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, all_errors in errors.items():
        own = named[name]
        worst = f"{100 * max(map(abs, own)):.1f} %" if own else "-"
        lines.append(
            f"| {name} | {len(all_errors)} | {100 * median(map(abs, all_errors)):.1f} % "
            f"| {100 * max(map(abs, all_errors)):.1f} % | {len(own)} | {worst} "
            f"| {sum(abs(each) > PROMISE_ERROR for each in own)} |"
        )
    lines += ["", f"Named levers whose plan does not cost less: {num_false}."]
    sys.stdout.write("\n".join(lines) + "\n")
    write_result("promises", lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
