"""Suspension: no pods, while profile, plan and checkpoints stay. Decides on `spec.suspend` alone."""

from neuroshard_api.job_status import Stage, StageName, StageState

from neuroshard_operator.actions import Delete
from neuroshard_operator.conditions import ConditionType, Reason
from neuroshard_operator.context import View, worker_count
from neuroshard_operator.stages.result import Course, Step, says, says_of_workers


def rest(view: View) -> Step:
    """Return the step of a suspended job: its unfinished Jobs go, and their pods with them.

    Hardware is looked up anew after it, since the job may come back on other nodes; deadlines begin anew.
    """
    unfinished = [job for job in view.observed.jobs if job.meta.owner_uid == view.uid and job.outcome is None]
    going = tuple(
        Delete(kind="Job", name=job.meta.name, uid=job.meta.uid, wait_for_pods=True)
        for job in unfinished
        if job.meta.deleted is None
    )
    message = f"{len(unfinished)} Jobs are being stopped" if unfinished else "no pods run; set spec.suspend to false"
    waiting = tuple(
        Course(stage=stage, state=StageState.WAITING, again=True)
        for stage in StageName
        if view.course(stage).state is StageState.ACTIVE or stage in {StageName.LAUNCHING, StageName.RUNNING}
    )
    workers = {"workers": worker_count(view)} if view.status.workers else {}
    return Step(
        shown=Stage.SUSPENDED,
        reason=Reason.SUSPENDED,
        message=message,
        says=(
            says(ConditionType.SUSPENDED, Reason.SUSPENDED, "spec.suspend is true", holds=True),
            *says_of_workers(Reason.SUSPENDED, "spec.suspend is true", holds=False),
        ),
        actions=going,
        facts={"hardware": None, "start_time": None, **workers},
        courses=waiting,
    )
