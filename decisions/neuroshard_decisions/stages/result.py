"""What a stage says after a pass: whether it is done, what it wants, what is known. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuroshard_api.job.status import LastFailure, Stage, StageName, StageState
from neuroshard_api.lifecycle.failures import FailureCause
from neuroshard_api.process.hints import last_message

from neuroshard_decisions.actions import Action, Event
from neuroshard_decisions.conditions import ConditionType, ConditionUpdate, Reason, WarningUpdate


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
    warnings: tuple[WarningUpdate, ...] = ()
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    status_fields: Mapping[str, object] = field(default_factory=dict)
    """Fields of the status, by their names in the model."""
    stage_updates: tuple[StageUpdate, ...] = ()
    requeue_after_s: float | None = None
    completion: Completion | None = None


def training_goes_on() -> StageResult:
    """Return the step of workers that train, to which nothing is done."""
    return StageResult(display_stage=Stage.RUNNING, reason=Reason.WORKERS_READY, message="")


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
    """Return the update of a condition."""
    return ConditionUpdate(type=kind, holds=holds, reason=reason, message=message)


def worker_conditions(reason: Reason, message: str, *, holds: bool) -> tuple[ConditionUpdate, ConditionUpdate]:
    """Return the same update for the workers' pods and for their running."""
    return (
        condition(ConditionType.PODS_READY, reason, message, holds=holds),
        condition(ConditionType.RUNNING, reason, message, holds=holds),
    )


def log_tail(cause: FailureCause) -> str:
    """Return the last line of a pod's termination message, for our commands the error and its hint."""
    return last_message(cause.message.splitlines())


def described(cause: FailureCause) -> str:
    """Return a failure in a sentence, with the last line of its log."""
    tail = log_tail(cause)
    return f"{cause}: {tail}" if tail else str(cause)
