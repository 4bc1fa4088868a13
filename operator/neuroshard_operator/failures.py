"""Why a Job failed, and what the job's failure policy says about it. Pure functions; calls no API."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from neuroshard_api.job.policies import ExitCodeOperator, FailureAction, FailurePolicy, FailureRule
from neuroshard_api.job.status import LastFailure, Stage
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_operator.observed.objects import DISRUPTION, LOG_CHARACTERS, ChildJob, ChildPod

KUBELET_EVICTION = "TerminationByKubelet"
"""A disruption whose cause may be the pod's own hunger for memory or disk, so it counts as a failure."""
NODE_SHUTDOWN = "Terminated"
"""status.reason of a pod that the kubelet ended since its node shuts down, as spot nodes do: no fault of the pod's."""
STOPPED = 143
"""Exit code after SIGTERM: NeuroShard's trainer ends with it once it has written its checkpoint."""
KILLED = 137
"""Exit code after SIGKILL: the kernel's for want of memory, or the kubelet's at the end of the grace period."""

# What the Job controller writes into the message of a Job that its pod failure policy ended.
_BY_EXIT_CODE = re.compile(
    r"Container (?P<container>\S+) for pod \S+?/(?P<pod>\S+) failed with exit code (?P<code>\d+)"
)
_BY_CONDITION = re.compile(r"Pod \S+?/(?P<pod>\S+) has condition (?P<condition>\S+)")

LOST_NODE = "NodeLost"
"""Reason of a failure whose pod does not answer and that the cluster has no word for."""
_LAST = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, kw_only=True, slots=True)
class FailureCause:
    """The failure that brought a Job down: the first of its pods, not those that it took along."""

    pod: str = ""
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
        who = f"pod {self.pod}" if self.pod else "a pod"
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


def cause_of(job: ChildJob, pods: Iterable[ChildPod]) -> FailureCause:
    """Return the cause of a Job's failure: from its pods, or where they are gone already from the Job's own condition.

    A pod that the cluster took away goes first, since it may end after the peers that it left alone. Then the pods that
    failed of themselves, among which the Job's condition decides, or else the time. Pods that ended since a peer was
    gone (exit code 7), since they were asked to (143), or that were killed while being deleted are blamed last.
    """
    own = [pod for pod in pods if pod.meta.owner_uid == job.meta.uid]
    recorded = _recorded_by(job)
    suspects = [pod for pod in own if pod.disruption] or [pod for pod in own if pod.termination is not None]
    if not suspects:
        return recorded
    first = min(suspects, key=lambda pod: (_rank(pod), pod.meta.name != recorded.pod, _end(pod)))
    gone = recorded.pod not in {pod.meta.name for pod in own}
    if gone and _rank(first) > 0 and recorded.exit_code not in {None, ExitCode.PEER_LOST, STOPPED}:
        return recorded
    return _cause_in(first)


def cause_of_loss(pods: Sequence[ChildPod], message: str, now: datetime) -> FailureCause:
    """Return the cause of a restart for nodes that do not answer: the first of their pods. Raises IndexError."""
    pod = min(pods, key=lambda each: each.meta.name)
    return replace(_cause_in(pod), reason=pod.disruption or LOST_NODE, message=message, time=now)


def _rank(pod: ChildPod) -> int:
    """Return a failure's distance from its cause: 0 of itself, 1 for want of a peer, 2 since it was asked to end."""
    if pod.disruption or pod.termination is None:
        return 0
    code = pod.termination.exit_code
    if code == STOPPED or (code == KILLED and pod.meta.deleted is not None):
        return 2
    return int(code == ExitCode.PEER_LOST)


def was_stopped(job: ChildJob, pods: Iterable[ChildPod]) -> bool:
    """Return whether a Job's pods ended since they were asked to: by suspension or preemption of the Job.

    The Job controller deletes the pods of a Job that is suspended, and takes one that it meets between its end and its
    deletion for a failed one.
    """
    codes = {pod.termination.exit_code for pod in pods if pod.meta.owner_uid == job.meta.uid and pod.termination}
    return job.suspended or codes == {STOPPED}


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


def _end(pod: ChildPod) -> tuple[datetime, str]:
    ended = pod.termination.time if pod.termination else None
    return ended or _LAST, pod.meta.name


def _cause_in(pod: ChildPod) -> FailureCause:
    termination = pod.termination
    return FailureCause(
        pod=pod.meta.name,
        node=pod.node,
        container=termination.container if termination else "",
        exit_code=termination.exit_code if termination else None,
        conditions=frozenset(pod.conditions.items()),
        pod_reason=pod.reason,
        never_ran=pod.never_ran,
        reason=pod.disruption or (termination.reason if termination else ""),
        message=termination.message if termination else "",
        time=termination.time if termination else None,
    )


def _recorded_by(job: ChildJob) -> FailureCause:
    outcome = job.outcome
    if outcome is None:
        return FailureCause()
    by_code = _BY_EXIT_CODE.search(outcome.message)
    by_condition = _BY_CONDITION.search(outcome.message)
    return FailureCause(
        pod=by_code["pod"] if by_code else by_condition["pod"] if by_condition else "",
        container=by_code["container"] if by_code else "",
        exit_code=int(by_code["code"]) if by_code else None,
        conditions=frozenset({(by_condition["condition"], "True")}) if by_condition else frozenset(),
        reason=outcome.reason,
        message=outcome.message,
        time=outcome.time,
    )
