"""What a job's failure policy says about a failure: the same rule in a cluster and on one machine. Pure functions.

A driver finds the cause of a failure, in pods or in processes. The first rule of `spec.failurePolicy` that matches the
cause decides, else the defaults; `restarts` then has the number and the pause of the next attempt.
"""

from dataclasses import dataclass
from datetime import datetime

from neuroshard_api.job.policies import ExitCodeOperator, FailureAction, FailurePolicy, FailureRule
from neuroshard_api.job.status import LastFailure, Stage
from neuroshard_api.process.exit_codes import ExitCode

DISRUPTION = "DisruptionTarget"
"""Pod condition with which the cluster says that it takes a pod away: drain, preemption, taint, lost node."""
LOG_CHARACTERS = 2048  # of the end of a log; status.lastFailure.message holds 4096
KUBELET_EVICTION = "TerminationByKubelet"
"""A disruption whose cause may be the pod's own hunger for memory or disk, so it counts as a failure."""
NODE_SHUTDOWN = "Terminated"
"""status.reason of a pod that the kubelet ended since its node shuts down, as spot nodes do: no fault of the pod's."""
STOPPED = 143
"""Exit code after SIGTERM: NeuroShard's trainer ends with it once it has written its checkpoint."""
KILLED = 137
"""Exit code after SIGKILL: the kernel's for want of memory, or the kubelet's at the end of the grace period."""
NO_PROGRESS = "NoProgress"
"""Reason of a failure in which no process has ended: the workers report no progress."""
LOST_NODE = "NodeLost"
"""Reason of a failure whose pod does not answer and that the cluster has no word for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCause:
    """The failure that brought a Job down: the first of its pods, not those that it took along."""

    pod: str = ""
    is_server: bool = False
    """Whether the pod is an embedding server's."""
    node: str = ""
    container: str = ""
    exit_code: int | None = None
    conditions: frozenset[tuple[str, str]] = frozenset()
    """Type and status of the pod's conditions."""
    reason: str = ""
    pod_reason: str = ""
    """status.reason of the pod."""
    never_ran: bool = False
    """The pod ended before any container ran."""
    message: str = ""
    time: datetime | None = None

    def recorded(self, stage: Stage, now: datetime) -> LastFailure:
        """Return its entry for status.lastFailure."""
        return LastFailure(
            stage=stage,
            pod_name=self.pod or None,
            node_name=self.node or None,
            container_name=self.container or None,
            exit_code=self.exit_code,
            reason=self.reason or None,
            message=self.message[-LOG_CHARACTERS:] or None,
            time=believed(self.time, since=None, now=now),
        )

    def __str__(self) -> str:
        """Return the cause in a sentence, without the end of the log."""
        if self.reason == NO_PROGRESS:
            return f"the workers hang ({NO_PROGRESS})"
        whose = "embedding server's " if self.is_server else ""
        who = f"{whose}pod {self.pod}" if self.pod else f"the {self.container}" if self.container else "a pod"
        where = f" on node {self.node}" if self.node else ""
        code = f" with exit code {self.exit_code}" if self.exit_code is not None else ""
        why = f" ({self.reason})" if self.reason else ""
        return f"{who}{where} ended{code}{why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureVerdict:
    """What is done about a failure, and by which rule."""

    action: FailureAction
    rule: str

    @property
    def counts(self) -> bool:
        """Whether the restart counts towards maxRestarts."""
        return self.action is not FailureAction.RESTART_JOB_AND_IGNORE_MAX_RESTARTS


def believed(time: datetime | None, *, since: datetime | None, now: datetime) -> datetime:
    """Return the time of an end as its kubelet wrote it; now, where that clock says what cannot be.

    Pauses and earned restarts are counted from it: a clock that is ahead would stop the job for as long, or let it
    restart without end.
    """
    is_possible = time is not None and time <= now and (since is None or time >= since)
    return time if time is not None and is_possible else now


def verdict(
    policy: FailurePolicy,
    cause: FailureCause,
    *,
    has_run: bool = True,
    nobody_late: bool = False,
    stopped: bool = False,
    lost_node: bool = False,
) -> FailureVerdict:
    """Return the policy's verdict on a cause: by the first rule that matches, or else by the defaults.

    `has_run`: all workers of the attempt were ready at one time. Workers that never met did not fail: one of them
    waited for a node or for its image. `nobody_late`: all of them ran at once, and did not meet all the same.
    `stopped`: they ended since they were asked to. `lost_node`: a worker lost its peer, whose node answers no more.
    """
    for position, rule in enumerate(policy.rules):
        if _matches(rule, cause):
            return FailureVerdict(action=rule.action, rule=rule.name or f"rules[{position}]")
    is_pressure = cause.reason == KUBELET_EVICTION and cause.pod_reason != NODE_SHUTDOWN
    if (DISRUPTION, "True") in cause.conditions and not is_pressure:
        return FailureVerdict(action=FailureAction.RESTART_JOB_AND_IGNORE_MAX_RESTARTS, rule="default for disruptions")
    is_late = cause.exit_code == ExitCode.PEER_LOST and not has_run and not nobody_late
    excuses = {
        "lost nodes": lost_node,
        "pods of which no container ran": cause.never_ran and not has_run,
        "stopped workers": stopped,
        "late workers": is_late,
    }
    excuse = next((each for each, holds in excuses.items() if holds), "")
    if excuse:
        return FailureVerdict(action=FailureAction.RESTART_JOB_AND_IGNORE_MAX_RESTARTS, rule=f"default for {excuse}")
    if cause.exit_code == ExitCode.INVALID_INPUT:
        return FailureVerdict(action=FailureAction.FAIL_JOB, rule="default for invalid input")
    return FailureVerdict(action=FailureAction.RESTART_JOB, rule="default")


def _matches(rule: FailureRule, cause: FailureCause) -> bool:
    codes = rule.on_exit_codes
    if codes is not None:
        if not cause.exit_code:
            return False
        return (cause.exit_code in codes.values) == (codes.operator is ExitCodeOperator.IN)
    if rule.on_pod_reasons is not None:
        return cause.pod_reason in rule.on_pod_reasons
    wanted = {(condition.type, condition.status.value) for condition in rule.on_pod_conditions or ()}
    return bool(wanted & cause.conditions)
