"""From a request and a bundle to a plan: ``python -m neuroshard_planner --request FILE --bundle DIR --out FILE``.

What a planning pod runs. It ends with the exit codes of the ``neuroshard`` command, and a failure says one sentence
on stderr. Decides nothing about the request.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import run_command
from neuroshard_api.process.missing_package import NO_EXTRA


def main(arguments: Sequence[str] | None = None) -> ExitCode:
    """Write the plan that a request file asks for. The plan's file is there whole or not at all."""
    parser = argparse.ArgumentParser(prog="python -m neuroshard_planner", description="Search a sharding plan.")
    parser.add_argument("--request", type=Path, required=True, help="a plan request (JSON or YAML)")
    parser.add_argument("--dense", type=Path, help="the counted dense part (JSON); default: the request's memory")
    parser.add_argument("--statistics", type=Path, help="inputs as a trainer counted them, in place of the request's")
    parser.add_argument("--incumbent", type=Path, help="the plan in force (JSON), near which the plan stays")
    parser.add_argument("--bundle", type=Path, required=True, help="directory of the cost models, or a bundled device")
    parser.add_argument("--out", type=Path, required=True, help="where the plan is written")
    options = parser.parse_args(arguments)
    return run_command(lambda: _run(options), extra=NO_EXTRA, out=options.out)


def _run(options: argparse.Namespace) -> ExitCode:
    from neuroshard_api.documents.batch_choice import read_dense
    from neuroshard_api.documents.input_statistics import InputStatistics
    from neuroshard_api.documents.request import PlanRequest
    from neuroshard_api.process.atomic_file import write_whole
    from neuroshard_costs.bundle import bundle_at
    from neuroshard_costs.reuse.measured_inputs import with_measured_inputs

    from neuroshard_planner.errors import InfeasibleError
    from neuroshard_planner.incumbent_file import read_incumbent
    from neuroshard_planner.levers import with_levers
    from neuroshard_planner.pipeline import plan
    from neuroshard_planner.server_remedy import with_servers_priced

    request = PlanRequest.read(options.request)
    if options.dense is not None:
        request = request.with_dense_of(read_dense(options.dense), where=str(options.dense))
    if options.statistics is not None:
        request = with_measured_inputs(request, InputStatistics.read(options.statistics))
    incumbent = None if options.incumbent is None else read_incumbent(options.incumbent)
    bundle = bundle_at(options.bundle)
    try:
        found = plan(request, bundle=bundle, incumbent=incumbent)
    except InfeasibleError as error:
        raise with_servers_priced(error, request, bundle=bundle) from error
    found = with_levers(found, costs=bundle)
    write_whole(options.out, found.to_json())
    sys.stdout.write(f"{found.algorithm}: predicted {found.predicted.total_ms:.3f} ms ({found.predicted.source})\n")
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main())
