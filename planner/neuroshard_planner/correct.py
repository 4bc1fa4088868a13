"""From a bundle, a plan, and reports to a corrected bundle: ``python -m neuroshard_planner.correct --bundle DIR ...``.

What a calibrator's pod runs. It ends with the exit codes of the ``neuroshard`` command, and a failure says one sentence
on stderr.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from neuroshard_api.documents.plan import Plan
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import run_command
from neuroshard_api.process.missing_package import NO_EXTRA
from neuroshard_costs.fitting.step_correction import corrected

from neuroshard_planner.planning import Bundle
from neuroshard_planner.plans.imported_plan import imported_plan


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Write the cost models that a training's steps correct."""
    parser = argparse.ArgumentParser(
        prog="python -m neuroshard_planner.correct", description="Correct cost models by measured steps."
    )
    parser.add_argument("--bundle", type=Path, required=True, help="directory of the cost models")
    parser.add_argument("--plan", type=Path, required=True, help="the plan that was trained under (JSON)")
    parser.add_argument("--report", type=Path, action="append", required=True, help="a drift report or a step report")
    parser.add_argument(
        "--out", type=Path, required=True, help="directory that the corrected cost models are written to"
    )
    options = parser.parse_args(arguments)
    return run_command(lambda: _run(options), extra=NO_EXTRA, out=options.out)


def priced_again(plan: Plan, bundle: Bundle) -> Plan:
    """Return a plan's shards with the price that a bundle gives them."""
    return imported_plan(plan.tables, plan.resolved, bundle=bundle, must_fit=False)


def _run(options: argparse.Namespace) -> ExitCode:
    _, factors = corrected(options.bundle, options.plan, options.report, options.out, price=priced_again)
    for part, found in factors.items():
        sys.stdout.write(
            f"{part}: error {100 * found.mape_before:.1f} % before, {100 * found.mape_after:.1f} % after\n"
        )
    return ExitCode.OK


if __name__ == "__main__":
    raise SystemExit(main())
