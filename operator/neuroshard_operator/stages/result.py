"""What a stage says after a look: whether it is done, what it wants, what is known. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from neuroshard_api.job_status import LastFailure, Stage, StageName, StageState

from neuroshard_operator.actions import Action, Event
from neuroshard_operator.conditions import ConditionType, Reason, Says
from neuroshard_operator.failures import Cause


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """How far a stage is, for status.stages."""

    stage: StageName
    state: StageState
    job_name: str | None = None
    message: str | None = None
    again: bool = False
    """It begins anew: its times are set again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The job has ended, and stays so."""

    succeeded: bool
    reason: Reason
    message: str
    failure: LastFailure | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """What one stage found and wants."""

    shown: Stage
    """The stage that people see if the look ends here."""
    reason: Reason
    message: str
    done: bool = False
    """Whether the next stage may look."""
    says: tuple[Says, ...] = ()
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    facts: Mapping[str, object] = field(default_factory=dict)
    """Fields of the status, by their names in the model."""
    courses: tuple[Course, ...] = ()
    look_again_s: float | None = None
    end: End | None = None


def failed(
    *, shown: Stage, stage: StageName | None, reason: Reason, message: str, failure: LastFailure | None = None
) -> Step:
    """Return the step that ends a job in failure."""
    courses = () if stage is None else (Course(stage=stage, state=StageState.FAILED, message=message),)
    return Step(
        shown=shown,
        reason=reason,
        message=message,
        courses=courses,
        end=End(succeeded=False, reason=reason, message=message, failure=failure),
    )


def says(kind: ConditionType, reason: Reason, message: str, *, holds: bool) -> Says:
    """Return what a look finds about a condition."""
    return Says(type=kind, holds=holds, reason=reason, message=message)


def says_of_workers(reason: Reason, message: str, *, holds: bool) -> tuple[Says, Says]:
    """Return what a look finds about the workers' pods and about their running, where it is the same."""
    return (
        says(ConditionType.PODS_READY, reason, message, holds=holds),
        says(ConditionType.RUNNING, reason, message, holds=holds),
    )


def log_tail(cause: Cause) -> str:
    """Return the last line of a pod's termination message, which for our commands is the error's sentence."""
    lines = [line.strip() for line in cause.message.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def described(cause: Cause) -> str:
    """Return a failure in a sentence, with the last line of its log."""
    tail = log_tail(cause)
    return f"{cause}: {tail}" if tail else str(cause)
