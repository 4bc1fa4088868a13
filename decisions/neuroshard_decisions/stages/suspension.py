"""Suspension: no pods, while profile, plan and checkpoints stay. Decides on `spec.suspend` alone."""

from neuroshard_api.job.status import Stage, StageName, StageState

from neuroshard_decisions import names
from neuroshard_decisions.actions import Delete
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import Context, pod_counts
from neuroshard_decisions.stages.result import StageResult, StageUpdate, condition, worker_conditions


def suspend(context: Context) -> StageResult:
    """Return the step of a suspended job: its unfinished Jobs go, and their pods with them.

    Hardware and the number of nodes are decided again after it, since the job may come back on other nodes; deadlines
    begin again. A Job of
    profilers that did not meet goes too: two nodes may meet then.
    """
    unfinished = [job for job in context.observed.jobs if job.meta.owner_uid == context.uid and job.outcome is None]
    going = tuple(
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid, wait_for_pods=True)
        for job in unfinished
        if job.meta.deleted is None
    )
    given_up = (
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid)
        for job in context.owned_jobs(names.PROFILER)
        if job.outcome is not None and not job.outcome.succeeded and job.meta.deleted is None
    )
    message = (
        f"stopping {len(unfinished)} Kubernetes Jobs" if unfinished else "no pods run; hint: set spec.suspend to false"
    )
    waiting = tuple(
        StageUpdate(stage=stage, state=StageState.WAITING, restarted=True)
        for stage in StageName
        if context.stage_status(stage).state is StageState.ACTIVE or stage in {StageName.LAUNCHING, StageName.RUNNING}
    )
    workers = pod_counts(context) if context.status.workers else {}
    return StageResult(
        display_stage=Stage.SUSPENDED,
        reason=Reason.SUSPENDED,
        message=message,
        conditions=(
            condition(ConditionType.SUSPENDED, Reason.SUSPENDED, "spec.suspend is true", holds=True),
            *worker_conditions(Reason.SUSPENDED, "spec.suspend is true", holds=False),
        ),
        actions=(*going, *given_up),
        status_fields={"hardware": None, "elastic": None, "start_time": None, **workers},
        stage_updates=waiting,
    )
