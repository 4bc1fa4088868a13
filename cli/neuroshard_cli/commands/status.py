"""``neuroshard status``: where a job in a cluster is, and what it costs."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_cli.cluster.jobs_client import JobsClient, NamespaceOption, jobs_client, parsed
from neuroshard_cli.shared.output import print_document, print_json, print_text, progress_console
from neuroshard_cli.shared.request_options import JsonOption

if TYPE_CHECKING:
    from neuroshard_api.job.training_job import DLRMTrainingJob
    from neuroshard_report.sweep import VariantResult
    from rich.console import RenderableType

LOOK_EVERY_S = 2.0


def status(
    name: Annotated[
        str,
        typer.Argument(metavar="JOB|SWEEP", help="Name of a DLRMTrainingJob, or of a sweep: its variants, best first."),
    ],
    namespace: NamespaceOption = None,
    watch: Annotated[
        bool,
        typer.Option("--watch", "-w", help="Follow all until it has ended: in place on a terminal, else line by line."),
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show a job's stages, costs, and last failure.

    A sweep has the name of the job that it was made of. Where that is in the cluster too, both are shown.
    """
    from dataclasses import asdict

    from neuroshard_report.sweep import best_first
    from neuroshard_report.terminal.job import render_job
    from neuroshard_report.terminal.sweep import render_results

    with jobs_client(namespace) as jobs:
        of_sweep = jobs.of_sweep(name)
        if watch:
            raise typer.Exit(_watch_sweep(jobs, name) if of_sweep else watch_job(jobs, name))
        variants = _numbered(map(parsed, of_sweep))
        raw = jobs.find(name) if variants else jobs.read(name)
        if json:
            listed = [asdict(each) for each in best_first(variants)]
            own = {} if raw is None else raw.get("status", {})
            print_json(own if not variants else listed if raw is None else {**own, "variants": listed})
            return
        if raw is not None:
            print_text(render_job(found := parsed(raw)))
            _print_drift(jobs, found)
        if variants:
            print_text(render_results(variants))


def _numbered(jobs: "Iterable[DLRMTrainingJob]") -> "list[VariantResult]":
    """Return the variants of the jobs of a sweep, each with its place."""
    from dataclasses import replace

    return [replace(each, number=number) for number, each in enumerate(chain.from_iterable(map(_variants, jobs)))]


def _variants(job: "DLRMTrainingJob") -> "Iterator[VariantResult]":
    """Yield the variants of a job of a sweep, with the metrics of its status."""
    from neuroshard_api.documents.progress import DIVERGED, by_variant, of_model
    from neuroshard_api.job.status import Stage, StageName
    from neuroshard_api.job.training_job import VARIANT_ANNOTATION
    from neuroshard_report.sweep import VariantResult, diverged_text

    status = job.status
    trainer = None if status is None else status.trainer_status
    metrics = {} if trainer is None else {each.name: each.value for each in trainer.metrics}
    stages = () if status is None else status.stages
    spans = [(each.start_time, each.completion_time) for each in stages if each.name is StageName.RUNNING]
    seconds = [(end - begin).total_seconds() for begin, end in spans if begin is not None and end is not None]
    has_failed = status is not None and status.stage is Stage.FAILED
    texts = job.metadata.annotations.get(VARIANT_ANNOTATION, "").splitlines()
    names: list[str | None] = [each.name for each in job.spec.variants or ()]
    of_variants = by_variant(metrics)
    of_job = "no status" if status is None or status.stage is None else status.stage.value
    failure = status.message if status is not None and has_failed else None
    for place, name in enumerate(names or [None]):
        own = of_model(metrics) if name is None else of_variants.get(name, {})
        diverged = None if has_failed else _number(own.get(DIVERGED))
        stage, problem = of_job, failure
        if diverged is not None:
            stage, problem = "Diverged", diverged_text(round(diverged))
        yield VariantResult(
            job=job.metadata.name,
            variant=name,
            settings={"variant": next(iter(texts[place:]), "")},
            state=stage,
            num_devices=job.spec.trainer.world_size,
            normalized_entropy=_number(own.get("normalized_entropy")),
            auc=_number(own.get("auc")),
            loss=_number(own.get("loss")),
            seconds=next(iter(seconds), None),
            problem=problem,
        )


