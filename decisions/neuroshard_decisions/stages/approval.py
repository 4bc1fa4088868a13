"""The approval between a plan and its launch: `spec.launchPolicy`."""

from neuroshard_api.job.spec import LaunchPolicy
from neuroshard_api.job.status import Stage, StageName, StageState
from neuroshard_api.job.training_job import APPROVED_PLAN_ANNOTATION

from neuroshard_decisions import names
from neuroshard_decisions.conditions import ConditionType, Reason
from neuroshard_decisions.context import Context
from neuroshard_decisions.stages.input_hashes import workers_hash
from neuroshard_decisions.stages.planning import Planned
from neuroshard_decisions.stages.result import Completion, StageResult, StageUpdate, condition


def approve(context: Context, planned: Planned) -> StageResult:
    """Return whether the workers may start under this plan, or that the job ends with it."""
    policy = context.spec.launch_policy
    if policy is LaunchPolicy.PLAN_ONLY and not planned.is_kept:
        message = f"the plan is being kept in ConfigMap {planned.name}"
        return StageResult(display_stage=Stage.PLANNING, reason=Reason.PLAN_WRITTEN, message=message)
    if policy is LaunchPolicy.PLAN_ONLY:
        message = f"the plan is in ConfigMap {planned.name}; nothing is launched with launchPolicy PlanOnly"
        return StageResult(
            display_stage=Stage.SUCCEEDED,
            reason=Reason.PLAN_ONLY,
            message=message,
            completion=Completion(succeeded=True, reason=Reason.PLAN_ONLY, message=message),
        )
    approved = context.observed.job.annotations.get(APPROVED_PLAN_ANNOTATION)
    why = _why_approved(context, planned, approved)
    if why is not None:
        return StageResult(
            display_stage=Stage.LAUNCHING,
            reason=Reason.APPROVED,
            message=why,
            done=True,
            conditions=(condition(ConditionType.APPROVED, Reason.APPROVED, why, holds=True),),
        )
    found = f", which names {approved}" if approved else ""
    message = f"plan {planned.name} waits for approval{found}: {context.approval_of(planned.name)}"
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=Reason.WAITING_FOR_APPROVAL,
        message=message,
        conditions=(condition(ConditionType.APPROVED, Reason.WAITING_FOR_APPROVAL, message, holds=False),),
        stage_updates=(StageUpdate(stage=StageName.LAUNCHING, state=StageState.WAITING, message=message),),
    )


def _why_approved(context: Context, planned: Planned, approved: str | None) -> str | None:
    """Return the reason that workers may start under the plan. None: it waits for approval.

    A plan that workers were started under needs no further approval: the annotation may name a candidate since.
    """
    if context.spec.launch_policy is LaunchPolicy.AUTO:
        return "launchPolicy is Auto"
    if approved == planned.name:
        return f"plan {planned.name} was approved"
    started_as = names.short(workers_hash(context.spec, planned.summary.hash))
    jobs = context.owned_jobs(names.WORKER)
    if any(job.meta.labels.get(names.INPUTS_HASH_LABEL) == started_as for job in jobs):
        return f"workers were started under plan {planned.name} before"
    return None
