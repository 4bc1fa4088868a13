"""What a stage says after a pass: whether it is done, what it wants, what is known. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from neuroshard_api.job_status import LastFailure, Stage, StageName, StageState

from neuroshard_operator import names
from neuroshard_operator.actions import Action, Event
from neuroshard_operator.conditions import ConditionType, ConditionUpdate, Reason
from neuroshard_operator.context import Context
from neuroshard_operator.failures import Cause
from neuroshard_operator.observed.objects import ChildJob


@dataclass(frozen=True, kw_only=True, slots=True)
class StageUpdate:
    """How far a stage is, for status.stages."""

    stage: StageName
    state: StageState
    job_name: str | None = None
    message: str | None = None
    restarted: bool = False
    """Whether the stage starts over, with new times."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """The job has ended, and stays so."""

    succeeded: bool
    reason: Reason
    message: str
    failure: LastFailure | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    """What one stage found and wants."""

    display_stage: Stage
    """The stage that people see if the pass ends here."""
    reason: Reason
    message: str
    done: bool = False
    """Whether the next stage may look."""
    conditions: tuple[ConditionUpdate, ...] = ()
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    status_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of the status, by their names in the model."""
    stage_updates: tuple[StageUpdate, ...] = ()
    requeue_after_s: float | None = None
    completion: Completion | None = None


def failed(
    *, display_stage: Stage, stage: StageName | None, reason: Reason, message: str, failure: LastFailure | None = None
) -> StageResult:
    """Return the step that ends a job in failure."""
    stage_updates = () if stage is None else (StageUpdate(stage=stage, state=StageState.FAILED, message=message),)
    return StageResult(
        display_stage=display_stage,
        reason=reason,
        message=message,
        stage_updates=stage_updates,
        completion=Completion(succeeded=False, reason=reason, message=message, failure=failure),
    )


def condition(kind: ConditionType, reason: Reason, message: str, *, holds: bool) -> ConditionUpdate:
    """Return what a pass finds about a condition."""
    return ConditionUpdate(type=kind, holds=holds, reason=reason, message=message)


def worker_conditions(reason: Reason, message: str, *, holds: bool) -> tuple[ConditionUpdate, ConditionUpdate]:
    """Return what a pass finds about the workers' pods and about their running, where it is the same."""
    return (
        condition(ConditionType.PODS_READY, reason, message, holds=holds),
        condition(ConditionType.RUNNING, reason, message, holds=holds),
    )


def log_tail(cause: Cause) -> str:
    """Return the last line of a pod's termination message, which for our commands is the error's sentence."""
    lines = [line.strip() for line in cause.message.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def described(cause: Cause) -> str:
    """Return a failure in a sentence, with the last line of its log."""
    tail = log_tail(cause)
    return f"{cause}: {tail}" if tail else str(cause)


def queued(step: StageResult, message: str) -> StageResult:
    """Return the step of a stage whose Job Kueue holds back."""
    held = condition(ConditionType.SUSPENDED, Reason.QUEUED, message, holds=True)
    return replace(
        step, display_stage=Stage.SUSPENDED, reason=Reason.QUEUED, message=message, conditions=(*step.conditions, held)
    )


def held_message(context: Context, job: ChildJob) -> str:
    """Return why a suspended Job waits, for people."""
    name = job.meta.name
    queue = job.meta.labels.get(names.QUEUE_LABEL)
    if queue is not None:
        return f"Job {name} waits for Kueue to admit it in queue {queue}"
    if context.is_queued:
        return f"Job {name} waits for Kueue to admit it"
    return (
        f"Job {name} is suspended by something other than this operator, such as Kueue with "
        f"manageJobsWithoutQueueName; set the label {names.QUEUE_LABEL} on the DLRMTrainingJob"
    )
