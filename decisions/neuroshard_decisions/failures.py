"""Why a Kubernetes Job failed, from its pods and its own condition. Pure functions; calls no API."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from neuroshard_api.lifecycle.failures import KILLED, LOST_NODE, STOPPED, FailureCause
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_decisions import names
from neuroshard_decisions.observed.objects import ChildJob, ChildPod

# What the Job controller writes into the message of a Job that its pod failure policy ended.
_BY_EXIT_CODE = re.compile(
    r"Container (?P<container>\S+) for pod \S+?/(?P<pod>\S+) failed with exit code (?P<code>\d+)"
)
_BY_CONDITION = re.compile(r"Pod \S+?/(?P<pod>\S+) has condition (?P<condition>\S+)")

_LAST = datetime.max.replace(tzinfo=UTC)


def cause_of(jobs: Sequence[ChildJob], pods: Iterable[ChildPod]) -> FailureCause:
    """Return the cause of a failure of Jobs that end together: from their pods, or from a Job's own condition.

    That has it where the pods are gone already.

    A pod that the cluster took away goes first, since it may end after the peers that it left alone. Then the pods that
    failed of themselves, among which a Job's condition decides, or else the time. Pods that ended since a peer was
    gone (exit code 7), since they were asked to (143), or that were killed while being deleted are blamed last.
    """
    own = [pod for pod in pods if pod.meta.owner_uid in {job.meta.uid for job in jobs}]
    recorded = sorted(map(_recorded_by, jobs), key=lambda each: (_is_no_cause(each), not each.pod, not each.reason))
    suspects = [pod for pod in own if pod.disruption] or [pod for pod in own if pod.termination is not None]
    if not suspects:
        return recorded[0]
    blamed, names_left = {each.pod for each in recorded}, {pod.meta.name for pod in own}
    first = min(suspects, key=lambda pod: (_rank(pod), pod.meta.name not in blamed, _end(pod)))
    gone = next((each for each in recorded if each.pod not in names_left and not _is_no_cause(each)), None)
    return _cause_in(first) if gone is None or _rank(first) == 0 else gone


def _is_no_cause(recorded: FailureCause) -> bool:
    """Return whether a Job's condition tells nothing, or of pods that ended for want of a peer or were asked to."""
    return recorded.exit_code in {None, ExitCode.PEER_LOST, STOPPED}


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


def was_stopped(jobs: Sequence[ChildJob], pods: Iterable[ChildPod]) -> bool:
    """Return whether the pods of Jobs that end together ended since they were asked to: by suspension or preemption.

    The Job controller deletes the pods of a Job that is suspended, and takes one that it meets between its end and its
    deletion for a failed one.
    """
    uids = {job.meta.uid for job in jobs}
    codes = {pod.termination.exit_code for pod in pods if pod.meta.owner_uid in uids and pod.termination}
    return any(job.suspended for job in jobs) or codes == {STOPPED}


def _end(pod: ChildPod) -> tuple[datetime, str]:
    ended = pod.termination.time if pod.termination else None
    return ended or _LAST, pod.meta.name


def _cause_in(pod: ChildPod) -> FailureCause:
    termination = pod.termination
    return FailureCause(
        pod=pod.meta.name,
        is_server=pod.role == names.SERVER,
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
        is_server=job.role == names.SERVER,
        container=by_code["container"] if by_code else "",
        exit_code=int(by_code["code"]) if by_code else None,
        conditions=frozenset({(by_condition["condition"], "True")}) if by_condition else frozenset(),
        reason=outcome.reason,
        message=outcome.message,
        time=outcome.time,
    )