def _number(text: str | None) -> float | None:
    """Return a metric of a status as a finite number. None: it is none."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _print_drift(jobs: JobsClient, job: "DLRMTrainingJob") -> None:
    """Print the slow-down that lasts, in one line, as the workers reported it under the job's plan."""
    line = _drift_line(jobs, job)
    if line is not None:
        print_document(f"{line}\n")


def _drift_line(jobs: JobsClient, job: "DLRMTrainingJob") -> str | None:
    plan = job.status.plan if job.status else None
    drift = jobs.drift(job.metadata.name)
    if plan is None or drift is None or drift.headline is None or plan.hash != f"sha256:{drift.plan_sha256}":
        return None
    return f"drift: {drift.headline}"


def _watch_sweep(jobs: JobsClient, name: str) -> ExitCode:
    """Show the variants of a sweep until their jobs have ended, then all of them; tell whether all jobs succeeded.

    On a terminal they are shown in place, below the job that they were made of where that is in the cluster too; that
    one is not waited for. Elsewhere a line is printed whenever the state of a variant changes.
    """
    from neuroshard_api.job.status import Stage
    from neuroshard_report.terminal.job import render_job
    from neuroshard_report.terminal.sweep import render_results
    from rich.console import Group

    printed: dict[str, str] = {}
    with _shown_in_place() as show:
        while True:
            found = list(map(parsed, jobs.of_sweep(name)))
            variants, stages = _numbered(found), [each.status.stage if each.status else None for each in found]
            if show is not None:
                own = jobs.find(name)
                show(Group(*([] if own is None else [render_job(parsed(own))]), render_results(variants)))
            else:
                for each in variants:
                    if printed.get(each.name) != each.state:
                        print_document(f"{time.strftime('%H:%M:%S')} {each.name}: {each.state}\n")
                        printed[each.name] = each.state
            if all(stage in (Stage.SUCCEEDED, Stage.FAILED) for stage in stages):
                break
            time.sleep(LOOK_EVERY_S)
    print_text(render_results(variants))
    return ExitCode.JOB_FAILED if Stage.FAILED in stages else ExitCode.OK


@contextlib.contextmanager
def _shown_in_place() -> "Iterator[Callable[[RenderableType], None] | None]":
    """Yield a function that shows something in place of the last on a terminal. None: there is no terminal."""
    from rich.live import Live

    console = progress_console()
    if not console.is_terminal:
        yield None
        return
    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop") as live:
        yield partial(live.update, refresh=True)


def watch_job(jobs: JobsClient, name: str) -> ExitCode:
    """Show a job until it has ended, then the whole; tell whether it succeeded.

    On a terminal all of it is shown in place; elsewhere a line is printed whenever its stage or reason changes.
    """
    from neuroshard_api.job.status import Stage
    from neuroshard_report.terminal.job import render_headline, render_job
    from rich.console import Group

    printed = ""
    with _shown_in_place() as show:
        while True:
            job = parsed(jobs.read(name))
            headline = render_headline(job)
            stage = job.status.stage if job.status else None
            if show is not None:
                drift = _drift_line(jobs, job)
                show(Group(render_job(job), *([drift] if drift else [])))
            elif headline != printed:
                print_document(f"{time.strftime('%H:%M:%S')} {headline}\n")
                printed = headline
            if stage in (Stage.SUCCEEDED, Stage.FAILED):
                break
            time.sleep(LOOK_EVERY_S)
    print_text(render_job(job))
    return ExitCode.OK if stage is Stage.SUCCEEDED else ExitCode.JOB_FAILED
