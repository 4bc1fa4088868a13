"""What stands between a plan and its launch: `spec.launchPolicy`."""

from neuroshard_api.job_status import Stage, StageName, StageState
from neuroshard_api.training_job import APPROVED_PLAN_ANNOTATION, LaunchPolicy

from neuroshard_operator.conditions import ConditionType, Reason
from neuroshard_operator.context import Context
from neuroshard_operator.stages.planning import Planned
from neuroshard_operator.stages.result import Completion, StageResult, StageUpdate, condition


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
    if policy is LaunchPolicy.AUTO or approved == planned.name or _names_candidate(context, approved):
        message = "launchPolicy is Auto" if policy is LaunchPolicy.AUTO else f"plan {planned.name} was approved"
        return StageResult(
            display_stage=Stage.LAUNCHING,
            reason=Reason.APPROVED,
            message=message,
            done=True,
            conditions=(condition(ConditionType.APPROVED, Reason.APPROVED, message, holds=True),),
        )
    found = f", which names {approved}" if approved else ""
    message = (
        f"plan {planned.name} waits for approval{found}: "
        f"kubectl annotate --overwrite dlrmjob {context.name} {APPROVED_PLAN_ANNOTATION}={planned.name}"
    )
    return StageResult(
        display_stage=Stage.LAUNCHING,
        reason=Reason.WAITING_FOR_APPROVAL,
        message=message,
        conditions=(condition(ConditionType.APPROVED, Reason.WAITING_FOR_APPROVAL, message, holds=False),),
        stage_updates=(StageUpdate(stage=StageName.LAUNCHING, state=StageState.WAITING, message=message),),
    )


def _names_candidate(context: Context, approved: str | None) -> bool:
    """Return whether a candidate was approved: the plan in force, which the workers run under, was before it."""
    further = context.status.replanning
    candidate = further.candidate.plan_name if further and further.candidate else None
    return approved is not None and approved == candidate and context.current_workers is not None
