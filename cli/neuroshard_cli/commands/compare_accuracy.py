"""``neuroshard compare-accuracy``: a job trained with a plan's narrow types and exactly, in pairs, on this machine."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from neuroshard_api.process.failures import CommandError

from neuroshard_cli.commands.compare_training import checked_plans, launch
from neuroshard_cli.local.inputs import data_root
from neuroshard_cli.shared.output import ResultFile, check_writable, deliver, print_document, print_text
from neuroshard_cli.shared.request_options import JsonOption


def compare_accuracy(
    job: Annotated[Path, typer.Argument(metavar="JOB", help="A DLRMTrainingJob in YAML or JSON.")],
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file with narrow types.")],
    seeds: Annotated[int, typer.Option(min=1, help="Pairs; the first has the job's seed, each other the next.")] = 3,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the comparison (JSON).")] = None,
    json: JsonOption = False,
) -> None:
    """Train a job with a plan's narrow types and exactly, in pairs of equal seeds, and compare the accuracy."""
    from neuroshard_api.documents.accuracy_comparison import AccuracyComparison
    from neuroshard_report.terminal.accuracy_comparison import render_accuracy_comparison

    if out is not None:
        check_writable(out)
    spec, (given,) = checked_plans(job, [plan])
    if given.resolved.wire is None and given.resolved.gradients is None:
        raise CommandError(
            f"{plan}: sends nothing in narrow types, so that there is nothing to compare"
            "; hint: name types in spec.training.communication of the job that is planned, with policy Fixed where the "
            "planner would not take them"
        )
    with tempfile.TemporaryDirectory() as scratch:
        result = Path(scratch) / "comparison.json"
        command = [
            "-m",
            "neuroshard_trainer.compare.narrow_types",
            str(job),
            "--plan",
            str(plan),
            "--seeds",
            str(seeds),
        ]
        command += ["--data-dir", str(data_root(job, spec.data)), "--out", str(result)]
        launch(command, processes=spec.trainer.devices_per_node)
        comparison = AccuracyComparison.read(result)

    def show() -> None:
        if json:
            print_document(comparison.to_json())
        else:
            print_text(render_accuracy_comparison(comparison))

    deliver(show, ResultFile("comparison", out, comparison.to_json), says=not json)
