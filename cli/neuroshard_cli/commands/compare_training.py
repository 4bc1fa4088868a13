"""``neuroshard compare-training``: a job or a script trained under several plans in turns, on this machine."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say

from neuroshard_cli.local.compared_script import given_plans, request_file, script_command
from neuroshard_cli.local.inputs import data_root
from neuroshard_cli.shared.output import ResultFile, deliver, places_of, print_document, print_text
from neuroshard_cli.shared.request_options import JsonOption

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import GivenPlan
    from neuroshard_api.documents.training_comparison import PredictedMemory
    from neuroshard_api.job.spec import Spec

STDERR = 2
"""What the processes print is progress; stdout is for the result."""


def compare_training(  # noqa: PLR0917 - typer passes by name
    trained: Annotated[
        str,
        typer.Argument(
            metavar="JOB|SCRIPT",
            help="A DLRMTrainingJob in YAML or JSON; or a Python script that calls compare_given_plans, in quotes with "
            "its arguments.",
        ),
    ],
    plans: Annotated[
        list[Path],
        typer.Argument(metavar="PLAN...", help="Plan files; the first is the reference."),
    ],
    rounds: Annotated[int, typer.Option(min=2, help="Rounds that count; one more comes before them.")] = 10,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each round under each plan.")] = 10,
    out: Annotated[
        list[Path] | None,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Write the comparison as JSON, or the rounds' step times as a drawing where FILE ends in .svg; may be "
            "repeated.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Train a job or a script under several plans in turns, from equal weights, and compare their step times."""
    from neuroshard_api.documents.training_comparison import TrainingComparison
    from neuroshard_report.html.rounds_plot import rounds_plot
    from neuroshard_report.terminal.training_comparison import render_training_comparison

    places = places_of(out, page=".svg")
    script = script_command(trained)
    if len(plans) < 2:  # noqa: PLR2004 - it is a comparison
        raise CommandError(f"PLAN: found {len(plans)}; hint: give two plans or more")
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "comparison.json"
        if script:
            memory = _train_script(script, plans, result, rounds=rounds, steps=steps)
        else:
            memory = _train_job(Path(trained), plans, result, rounds=rounds, steps=steps)
        comparison = TrainingComparison.read(result).model_copy(update={"memory": memory})

    def show() -> None:
        if json:
            print_document(comparison.to_json())
        else:
            print_text(render_training_comparison(comparison))

    files = (
        ResultFile("comparison", places.document, comparison.to_json),
        ResultFile("plot", places.page, lambda: rounds_plot(comparison)),
    )
    deliver(show, *files, says=not json)


def _train_job(job: Path, plans: list[Path], result: Path, *, rounds: int, steps: int) -> "PredictedMemory":
    """Train a job, and return the memory that its models need by their plans."""
    spec, given = checked_plans(job, plans)
    memory = _predicted_memory(plans, given)
    command = ["-m", "neuroshard_trainer.compare.plans", str(job), "--plans", *map(str, plans)]
    command += ["--rounds", str(rounds), "--steps", str(steps), "--out", str(result)]
    command += ["--data-dir", str(data_root(job, spec.data))]
    launch(command, processes=spec.trainer.devices_per_node)
    return memory


def _train_script(
    command: list[str], plans: list[Path], result: Path, *, rounds: int, steps: int
) -> "PredictedMemory | None":
    """Train by a script, and return the memory that its models need by their plans. None: a plan has no ledger."""
    from neuroshard_api.documents.plan import GivenPlan
    from neuroshard_api.documents.training_comparison import file_names

    processes, found = given_plans(plans)
    given = [plan for plan in found if isinstance(plan, GivenPlan)]
    memory = _predicted_memory(plans, given) if len(given) == len(plans) else None
    by_name = dict(zip(file_names(plans), plans, strict=True))
    launch(
        command,
        processes=processes,
        environment=request_file(result.parent, by_name, rounds=rounds, steps=steps, result=result),
    )
    if not result.exists():
        raise CommandError(
            f"{command[0]}: ended without a comparison"
            "; hint: call neuroshard_torchrec.compare_given_plans(make, module) in it"
        )
    return memory


def _predicted_memory(plans: "Sequence[Path]", given: "Sequence[GivenPlan]") -> "PredictedMemory":
    """Return the memory that the models of all plans need together, with a warning where devices have less."""
    from neuroshard_api.documents.training_comparison import file_names
    from neuroshard_api.process.sizes import format_bytes
    from neuroshard_report.explain.joint_memory import predicted_memory

    memory = predicted_memory(dict(zip(file_names(plans), given, strict=True)))
    if memory.total_bytes > memory.capacity_bytes:
        say(
            f"the models of all plans together need {format_bytes(memory.total_bytes)} on device {memory.device}, by "
            f"the ledgers of their plans, which are for devices of {format_bytes(memory.capacity_bytes)}"
        )
    return memory


def checked_plans(job: Path, plans: list[Path]) -> "tuple[Spec, list[GivenPlan]]":
    """Return the spec of the job, and the plans, all of which are for it. Raises CommandError."""
    from neuroshard_api.job.job_file import read_job_file
    from neuroshard_dlrm.plan_file import mismatches, read_given_plan

    from neuroshard_cli.commands.run import require_local

    found = read_job_file(job)
    require_local(found.job, where=str(job))
    if found.job.spec.variants:
        raise CommandError(f"{job}: spec.variants: plans are compared by one model; hint: leave the variants out")
    per_node = found.job.spec.trainer.devices_per_node
    given = [read_given_plan(path) for path in plans]
    for path, plan in zip(plans, given, strict=True):
        problems = mismatches(
            plan,
            found.tables(),
            world_size=per_node,
            devices_per_node=per_node,
            servers=found.job.spec.experimental.embedding_servers,
        )
        if problems:
            raise CommandError(f"{path}: {problems[0]}")
    return found.job.spec, given


def launch(command: "Sequence[str]", *, processes: int, environment: "Mapping[str, str] | None" = None) -> None:
    """Run a module or a script on processes of this machine. Raises CommandError where one fails."""
    launcher = [sys.executable, "-m", "neuroshard_trainer.launch", "--standalone", "--nproc-per-node", str(processes)]
    ended = subprocess.run(  # noqa: S603 - ours, or what the user named
        [*launcher, *command],
        env={"OMP_NUM_THREADS": "1", **os.environ, **(environment or {})},
        stdout=STDERR,
        check=False,
    )
    if ended.returncode:
        codes = {int(code) for code in ExitCode}
        code = ExitCode(ended.returncode) if ended.returncode in codes else ExitCode.JOB_FAILED
        raise CommandError(f"the training ended with {ended.returncode}; its errors are above", code)
