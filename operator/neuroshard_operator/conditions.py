"""Status conditions: every reason with its meaning, and pure functions over lists of conditions. Calls no API."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from neuroshard_api.documents.drift_report import Cause
from neuroshard_api.job.policies import ConditionStatus
from neuroshard_api.job.status import Condition
from neuroshard_api.replanning import record as replanning_record
from neuroshard_api.replanning import support as replanning_support
from neuroshard_api.replanning.decision import Verdict

MESSAGE_CHARACTERS = 4096  # the API takes 32,768; people read one screen


class ConditionType(StrEnum):
    """What can hold of a job."""

    PROFILED = "Profiled"
    NETWORK_MEASURED = "NetworkMeasured"
    PLANNED = "Planned"
    HOST_MEMORY_AVAILABLE = "HostMemoryAvailable"
    APPROVED = "Approved"
    NODES_AVAILABLE = "NodesAvailable"
    PODS_READY = "PodsReady"
    RUNNING = "Running"
    CHECKPOINTS_KEPT = "CheckpointsKept"
    DEVICE_AS_PLANNED = "DeviceAsPlanned"
    NARROW_EXCHANGE = "NarrowExchange"
    STEADY = "Steady"
    PLAN_CURRENT = "PlanCurrent"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SPEC_UNDERSTOOD = "SpecUnderstood"


class Reason(StrEnum):
    """Why a condition has its status. Reasons are only ever added; docs/guides/troubleshooting.md says what to do."""

    # While it goes well
    CACHE_HIT = "CacheHit"
    MODELS_GIVEN = "CostModelsGiven"
    PROFILER_RUNNING = "ProfilerRunning"
    OTHER_PROFILES = "WaitingForProfile"
    PROFILE_WRITTEN = "ProfileWritten"
    PLANNER_RUNNING = "PlannerRunning"
    FALLBACK_RUNNING = "FallbackPlannerRunning"
    PLAN_WRITTEN = "PlanWritten"
    PLAN_GIVEN = "PlanGiven"
    APPROVED = "PlanApproved"
    WAITING_FOR_APPROVAL = "WaitingForApproval"
    WORKERS_STARTING = "WorkersStarting"
    WAITING_FOR_OLD_PODS = "WaitingForOldPods"
    RESTARTING = "Restarting"
    WAITING_TO_RESTART = "WaitingToRestart"
    WORKERS_READY = "AllWorkersReady"
    WORKERS_LOST = "WorkersNotReady"
    TRAINED = "TrainingCompleted"
    PLAN_ONLY = "PlanOnly"
    SUSPENDED = "SuspendedByUser"
    QUEUED = "WaitingForAdmission"
    RESUMED = "Resumed"
    CHECKPOINT_VOLUME = "CheckpointVolume"
    NO_CHECKPOINT_VOLUME = "NoCheckpointVolume"
    NETWORK_MEASURED = "MeasuredBetweenNodes"
    ONE_NODE = "OneNodeOfKind"
    NODES_DID_NOT_MEET = "NodesDidNotMeet"
    NODES_OPEN = "NodesOfKindOpen"
    NODES_CLOSED = "NoNodeOfKind"
    WITHIN_NODES = "WithinNodes"
    LIMITED_BY_NODES = "LimitedByNodes"
    NODES_TOO_SMALL = "NodesTooSmall"
    SAME_DEVICE = "SameDevice"
    OTHER_DEVICE = "OtherDevice"
    NOT_REPORTED = "NotReported"
    WITHIN_REFERENCE = "WithinReference"
    ACCURACY_KEPT = "AccuracyKept"
    ACCURACY_CHANGED = "AccuracyChanged"

    # When narrow types cost accuracy
    COMPRESSION_SUSPENDED = "CompressionSuspended"

    # When steps became slower
    INPUTS_DRIFTED = Cause.INPUTS_DRIFTED.value
    DEVICE_SLOW = Cause.DEVICE_SLOW.value
    NODE_SLOW = Cause.NODE_SLOW.value
    COMMUNICATION_SLOW = Cause.COMMUNICATION_SLOW.value
    EVERYTHING_SLOW = Cause.EVERYTHING_SLOW.value
    DENSE_SLOW = Cause.DENSE_SLOW.value
    DATA_LATE = Cause.DATA_LATE.value
    UNEXPLAINED = Cause.UNEXPLAINED.value
    REPORT_UNUSABLE = Verdict.UNUSABLE_REPORT.value

    # About another plan for changed inputs
    CANDIDATE_PLANNING = "PlanningCandidate"
    CANDIDATE_FAILED = replanning_record.CANDIDATE_FAILED
    CANDIDATE_UNSUPPORTED = replanning_support.CANDIDATE_UNSUPPORTED
    INPUTS_RETURNED = "InputsReturned"
    NO_BETTER_PLAN = Verdict.NO_BETTER_PLAN.value
    GAIN_TOO_SMALL = Verdict.GAIN_TOO_SMALL.value
    BETTER_PLAN_FOUND = Verdict.BETTER_PLAN_FOUND.value
    COOLING_DOWN = Verdict.COOLING_DOWN.value
    BUDGET_SPENT = Verdict.BUDGET_SPENT.value
    NEAR_END = Verdict.NEAR_END.value
    PRICE_UNKNOWN = Verdict.PRICE_UNKNOWN.value
    PLAN_REPLACED = "PlanReplaced"

    # While it waits for someone
    PODS_PENDING = "PodsPending"
    CHILD_REFUSED = "ChildRefused"
    INPUT_MISSING = "InputMissing"

    # About the release of the operator
    NEWER_DEFINITION = "NewerDefinition"
    SPEC_UNDERSTOOD = "SpecUnderstood"

    # When it has failed
    INVALID_SPEC = "InvalidSpec"
    INVALID_INPUT = "InvalidInput"
    INVALID_TEMPLATE = "InvalidPodTemplate"
    INPUT_TOO_LARGE = "InputTooLarge"
    NAME_CONFLICT = "NameConflict"
    WORLD_SIZE_MISMATCH = "WorldSizeMismatch"
    MODEL_MISMATCH = "ModelMismatch"
    PROFILING_FAILED = "ProfilingFailed"
    PROFILING_TIMED_OUT = "ProfilingTimedOut"
    PROFILE_UNUSABLE = "ProfileUnusable"
    PLANNING_FAILED = "PlanningFailed"
    PLANNING_TIMED_OUT = "PlanningTimedOut"
    INFEASIBLE = "Infeasible"
    PLAN_UNUSABLE = "PlanUnusable"
    WORKERS_FAILED = "WorkersFailed"
    TOO_MANY_RESTARTS = "MaxRestartsExceeded"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    NOT_RUNNING_IN_TIME = "PreRunningDeadlineExceeded"


@dataclass(frozen=True, kw_only=True, slots=True)
class ConditionUpdate:
    """What a pass finds about one condition."""

    type: ConditionType
    holds: bool | None
    """None: it is not known."""
    reason: Reason
    message: str


_STATUS = {True: ConditionStatus.TRUE, False: ConditionStatus.FALSE, None: ConditionStatus.UNKNOWN}


def merged(
    recorded: Sequence[Condition], found: Iterable[ConditionUpdate], *, now: datetime, generation: int
) -> tuple[Condition, ...]:
    """Return the conditions after a pass: those of other types as they were, the others with what was found.

    ``lastTransitionTime`` moves only when the status flips; a condition that says the same again is left as it is,
    ``observedGeneration`` included unless the generation moved.
    """
    by_type = {condition.type: condition for condition in recorded}
    for update in found:
        before = by_type.get(update.type)
        status = _STATUS[update.holds]
        flipped = before is None or before.status is not status
        by_type[update.type] = Condition(
            type=update.type,
            status=status,
            reason=update.reason,
            message=update.message[:MESSAGE_CHARACTERS],
            observed_generation=generation,
            last_transition_time=now if before is None or flipped else before.last_transition_time,
        )
    order = [kind.value for kind in ConditionType]
    return tuple(by_type[kind] for kind in order if kind in by_type)


def is_false(recorded: Sequence[Condition], kind: ConditionType) -> bool:
    """Return whether the condition of a type is False; one that was never found is not."""
    return any(each.type == kind and each.status is ConditionStatus.FALSE for each in recorded)


def holds(recorded: Sequence[Condition], kind: ConditionType) -> Condition | None:
    """Return the condition of a type if it is True."""
    return next(
        (each for each in recorded if each.type == kind and each.status is ConditionStatus.TRUE),
        None,
    )
