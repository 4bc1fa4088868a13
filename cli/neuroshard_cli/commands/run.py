"""``neuroshard run``: a whole job on this machine."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say

from neuroshard_cli.shared.output import print_document, print_text, progress_console, write_file
from neuroshard_cli.shared.request_options import JsonOption

if TYPE_CHECKING:
    from neuroshard_api.documents.tables import TableSet
    from neuroshard_api.job.job_file import JobFile
    from neuroshard_api.job.training_job import DLRMTrainingJob

    from neuroshard_cli.local.directory import RunDirectory
    from neuroshard_cli.local.stage_runner import StageFailedError


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A DLRMTrainingJob in YAML or JSON.")],
    run_dir: Annotated[Path | None, typer.Option(help="Folder of the run. Default: runs/ and the job's name.")] = None,
    bundle: Annotated[
        Path | None, typer.Option(help="Cost models to plan with, instead of measuring this machine.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan to train under, instead of profiling and planning.")] = None,
    json: JsonOption = False,
) -> None:
    """Profile, plan, and train a job on this machine.

    An interrupted run resumes where it stopped; finished stages are not repeated while their inputs are the same. A job
    with spec.suspend waits until its file no longer says so.
    """
    from neuroshard_api.job.spec import LaunchPolicy

    from neuroshard_cli.local.directory import RunDirectory
    from neuroshard_cli.local.inputs import data_root
    from neuroshard_cli.local.progress_view import RunView
    from neuroshard_cli.local.repeats import STAGE, wants_repeats
    from neuroshard_cli.local.result import result_json, result_of, result_table
    from neuroshard_cli.local.run import STAGES, LocalRun
    from neuroshard_cli.local.run_page import write_run_page
    from neuroshard_cli.local.stage_process import end_marked
    from neuroshard_cli.local.stage_runner import StageFailedError
    from neuroshard_cli.local.suspended import resumed_job

    found = _on_this_machine(resumed_job(file))
    require_local(found.job, where=str(file))
    tables = found.tables()
    root = data_root(file, found.job.spec.data)
    require_trainable(found.job, tables, root=root)
    is_given = plan is not None or found.job.spec.plan_ref is not None
    stages = (STAGE, *STAGES) if wants_repeats(found.job, tables) and not is_given else STAGES
    directory = RunDirectory(run_dir or Path("runs") / found.job.metadata.name)
    with directory.locked():
        left_over = end_marked(str(directory.path))
        if left_over:
            say(f"ended {left_over} processes that an earlier run had left in {directory.path}")
        view = RunView(stages, progress_console())
        local = LocalRun(found, tables, directory, view, bundle=bundle, plan=plan, data_dir=root)
        try:
            with view:
                planned = local.run()
        except KeyboardInterrupt:
            say(f"interrupted; run the same command again to resume: {directory.path}")
            raise
        except StageFailedError as error:
            _say_how_to_resume(error)
            raise
        is_trained = found.job.spec.launch_policy is not LaunchPolicy.PLAN_ONLY
        result = result_of(
            found.job.metadata.name,
            directory,
            planned,
            load_average=os.getloadavg()[1],
            other_processors=local.other_processors(),
        )
        write_file(directory.result_file, result_json(result))
        write_run_page(directory, planned)
        correction = local.corrected(result) if is_trained else None
    if json:
        print_document(result_json(result))
        return
    print_text(result_table(result))
    untrained = None if is_trained else "launchPolicy is PlanOnly: nothing is trained"
    for note in filter(None, (*_reports(directory), correction, untrained)):
        say(note)


def _reports(directory: "RunDirectory") -> Iterator[str]:
    """Yield the reports that a run wrote."""
    for name, file in (("the plan", directory.plan_report), ("the run", directory.run_report)):
        if file.exists():
            yield f"{name} as a report: {file}"


def _say_how_to_resume(error: "StageFailedError") -> None:
    """Print the end of the failed stage's log, and complete the sentence of the failure."""
    from neuroshard_cli.local.stage_failure import with_resumption

    for line in error.tail:
        say(f"  | {line}")
    error.args = (with_resumption(str(error)),)


def require_trainable(job: "DLRMTrainingJob", tables: "TableSet", *, root: Path) -> None:
    """Do nothing for a job that trains elsewhere, or whose training has what it needs, as far as files show.

    Raises:
        MissingPackageError: kernels are not installed. Without them the profile would measure others.
        DataError: a training would refuse the data, after minutes of profiling.
    """
    from neuroshard_api.job.spec import LaunchPolicy
    from neuroshard_api.process.errors import MissingPackageError
    from neuroshard_api.process.generations import kernels_hint
    from neuroshard_trainer.data.formats import require_readable

    from neuroshard_cli.shared.installation import absent_kernels

    if job.spec.launch_policy is LaunchPolicy.PLAN_ONLY or job.spec.trainer.command:
        return
    absent = absent_kernels()
    if absent:
        raise MissingPackageError(f"training needs {' and '.join(absent)}, not installed here; hint: {kernels_hint()}")
    require_readable(job, tables, root=root)


def _on_this_machine(file: "JobFile") -> "JobFile":
    """Return an elastic job as it is on one node, if that is one of its sizes, and say what follows."""
    from neuroshard_api.job.sizes import sized, sizes_of

    spec = file.job.spec
    nodes, samples = spec.trainer.num_nodes, spec.model.samples_per_device
    if nodes == 1 or spec.experimental.elastic is None or 1 not in sizes_of(spec):
        return file
    job = sized(file.job, 1)
    batch = job.spec.model.samples_per_device
    kept = "as ever" if batch == samples else f"in place of {samples:,}, for as many in a step as on all nodes"
    say(f"experimental.elastic: this machine is 1 of at most {nodes} nodes; {batch:,} samples per device, {kept}")
    return replace(file, job=job)


def require_local(job: "DLRMTrainingJob", *, where: str) -> None:
    """Raise CommandError for a job that one machine cannot run, or that is suspended now."""
    nodes = job.spec.trainer.num_nodes
    if job.spec.suspend:
        raise CommandError(f"{where}: spec.suspend: is true, so that nothing runs; hint: set it to false")
    if nodes > 1:
        raise CommandError(
            f"{where}: spec.trainer.numNodes: is {nodes}, this is one machine; hint: set it to 1, "
            "or apply the job to a cluster with `neuroshard submit`"
        )
