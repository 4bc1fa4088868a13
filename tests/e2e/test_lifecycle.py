"""Suspension, deletion, approval, resizing, sharing: what users do with jobs on the way."""

import itertools

import pytest
from e2e import jobs
from e2e.operator_release import Release
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("operator")]
APPROVED = "training.neuroshard.dev/approved-plan"


def suspend(namespace: Namespace, name: str, *, on: bool) -> None:
    """Suspend or resume a job, as a user does."""
    namespace.kubectl.patch(jobs.KIND, name, {"spec": {"suspend": on}})


STAGES = ["Profiling", "Planning", "Launching", "Running"]


def test_a_job_rests_in_each_stage_and_goes_on(namespace: Namespace) -> None:
    """One job is suspended four times: no pod is left meanwhile, and what was finished is not done again."""
    kubectl = namespace.kubectl
    pods = {"profiler": {"resources": {"requests": {"cpu": "10m"}}}}
    job = jobs.script_job(
        "shop", jobs.HELD, profiler=jobs.SIMULATED, experimental=pods, runPolicy={"cleanPodPolicy": "None"}
    )
    kubectl.apply(job)
    plans: list[set[str]] = []
    for number in range(len(STAGES)):
        jobs.wait_for_stage(kubectl, "shop", *STAGES[number:])
        suspend(namespace, "shop", on=True)
        seen = jobs.wait_for_stage(kubectl, "shop", "Suspended")
        jobs.wait_until_none_lives(kubectl, "shop")
        assert jobs.conditions(seen)["Suspended"] == ("True", "SuspendedByUser")
        plans.append(jobs.uids(jobs.children(kubectl, "shop", "configmaps", "plan")))
        suspend(namespace, "shop", on=False)
    jobs.wait_for_stage(kubectl, "shop", "Running")
    jobs.finish(kubectl, "shop")
    jobs.wait_for_stage(kubectl, "shop", "Succeeded")
    plans.append(jobs.uids(jobs.children(kubectl, "shop", "configmaps", "plan")))

    assert all(before <= after for before, after in itertools.pairwise(plans))


def test_a_job_that_is_deleted_leaves_nothing(namespace: Namespace) -> None:
    """Every child has an owner, and goes with it."""
    namespace.kubectl.apply(jobs.script_job("shop", "sleep 600"))
    jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
    namespace.kubectl.delete(jobs.KIND, "shop")

    eventually("nothing is left", lambda: jobs.leftovers(namespace.kubectl, "shop"), accept=lambda x: not x)


@pytest.mark.chaos
def test_a_job_that_is_deleted_while_the_operator_is_away_leaves_nothing(
    release: Release, namespace: Namespace
) -> None:
    """There is no finalizer that only the operator could remove."""
    namespace.kubectl.apply(jobs.script_job("shop", "sleep 600"))
    jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
    release.scale(0)
    try:
        namespace.kubectl.delete(jobs.KIND, "shop", "--timeout=600s")
        eventually("nothing is left", lambda: jobs.leftovers(namespace.kubectl, "shop"), accept=lambda x: not x)
    finally:
        release.scale(1)


@pytest.mark.chaos
def test_a_job_whose_time_is_over_goes_even_if_the_operator_was_away_then(
    release: Release, namespace: Namespace
) -> None:
    """The time counts from the end that the status records."""
    namespace.kubectl.apply(jobs.script_job("shop", "true"))
    jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")
    release.scale(0)
    try:
        namespace.kubectl.patch(jobs.KIND, "shop", {"spec": {"runPolicy": {"ttlSecondsAfterFinished": 1}}})
        still_there = jobs.status(namespace.kubectl, "shop")
    finally:
        release.scale(1)

    def is_gone() -> bool:
        return not namespace.kubectl.list(jobs.KIND)

    assert still_there["stage"] == "Succeeded"
    eventually("the job is gone", is_gone)


