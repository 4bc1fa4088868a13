"""Whose fault a failure is, and what the policy says."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from neuroshard_api.job.policies import FailureAction
from neuroshard_api.lifecycle.failures import FailureCause, verdict
from neuroshard_decisions.failures import cause_of
from neuroshard_decisions.observed.objects import ChildJob, ChildPod, JobEnd, Meta, Termination
from neuroshard_decisions.stages.result import log_tail
from support import builders

START = datetime(2026, 1, 1, tzinfo=UTC)
DISRUPTED = frozenset({("DisruptionTarget", "True")})


def failed_job(message: str = "") -> ChildJob:
    """Return a worker Job that failed with this message."""
    outcome = JobEnd(succeeded=False, reason="PodFailurePolicy", message=message, time=START)
    return ChildJob(meta=Meta(name="job-worker-0", uid="j"), role="worker", outcome=outcome)


def pod(name: str, *, code: int = 1, at_s: float = 0.0, disruption: str = "", owner: str = "j") -> ChildPod:
    """Return a pod that failed at a time."""
    time = START + timedelta(seconds=at_s)
    return ChildPod(
        meta=Meta(name=name, owner_uid=owner),
        role="worker",
        phase="Failed",
        node=f"node-of-{name}",
        termination=Termination(container="trainer", exit_code=code, reason="Error", message="the end", time=time),
        disruption=disruption,
        conditions={"DisruptionTarget": "True"} if disruption else {},
    )


def test_the_first_pod_that_failed_is_the_cause() -> None:
    """Its peers fell with it."""
    cause = cause_of([failed_job()], [pod("b", at_s=5), pod("a", code=137, at_s=1), pod("c", at_s=3)])

    assert (cause.pod, cause.exit_code, cause.node) == ("a", 137, "node-of-a")


def test_the_pod_that_the_cluster_took_away_goes_before_the_first() -> None:
    """It may end after the peers that it left alone, since it gets time for a checkpoint."""
    cause = cause_of([failed_job()], [pod("a", at_s=1), pod("b", at_s=9, disruption="EvictionByEvictionAPI")])

    assert (cause.pod, cause.reason) == ("b", "EvictionByEvictionAPI")


def test_the_pod_that_the_job_names_goes_before_the_first() -> None:
    """The Job controller saw it fail while the others still ran."""
    message = "Container trainer for pod ns/c failed with exit code 1 matching FailJob rule at index 1"

    assert cause_of([failed_job(message)], [pod("a", at_s=1), pod("c", at_s=2)]).pod == "c"


@pytest.mark.parametrize(("code", "deleted"), [(7, False), (143, False), (137, True)], ids=["7", "143", "killed"])
def test_a_pod_that_fell_with_another_one_is_not_the_cause(code: int, *, deleted: bool) -> None:
    """Exit codes 7 and 143, and a kill after the grace period, follow a failure elsewhere, whatever the clocks say."""
    message = "Container trainer for pod ns/a failed with exit code 7 matching FailJob rule at index 1"
    fell = pod("a", code=code, at_s=1)
    if deleted:
        fell = replace(fell, meta=replace(fell.meta, deleted=START))

    assert cause_of([failed_job(message)], [fell, pod("b", code=1, at_s=4)]).pod == "b"


def test_a_pod_that_is_gone_is_blamed_by_the_words_of_the_job() -> None:
    """Its peers are there, and ended since it did."""
    message = "Container trainer for pod ns/w-0 failed with exit code 42 matching FailJob rule at index 1"

    assert cause_of([failed_job(message)], [pod("a", code=7)]).exit_code == 42


def test_what_the_job_says_is_left_when_the_pods_are_gone() -> None:
    """Exit code and pod are in the words of the Job's condition."""
    message = "Container trainer for pod ns/w-0 failed with exit code 42 matching FailJob rule at index 1"
    cause = cause_of([failed_job(message)], [])

    assert (cause.pod, cause.container, cause.exit_code) == ("w-0", "trainer", 42)


def test_a_disruption_is_recognised_when_the_pods_are_gone() -> None:
    """A lost node takes its pods along."""
    cause = cause_of([failed_job("Pod ns/w-0 has condition DisruptionTarget matching FailJob rule at index 0")], [])

    assert (cause.pod, cause.conditions) == ("w-0", DISRUPTED)


def test_pods_of_another_attempt_are_not_asked() -> None:
    """They failed for reasons of their own."""
    assert cause_of([failed_job()], [pod("old", owner="another")]).pod == ""


@pytest.mark.parametrize(
    ("cause", "action"),
    [
        pytest.param(FailureCause(exit_code=1), "RestartJob", id="a failure restarts"),
        pytest.param(FailureCause(exit_code=2), "FailJob", id="wrong input fails"),
        pytest.param(FailureCause(exit_code=143, conditions=DISRUPTED), "RestartJobAndIgnoreMaxRestarts", id="a drain"),
        pytest.param(
            FailureCause(exit_code=137, conditions=DISRUPTED, reason="TerminationByKubelet"),
            "RestartJob",
            id="an eviction",
        ),
        pytest.param(FailureCause(), "RestartJob", id="nothing is known"),
    ],
)
def test_without_rules_the_defaults_decide(cause: FailureCause, action: str) -> None:
    """Disruptions do not count, wrong input is not tried twice, all else restarts."""
    assert verdict(builders.job().spec.failure_policy, cause).action.value == action


def test_the_first_rule_that_matches_decides() -> None:
    """In and NotIn look at exit codes above 0; a condition matches by type and status."""
    rules = [
        {"name": "bad data", "action": "FailJob", "onExitCodes": {"operator": "In", "values": [65]}},
        {"action": "RestartJob", "onPodConditions": [{"type": "DisruptionTarget"}]},
        {"action": "ReplanAndRestart", "onExitCodes": {"operator": "NotIn", "values": [1]}},
    ]
    policy = builders.job(failurePolicy={"rules": rules}).spec.failure_policy

    assert verdict(policy, FailureCause(exit_code=65)).rule == "bad data"
    assert verdict(policy, FailureCause(exit_code=7, conditions=DISRUPTED)).rule == "rules[1]"
    assert verdict(policy, FailureCause(exit_code=7)).action is FailureAction.REPLAN_AND_RESTART
    assert verdict(policy, FailureCause(exit_code=1)).rule == "default"
    assert verdict(policy, FailureCause(exit_code=None)).rule == "default"


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("", ""),
        ("step 3\nerror: no peer\n", "error: no peer"),
        ("step 3\nerror: no peer\nhint: open the port\n", "error: no peer; hint: open the port"),
    ],
    ids=["an empty log", "a problem alone", "a problem and its hint"],
)
def test_a_condition_quotes_the_problem_with_its_hint(log: str, message: str) -> None:
    """The last line alone may be the remedy of an unknown problem."""
    assert log_tail(FailureCause(message=log)) == message
