"""What a DLRMTrainingJob does about failure and after its end: ``spec.failurePolicy`` and ``spec.runPolicy``."""

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from neuroshard_api.job.resource import ATOMIC, INT32_MAX, Part, Rule, Unique

Seconds = Annotated[int, Field(ge=1, le=INT32_MAX)]


class FailureAction(StrEnum):
    """What is done about a failure."""

    FAIL_JOB = "FailJob"
    RESTART_JOB = "RestartJob"
    RESTART_JOB_AND_IGNORE_MAX_RESTARTS = "RestartJobAndIgnoreMaxRestarts"
    REPLAN_AND_RESTART = "ReplanAndRestart"


class ExitCodeOperator(StrEnum):
    """How exit codes are compared."""

    IN = "In"
    NOT_IN = "NotIn"


class OnExitCodes(Part):
    """Matches the exit code of a worker's container."""

    operator: ExitCodeOperator
    """In: the exit code is one of values. NotIn: it is neither 0 nor one of values."""
    values: Annotated[
        tuple[Annotated[int, Field(ge=1, le=255)], ...],
        Field(min_length=1, max_length=255),
        Unique(),
    ]
    """Exit codes, each once; 137 is a container killed for its memory."""


class ConditionStatus(StrEnum):
    """Value of a condition."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class OnPodCondition(Part):
    """Matches a condition of a worker's pod."""

    type: Annotated[str, Field(min_length=1, max_length=316)]
    """Type of the condition, such as DisruptionTarget for a drained node or a preemption."""
    status: ConditionStatus = ConditionStatus.TRUE
    """Value of the condition."""


class FailureRule(Part):
    """What is done about one kind of failure."""

    cel_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            cel="[has(self.onExitCodes), has(self.onPodConditions), has(self.onPodReasons)].filter(x, x).size() == 1",
            message="set exactly one of onExitCodes, onPodConditions, and onPodReasons",
            holds=lambda rule: (
                [rule.on_exit_codes, rule.on_pod_conditions, rule.on_pod_reasons].count(None) == 2  # noqa: PLR2004
            ),
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=63)] | None = None
    """What messages call the rule. If unset: its position in the list."""
    action: FailureAction
    """FailJob ends the job. RestartJob starts all workers again and counts towards maxRestarts;
    RestartJobAndIgnoreMaxRestarts does not count. ReplanAndRestart plans again before it restarts, and counts."""
    on_exit_codes: OnExitCodes | None = None
    """Exit codes that the rule is for."""
    on_pod_conditions: (
        Annotated[tuple[OnPodCondition, ...], Field(min_length=1, max_length=20, json_schema_extra=ATOMIC)] | None
    ) = None
    """Pod conditions that the rule is for; any one of them is enough."""
    on_pod_reasons: (
        Annotated[
            tuple[Annotated[str, Field(min_length=1, max_length=253)], ...],
            Field(min_length=1, max_length=20, json_schema_extra=ATOMIC),
        ]
        | None
    ) = None
    """Reasons of a pod's status that the rule is for, such as Evicted, or UnexpectedAdmissionError of a pod that a
    kubelet rejected; any one of them is enough."""


class FailurePolicy(Part):
    """When failed workers are started again. Restarts keep the profile and the plan."""

    max_restarts: Annotated[int, Field(ge=0, le=INT32_MAX)] = 3
    """Restarts of all workers after which the next failure ends the job. Disrupted pods (drained nodes, preemption) do
    not count. Once all workers have run for an hour without a failure, earlier restarts are forgotten."""
    progress_timeout_seconds: Seconds | None = None
    """Seconds without a new report of progress after which running workers count as hung and are restarted. A trainer
    that reports no progress is never restarted for it. If unset: no limit."""
    rules: Annotated[tuple[FailureRule, ...], Field(max_length=20, json_schema_extra=ATOMIC)] = ()
    """Rules in order; the first that matches decides. No match: exit code 2 (wrong input) fails the job, a disrupted
    pod, or one of which no container ran, restarts it without counting, every other failure restarts it."""


class CleanPodPolicy(StrEnum):
    """Which pods go when a job ends."""

    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class RunPolicy(Part):
    """Deadlines, and what happens when the job has ended."""

    clean_pod_policy: CleanPodPolicy = CleanPodPolicy.RUNNING
    """Pods that are deleted when the job ends: Running those that still run, All also ended ones with their logs, None
    none."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=INT32_MAX)] | None = None
    """Seconds after its end at which the job and all that it made are deleted. If unset: never."""
    active_deadline_seconds: Seconds | None = None
    """Most seconds from the start of the job, or from when it was last resumed, to its end; then it fails. If
    unset: no limit."""
    pre_running_deadline_seconds: Seconds | None = None
    """Most seconds until all workers run, without the time that the job was suspended; then it fails. If unset: no
    limit."""