def test_a_plan_that_is_edited_or_deleted_never_reaches_the_workers(namespace: Namespace) -> None:
    """The ConfigMap is immutable, and one that is deleted under a running job is made again."""
    namespace.kubectl.apply(jobs.script_job("shop", "sleep 600"))
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
    name = seen["plan"]["configMapRef"]["name"]
    with pytest.raises(CommandError, match="immutable"):
        namespace.kubectl.patch("configmap", name, {"data": {"plan.json": "{}"}})
    before = jobs.files_in(namespace.kubectl, name)
    namespace.kubectl.delete("configmap", name)
    suspend(namespace, "shop", on=True)
    jobs.wait_for_stage(namespace.kubectl, "shop", "Suspended")
    suspend(namespace, "shop", on=False)
    again = jobs.wait_for_stage(namespace.kubectl, "shop", "Running")

    assert jobs.files_in(namespace.kubectl, again["plan"]["configMapRef"]["name"]) == before
    assert again["plan"]["hash"] == seen["plan"]["hash"]


def test_plan_only_ends_with_a_plan_and_without_workers(namespace: Namespace) -> None:
    """What would it cost?"""
    namespace.kubectl.apply(jobs.script_job("shop", "true", launchPolicy="PlanOnly"))
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")

    assert seen["reason"] == "PlanOnly"
    assert seen["cost"]["predicted"]["totalMicroseconds"] > 0
    assert "plan.json" in jobs.files_in(namespace.kubectl, seen["plan"]["configMapRef"]["name"])
    assert not jobs.children(namespace.kubectl, "shop", "jobs", "worker")


def test_workers_wait_until_their_plan_is_approved(namespace: Namespace) -> None:
    """By its name: the approval of another plan does not count."""
    namespace.kubectl.apply(jobs.script_job("shop", "true", launchPolicy="Manual"))
    seen = jobs.wait_for(
        namespace.kubectl, "shop", lambda seen: seen.get("reason") == "WaitingForApproval", "waits for approval"
    )
    namespace.kubectl("annotate", jobs.KIND, "shop", f"{APPROVED}=another")
    assert not jobs.children(namespace.kubectl, "shop", "jobs", "worker")
    namespace.kubectl(
        "annotate", "--overwrite", jobs.KIND, "shop", f"{APPROVED}={seen['plan']['configMapRef']['name']}"
    )

    assert jobs.conditions(jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded"))["Approved"][0] == "True"


def test_a_second_job_on_the_same_hardware_is_not_profiled(namespace: Namespace) -> None:
    """The profile is the namespace's, and is named by the hardware's fingerprint."""
    for name in ("first", "second"):
        namespace.kubectl.apply(jobs.script_job(name, "true", profiler=jobs.SIMULATED))
        jobs.wait_for_stage(namespace.kubectl, name, "Succeeded")
    seen = jobs.status(namespace.kubectl, "second")

    assert seen["profile"]["cached"] is True
    assert jobs.conditions(seen)["Profiled"] == ("True", "CacheHit")
    assert not jobs.children(namespace.kubectl, "second", "jobs", "profiler")


def test_a_job_is_resized_while_it_rests_and_planned_anew(namespace: Namespace) -> None:
    """Not while it runs: the API server refuses that."""
    namespace.kubectl.apply(jobs.script_job("shop", "sleep 600"))
    before = jobs.wait_for_stage(namespace.kubectl, "shop", "Running")
    resize = {"spec": {"trainer": {"numNodes": 2}}}
    with pytest.raises(CommandError, match="trainer can be changed only while the job is suspended"):
        namespace.kubectl.patch(jobs.KIND, "shop", resize)
    suspend(namespace, "shop", on=True)
    jobs.wait_for_stage(namespace.kubectl, "shop", "Suspended")
    namespace.kubectl.patch(jobs.KIND, "shop", resize)
    suspend(namespace, "shop", on=False)
    after = jobs.wait_for_stage(namespace.kubectl, "shop", "Running")

    assert (before["plan"]["worldSize"], after["plan"]["worldSize"]) == (1, 2)
    assert before["plan"]["hash"] != after["plan"]["hash"]


def test_two_jobs_that_want_the_same_gpus_run_one_after_the_other(namespace: Namespace) -> None:
    """No deadlock: each has one worker, and the scheduler gives the GPUs to one."""
    node = namespace.kubectl.list("nodes", selector="neuroshard.dev/pool=h200")[0]["metadata"]["name"]
    template = {"spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "terminationGracePeriodSeconds": 5}}
    for name in ("first", "second"):
        namespace.kubectl.apply(jobs.script_job(name, "sleep 5", gpus=8, podTemplate=template))

    for name in ("first", "second"):
        jobs.wait_for_stage(namespace.kubectl, name, "Succeeded")
