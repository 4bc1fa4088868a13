"""``neuroshard compare-training``: a job trained under several plans in turns, on this machine's devices."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.exit_codes import ExitCode

from neuroshard_cli.failures import CommandError
from neuroshard_cli.output import check_writable, print_document, print_text, say, write_file

if TYPE_CHECKING:
    from neuroshard_api.plan import GivenPlan

STDERR = 2
"""What the processes print is progress; stdout is for the result."""


def compare_training(  # noqa: PLR0917 - typer passes by name
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A DLRMTrainingJob in YAML or JSON.")],
    plans: Annotated[
        list[Path],
        typer.Argument(metavar="PLAN...", help="Plan files; the first is the reference."),
    ],
    rounds: Annotated[int, typer.Option(min=2, help="Rounds that count; one more comes before them.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each round under each plan.")] = 10,
    data_dir: Annotated[
        Path | None,
        typer.Option(exists=True, file_okay=False, help="Where relative paths of spec.data begin. Default: JOB's."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the comparison (JSON).")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the rounds' step times (SVG).")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON; errors are JSON too.")] = False,
) -> None:
    """Train a job under several plans in turns, from equal weights on equal batches, and compare their step times."""
    from neuroshard_api.training_comparison import TrainingComparison, file_names
    from neuroshard_planner.plans.joint_memory import predicted_memory
    from neuroshard_report.html.rounds_plot import rounds_plot
    from neuroshard_report.quantities import format_bytes
    from neuroshard_report.terminal.training_comparison import render_training_comparison

    for path in (out, plot):
        if path is not None:
            check_writable(path)
    processes, given = _checked(job, plans)
    memory = predicted_memory(dict(zip(file_names(plans), given, strict=True)))
    if memory.total_bytes > memory.capacity_bytes:
        say(
            f"the models of all plans together need {format_bytes(memory.total_bytes)} on device {memory.device}, by "
            f"the ledgers of their plans, which are for devices of {format_bytes(memory.capacity_bytes)}"
        )
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "comparison.json"
        _train(job, plans, result, processes=processes, rounds=rounds, steps=steps, data_dir=data_dir)
        comparison = TrainingComparison.read(result).model_copy(update={"memory": memory})
    if out is not None:
        write_file(out, comparison.to_json())
    if plot is not None:
        write_file(plot, rounds_plot(comparison))
    if json:
        print_document(comparison.to_json())
        return
    print_text(render_training_comparison(comparison))
    for path, kind in ((out, "comparison"), (plot, "plot")):
        if path is not None:
            say(f"{kind} written to {path}")


def _checked(job: Path, plans: list[Path]) -> "tuple[int, list[GivenPlan]]":
    """Return the number of the job's processes, and the plans, all of which are for it. Raises CommandError."""
    from neuroshard_cli.job_file import read_job_file
    from neuroshard_cli.plan_file import misfits, read_given_plan
    from neuroshard_cli.run import require_local

    found = read_job_file(job)
    require_local(found.job, where=str(job))
    if len(plans) < 2:  # noqa: PLR2004 - it is a comparison
        raise CommandError(f"PLAN: found {len(plans)}; give two plans or more")
    per_node = found.job.spec.trainer.devices_per_node
    given = [read_given_plan(path) for path in plans]
    for path, plan in zip(plans, given, strict=True):
        problems = misfits(plan, found.tables(), world_size=per_node, devices_per_node=per_node)
        if problems:
            raise CommandError(f"{path}: {problems[0]}")
    return per_node, given


def _train(
    job: Path, plans: list[Path], result: Path, *, processes: int, rounds: int, steps: int, data_dir: Path | None
) -> None:
    launcher = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node", str(processes)]
    command = [*launcher, "-m", "neuroshard_trainer.compare_plans", str(job), "--plans", *map(str, plans)]
    command += ["--rounds", str(rounds), "--steps", str(steps), "--out", str(result)]
    command += ["--data-dir", str(data_dir or job.absolute().parent)]
    ended = subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}, stdout=STDERR, check=False)  # noqa: S603 - ours
    if ended.returncode:
        codes = {int(code) for code in ExitCode}
        code = ExitCode(ended.returncode) if ended.returncode in codes else ExitCode.JOB_FAILED
        raise CommandError(f"the training ended with {ended.returncode}; its errors are above", code)
