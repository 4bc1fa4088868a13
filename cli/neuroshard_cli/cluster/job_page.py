"""The page of a job in a cluster, from its status and the ConfigMaps of its plan and its reports."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from neuroshard_api.process.failures import CommandError

from neuroshard_cli.cluster.jobs_client import JobsClient, parsed
from neuroshard_cli.shared.measured import failure_in, measured_of
from neuroshard_cli.shared.output import write_file

if TYPE_CHECKING:
    from neuroshard_api.documents.plan import Plan
    from neuroshard_api.job.status import PlanStatus, Status
    from neuroshard_report.html.timeline import StageSpan

LIVE_SECONDS = 30
"""Between two versions of the page while the job runs: workers publish their reports as often."""


def job_page(jobs: JobsClient, name: str, *, is_live: bool = False) -> tuple[str, bool]:
    """Return the page of a job, and whether the job has ended.

    Args:
        jobs: the client.
        name: of the job.
        is_live: whether the page is made again until the job has ended.

    Raises:
        CommandError: there is no such job, it has no plan with a price yet, or the API server does not answer.
    """
    from neuroshard_report.html.run_page import render_run

    job = parsed(jobs.read(name))
    status = job.status
    if status is None or status.plan is None or status.plan.config_map_ref is None:
        stage = "has no status yet" if status is None or status.stage is None else f"is {status.stage.value}"
        raise CommandError(
            f"{name}: has no plan yet, it {stage}; hint: `neuroshard status {name} --watch` shows when it runs"
        )
    plan, sha256 = _plan(jobs, status.plan, name)
    measured = measured_of(jobs.reports(name), where=f"ConfigMap {name}-report", plan_sha256=sha256)
    has_ended = status.completion_time is not None
    page = render_run(
        plan,
        steps=measured.steps,
        progress=measured.progress,
        drift=measured.drift,
        stages=list(_spans(status)),
        failure=failure_in(status),
        refresh_s=LIVE_SECONDS if is_live and not has_ended else None,
    )
    return page, has_ended


def write_live_page(
    jobs: JobsClient, name: str, file: Path, *, wait: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Write the page again and again until the job has ended; yields after each time. Raises as `job_page`."""
    while True:
        page, has_ended = job_page(jobs, name, is_live=True)
        write_file(file, page)
        yield
        if has_ended:
            return
        wait(LIVE_SECONDS)


def _plan(jobs: JobsClient, plan: "PlanStatus", name: str) -> "tuple[Plan, str]":
    """Return the plan of a job, and its hash. Raises CommandError where it is not there, or has no price."""
    from neuroshard_api.documents.document import decoded, parse_data
    from neuroshard_api.documents.plan import Plan, any_plan

    reference = plan.config_map_ref
    assert reference is not None, "asked by the caller"
    where = f"ConfigMap {reference.name}"
    files: Mapping[str, bytes] = jobs.config_map(reference.name)
    key = (reference.key or "plan.json").removesuffix(".gz")
    if key not in files:
        raise CommandError(f"{where}: has no {key}; hint: the operator makes it again once it plans {name} again")
    found = any_plan(parse_data(decoded(files[key], where=where), where=where, is_json=True), where=where)
    if not isinstance(found, Plan):
        raise CommandError(f"{where}: {found.no_price}")
    return found, (plan.hash or "").removeprefix("sha256:")


def _spans(status: "Status") -> "Iterator[StageSpan]":
    from neuroshard_api.job.status import StageState
    from neuroshard_report.html.timeline import StageSpan

    outcomes = {StageState.SUCCEEDED: "done", StageState.FAILED: "failed"}
    for stage in status.stages:
        if stage.start_time is not None and stage.state is not StageState.SKIPPED:
            outcome = outcomes.get(stage.state, "") if stage.state is not None else ""
            yield StageSpan(name=stage.name, begin=stage.start_time, end=stage.completion_time, outcome=outcome)
