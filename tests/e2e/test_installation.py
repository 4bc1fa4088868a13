"""The operator itself: killed, doubled, upgraded, uninstalled; and a job that outlives all of it."""

from collections import defaultdict
from datetime import UTC, datetime

import pytest
from e2e import jobs
from e2e.operator_release import ACCOUNT, NAMESPACE, RELEASE, Release
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.usefixtures("operator")]


def test_an_operator_that_is_killed_in_each_stage_loses_nothing_and_does_nothing_twice(
    release: Release, namespace: Namespace
) -> None:
    """The operator is killed in each stage of one job, and again as soon as another pod of it is there."""
    stages = ["Profiling", "Planning", "Launching", "Running"]
    namespace.kubectl.apply(jobs.script_job("shop", jobs.HELD, profiler=jobs.SIMULATED))
    for number in range(len(stages)):
        jobs.wait_for_stage(namespace.kubectl, "shop", *stages[number:])
        release.kill()
        eventually("an operator is back", release.pods)
        release.kill()
    jobs.finish(namespace.kubectl, "shop")
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")

    assert seen.get("restarts", 0) == 0
    for role in ("profiler", "planner", "worker"):
        assert len(jobs.children(namespace.kubectl, "shop", "jobs", role)) == 1
    assert {each["state"] for each in seen["stages"]} == {"Succeeded"}


def test_of_two_operators_one_works_and_the_other_takes_over(release: Release, namespace: Namespace) -> None:
    """By a Lease: when the one that works is killed, the other goes on with the same job."""
    release.install(replicas=2)
    try:
        namespace.kubectl.apply(jobs.script_job("shop", jobs.HELD))
        jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
        holder = release.kubectl.get("lease", RELEASE)["spec"]["holderIdentity"]
        release.kubectl.delete("pod", holder, "--grace-period=0", "--force", "--wait=false")
        jobs.finish(namespace.kubectl, "shop")
        seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")
        taker = release.kubectl.get("lease", RELEASE)["spec"]["holderIdentity"]
    finally:
        release.install()

    assert taker != holder
    assert seen.get("restarts", 0) == 0
    assert len(jobs.children(namespace.kubectl, "shop", "jobs", "worker")) == 1


def test_a_running_job_outlives_an_upgrade_and_an_uninstallation(
    release: Release, cluster: Cluster, namespace: Namespace
) -> None:
    """Its pods are not touched; the definition stays, and an operator that comes back goes on."""
    namespace.kubectl.apply(jobs.script_job("shop", jobs.HELD))
    jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
    pods = jobs.uids(jobs.children(namespace.kubectl, "shop", "pods", "worker"))
    release.install(workers=4)
    release.helm("uninstall", RELEASE, "--wait")
    try:
        kept = cluster.kubectl.get("crd", "dlrmtrainingjobs.training.neuroshard.dev")
        between = jobs.status(namespace.kubectl, "shop")
    finally:
        release.install()
    jobs.finish(namespace.kubectl, "shop")
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")

    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert between["stage"] == "Running"
    assert seen.get("restarts", 0) == 0
    assert jobs.uids(jobs.children(namespace.kubectl, "shop", "pods", "worker")) == pods


def test_a_running_job_outlives_a_restart_of_the_api_server(cluster: Cluster, namespace: Namespace) -> None:
    """Workers, operator and publishers all find back."""
    namespace.kubectl.apply(jobs.script_job("shop", jobs.HELD))
    jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
    cluster.restart("kube-apiserver")
    jobs.finish(namespace.kubectl, "shop")

    assert jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded").get("restarts", 0) == 0


def test_helm_test_finds_the_operator_ready(release: Release) -> None:
    """What the chart's notes tell users to type."""
    assert "Phase:          Succeeded" in release.helm("test", RELEASE)


def allowed(cluster: Cluster) -> set[tuple[str, str]]:
    """Return verb and resource of every rule that the chart gives the operator."""
    rules = [
        rule
        for kind in ("clusterroles", "roles")
        for role in cluster.kubectl.in_namespace(NAMESPACE).list(kind, selector=f"app.kubernetes.io/instance={RELEASE}")
        if not role["metadata"]["name"].endswith(("-view", "-edit"))
        for rule in role["rules"]
    ]
    return {(verb, resource) for rule in rules for verb in rule["verbs"] for resource in rule["resources"]}


def test_the_audit_log_shows_no_call_beyond_the_charts_rules(release: Release, namespace: Namespace) -> None:
    """Reads and writes of the operator and of pods of jobs; none was refused for want of a right."""
    began = datetime.now(UTC)  # what other tests installed had other rules
    namespace.kubectl.apply(jobs.script_job("shop", "true", profiler=jobs.SIMULATED))
    jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")
    calls = defaultdict(set)
    refused = []
    for call in release.calls():
        if datetime.fromisoformat(call["requestReceivedTimestamp"]) < began:
            continue
        user = call["user"].get("username", "")
        place = call.get("objectRef") or {}
        if user != ACCOUNT and not user.startswith(f"system:serviceaccount:{namespace.name}:"):
            continue
        if "resource" not in place:  # the API server's own pages, which everyone may read
            continue
        resource = "/".join(part for part in (place.get("resource"), place.get("subresource")) if part)
        calls[user].add((call["verb"], resource))
        if call.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid":
            refused.append((user, call["verb"], resource, place.get("name")))
    pods = {user: made for user, made in calls.items() if user != ACCOUNT}

    assert calls[ACCOUNT] <= allowed(release.cluster)
    assert refused == []
    assert {"get", "create", "update"} <= {verb for verb, _ in calls[ACCOUNT]}
    assert pods
    assert {call for made in pods.values() for call in made} == {("patch", "configmaps")}
