"""Jobs that Kueue holds, admits and preempts, as a whole or in part."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from e2e import jobs
from e2e.operator_release import Release
from e2e.test_elastic import HEAVY, LOOKED_WITHIN_S, elastic_job, let_it_grow, trains_on
from e2e.test_embedding_servers import TRAINER, served_job, with_plan
from e2e.volumes import shared_volume
from neuroshard_cluster import addons
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.folders import Home
from neuroshard_cluster.gpus import RESOURCE
from neuroshard_cluster.images import PLANNER
from neuroshard_cluster.kubectl import Kubectl, Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from neuroshard_cluster.workloads import condition

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("kueue"), pytest.mark.usefixtures("operator")]
VERSION = "kueue.x-k8s.io/v1beta1"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITIES = {"low": 1, "high": 1000}


def kueue_object(kind: str, name: str, spec: dict[str, Any], **fields: Any) -> Object:
    """Return one of Kueue's objects."""
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name, **fields}, "spec": spec}


def queues(namespace: str, memory: str = "64Gi") -> list[Object]:
    """Return one queue with a quota of two GPUs, in which the more important job wins."""
    quotas = [{"name": name, "nominalQuota": room} for name, room in ((RESOURCE, 2), ("cpu", 64), ("memory", memory))]
    covered = [each["name"] for each in quotas]
    groups = [{"coveredResources": covered, "flavors": [{"name": addons.FLAVOR, "resources": quotas}]}]
    wins = {"withinClusterQueue": "LowerPriority"}
    spec = {"namespaceSelector": {}, "resourceGroups": groups, "preemption": wins}
    return [
        kueue_object("ClusterQueue", namespace, spec),
        kueue_object("LocalQueue", "queue", {"clusterQueue": namespace}, namespace=namespace),
        *(
            {
                "apiVersion": VERSION,
                "kind": "WorkloadPriorityClass",
                "metadata": {"name": f"{namespace}-{name}"},
                "value": value,
            }
            for name, value in PRIORITIES.items()
        ),
    ]


@pytest.fixture(scope="module")
def kueue(cluster: Cluster, home: Home) -> Iterator[None]:
    """Kueue for these tests only, as its webhooks would see every Job of the others."""
    try:
        addons.install_kueue(cluster, home, say=print)
        yield
    finally:
        addons.remove_kueue(cluster)


@pytest.fixture
def queue(request: pytest.FixtureRequest, cluster: Cluster, namespace: Namespace) -> Iterator[str]:
    """The name of a LocalQueue."""
    request.getfixturevalue("kueue")
    cluster.kubectl.apply(*queues(namespace.name))
    is_known(namespace, "queue")
    yield "queue"
    # Jobs and queues first, while Kueue is still there to let go of them.
    namespace.kubectl("delete", jobs.KIND, "--all", "--timeout=600s")
    namespace.kubectl("wait", "--for=delete", "workloads", "--all", "--timeout=600s")
    namespace.kubectl("delete", "localqueue", "--all")
    cluster.kubectl("delete", "clusterqueue", namespace.name, "--timeout=600s")


def queued(name: str, script: str, queue: str, priority: str, *, nodes: int = 1) -> Object:
    """Return a job that waits in a queue for a GPU on each of its nodes."""
    job = jobs.script_job(name, script, nodes=nodes, runPolicy={"cleanPodPolicy": "None"})
    job["metadata"]["labels"] = {QUEUE_LABEL: queue, "kueue.x-k8s.io/priority-class": priority}
    return job


def is_known(namespace: Namespace, queue: str) -> None:
    """Wait until Kueue knows a LocalQueue: it labels no Jobs for one that it has not heard of."""
    known = lambda: namespace.kubectl.get("localqueue", queue).get("status", {}).get("conditions")  # noqa: E731
    eventually(f"Kueue knows queue {queue}", known)


def admits(cluster: Cluster, queue: str, *, admits: bool) -> None:
    """Let a ClusterQueue admit workloads, or hold them, and wait until it does; what runs goes on."""
    cluster.kubectl.patch("clusterqueue", queue, {"spec": {"stopPolicy": "None" if admits else "Hold"}})
    is_active = lambda: bool(condition(cluster.kubectl.get("clusterqueue", queue), "Active"))  # noqa: E731
    eventually(f"{queue} admits: {admits}", is_active, accept=admits.__eq__)


def is_held(namespace: Namespace, job: str) -> Mapping[str, Any]:
    """Wait until a job waits for admission, and return its status."""
    waits = lambda seen: seen.get("reason") == "WaitingForAdmission"  # noqa: E731
    return jobs.wait_for(namespace.kubectl, job, waits, "waits for admission")


STOPS_IN_TURN = """
stop() { sleep $((JOB_COMPLETION_INDEX * 5)); exit 143; }
trap stop TERM
sleep 600 & wait
"""
"""The second worker ends 5 s after the first one, as where one of them has more to write into the checkpoint."""


def test_kueue_holds_admits_and_preempts_jobs(namespace: Namespace, queue: str) -> None:
    """Two GPUs for three jobs: the second waits, the urgent one preempts two workers that end at different times."""
    low, high = (f"{namespace.name}-{name}" for name in PRIORITIES)
    first = queued("first", STOPS_IN_TURN, queue, low, nodes=2)
    first["spec"]["failurePolicy"] = {"maxRestarts": 0}
    namespace.kubectl.apply(first)
    jobs.wait_for_stage(namespace.kubectl, "first", "Running")
    namespace.kubectl.apply(queued("second", "true", queue, low))
    held = is_held(namespace, "second")
    namespace.kubectl.apply(queued("urgent", jobs.HELD, queue, high))
    preempted = is_held(namespace, "first")
    jobs.wait_for_stage(namespace.kubectl, "urgent", "Running")
    jobs.finish(namespace.kubectl, "urgent")
    ended = {name: jobs.wait_for_stage(namespace.kubectl, name, "Succeeded") for name in ("urgent", "second")}
    jobs.wait_for_stage(namespace.kubectl, "first", "Running", "Succeeded")
    ended["first"] = jobs.status(namespace.kubectl, "first")

    assert held["stage"] == "Suspended"
    assert preempted["stage"] == "Suspended"
    assert {name: seen.get("restartsCountTowardsMax", 0) for name, seen in ended.items()} == dict.fromkeys(ended, 0)


@pytest.mark.usefixtures("queue")
def test_jobs_of_a_namespace_with_a_default_queue_are_left_to_kueue(cluster: Cluster, namespace: Namespace) -> None:
    """Kueue labels and suspends the Jobs of each stage; the operator resumes none and says which queue holds them."""
    default = kueue_object("LocalQueue", "default", {"clusterQueue": namespace.name}, namespace=namespace.name)
    cluster.kubectl.apply(default)
    is_known(namespace, "default")
    admits(cluster, namespace.name, admits=False)
    namespace.kubectl.apply(jobs.script_job("shop", "true", profiler=jobs.SIMULATED))
    held = is_held(namespace, "shop")
    admits(cluster, namespace.name, admits=True)
    seen = jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")

    assert "in queue default" in held["message"]
    children = jobs.children(namespace.kubectl, "shop", "jobs")
    assert [each["metadata"]["labels"].get(QUEUE_LABEL) for each in children] == ["default"] * 3
    assert "ChildRepaired" not in jobs.events(namespace.kubectl, "shop")
    assert seen.get("restarts", 0) == 0


@pytest.mark.long
def test_where_kueue_manages_jobs_without_a_queue_one_waits_until_its_user_names_one(
    cluster: Cluster, home: Home, namespace: Namespace, queue: str
) -> None:
    """Kueue suspends the planner's Job and the workers'; both get the queue that the job is labeled with meanwhile."""
    addons.install_kueue(cluster, home, say=print, manages_jobs_without_queue=True)
    try:
        namespace.kubectl.apply(jobs.script_job("shop", "true"))
        held = is_held(namespace, "shop")
        namespace.kubectl("label", jobs.KIND, "shop", f"{QUEUE_LABEL}={queue}")
        jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")
    finally:
        addons.install_kueue(cluster, home, say=print)

    assert QUEUE_LABEL in held["message"]
    children = jobs.children(namespace.kubectl, "shop", "jobs")
    assert [each["metadata"]["labels"].get(QUEUE_LABEL) for each in children] == [queue] * 2


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.long)], ids=["undisturbed", "killed"])
def test_an_elastic_job_trains_on_what_kueue_admits(
    cluster: Cluster, operator: Release, namespace: Namespace, queue: str, tmp_path: Path, *, kills: bool
) -> None:
    """An urgent job takes one of two GPUs, and gives it back: two nodes, one, and two, from the newest checkpoint.

    The operator dies once a size is decided, once it is planned for, and while the old workers end.
    """
    if len(cluster.nodes()) < 2:
        pytest.skip("a job on two nodes and on one needs two; make cluster-up NODES=2")
    kubectl, folder = namespace.kubectl, tmp_path / "checkpoints"
    low, high = (f"{namespace.name}-{name}" for name in PRIORITIES)

    def is_seen(what: str, accept: Callable[[Mapping[str, Any]], bool]) -> None:
        jobs.wait_for(kubectl, "shop", accept, what, LOOKED_WITHIN_S)
        if kills:
            operator.kill()

    with shared_volume(cluster, namespace, folder) as claim:
        job = elastic_job(claim, sorted(cluster.nodes())[:2], model=HEAVY)
        job["metadata"]["labels"] = {QUEUE_LABEL: queue, "kueue.x-k8s.io/priority-class": low}
        kubectl.apply(job)
        first, _ = trains_on(kubectl, 2, folder)
        kubectl.apply(queued("urgent", jobs.HELD, queue, high))
        is_seen("takes one node", lambda seen: seen["elastic"]["numNodes"] == 1)
        is_seen("is planned for one node", lambda seen: seen["plan"]["worldSize"] == 1)
        fewer, _ = trains_on(kubectl, 1, folder, LOOKED_WITHIN_S)
        jobs.wait_for_stage(kubectl, "urgent", "Running")
        jobs.finish(kubectl, "urgent")
        jobs.wait_for_stage(kubectl, "urgent", "Succeeded")
        let_it_grow(kubectl)
        is_seen("has asked the queue", lambda seen: "growth" in seen["elastic"] or seen["elastic"]["numNodes"] == 2)
        is_seen("takes both nodes", lambda seen: seen["elastic"]["numNodes"] == 2)
        again, _ = trains_on(kubectl, 2, folder, LOOKED_WITHIN_S)
        eventually("no question to the queue is left", lambda: not jobs.children(kubectl, "shop", role="quota"))
        jobs.wait_for_log(kubectl, "shop", "going on from step")
        jobs.wait_for_events(kubectl, "shop", "Resized")

    assert [seen["elastic"]["reason"] for seen in (first, fewer, again)] == [
        "NodesAvailable",
        "QuotaLacking",
        "QuotaReturned",
    ]
    assert [seen["plan"]["worldSize"] for seen in (first, fewer, again)] == [2, 1, 2]
    assert again["restartsCountTowardsMax"] == 0


@pytest.fixture
def job_sets(request: pytest.FixtureRequest, operator: Release, cluster: Cluster, home: Home) -> Iterator[None]:
    """JobSet, and an operator that has found it, for one test."""
    addons.install_jobset(cluster, home, say=print)
    try:
        request.getfixturevalue("kueue")
        operator.install(jobSets=True)
        yield
    finally:
        operator.install()
        addons.remove_jobset(cluster)


def held_servers(kubectl: Kubectl, name: str, queue: str, priority: str = "") -> Object:
    """Return a job with servers in a queue, whose trainers and server run until `finish`."""
    trainer = {**TRAINER, "image": PLANNER.tag}
    trainer["resourcesPerNode"] = {"requests": {"cpu": "100m"}, "limits": {"memory": "64Mi"}}
    script = {"name": "trainer", "command": ["sh", "-c", jobs.HELD]}
    template = {"spec": {"terminationGracePeriodSeconds": 5, "containers": [script]}}
    job = with_plan(kubectl, served_job(name, trainer=trainer, podTemplate=template))
    important = {"kueue.x-k8s.io/priority-class": priority} if priority else {}
    job["metadata"]["labels"] = {QUEUE_LABEL: queue, **important}
    return job


@pytest.mark.usefixtures("job_sets")
def test_workers_and_servers_wait_for_room_for_both(cluster: Cluster, namespace: Namespace, queue: str) -> None:
    """A quota of 5 GiB has room for one job of 4 GiB, and next to it for the second one's workers, without its server.

    So these wait. A more important job of both preempts both, which go on once it has ended: behind the second one if
    their Job failed while they ended, since another one is younger than that.
    """
    kubectl = namespace.kubectl
    low, high = (f"{namespace.name}-{name}" for name in PRIORITIES)
    cluster.kubectl.apply(*queues(namespace.name, memory="5Gi"))
    kubectl.apply(held_servers(kubectl, "first", queue, low))
    running = jobs.wait_for_stage(kubectl, "first", "Running")
    kubectl.apply(held_servers(kubectl, "second", queue, low))
    held = is_held(namespace, "second")
    workloads = eventually("Kueue has judged both", lambda: judged(kubectl), accept=lambda found: len(found) >= 2)
    pods = jobs.children(kubectl, "second", "pods")
    shown = kubectl("get", jobs.KIND, "second"), kubectl("get", "jobset")
    kubectl.apply(held_servers(kubectl, "urgent", queue, high))
    jobs.wait_for_stage(kubectl, "urgent", "Running")
    preempted = is_held(namespace, "first")
    jobs.wait_until_none_lives(kubectl, "first")
    ended, left = {}, {"urgent", "first", "second"}
    while left:
        name = eventually("another job runs", lambda: [each for each in left if stage(kubectl, each) == "Running"])[0]
        jobs.finish(kubectl, name, "server", "worker")  # servers first: workers end both
        ended[name] = jobs.wait_for_stage(kubectl, name, "Succeeded")
        left.remove(name)

    assert running["servers"] == {"desired": 1, "ready": 1}
    assert held["message"] == "JobSet second-0 waits for Kueue to admit it in queue queue"
    assert sorted(len(each["spec"]["podSets"]) for each in workloads) == [2, 2]
    assert [pod for pod in pods if pod["metadata"]["labels"][jobs.ROLE_LABEL] in {"worker", "server"}] == []
    assert "Suspended" in shown[0]
    assert "second-0" in shown[1]
    assert preempted["stage"] == "Suspended"
    assert next(iter(ended)) == "urgent"
    assert {name: seen.get("restartsCountTowardsMax", 0) for name, seen in ended.items()} == dict.fromkeys(ended, 0)


def judged(kubectl: Kubectl) -> list[Object]:
    """Return the workloads that Kueue has given their quota, or refused."""

    def types(workload: Object) -> set[str]:
        return {each["type"] for each in workload.get("status", {}).get("conditions", [])}

    return [each for each in kubectl.list("workloads") if "QuotaReserved" in types(each)]


def stage(kubectl: Kubectl, name: str) -> str:
    """Return the stage of a job."""
    return str(jobs.status(kubectl, name).get("stage"))


def test_a_queued_job_with_servers_is_refused_until_there_are_job_sets(
    request: pytest.FixtureRequest, operator: Release, cluster: Cluster, home: Home, namespace: Namespace
) -> None:
    """The operator looks for JobSet while it runs, and its log and the job's message say what it found."""
    kubectl = namespace.kubectl
    operator.install(jobSets=True)
    request.addfinalizer(operator.install)
    kubectl.apply(held_servers(kubectl, "early", "queue"))
    refused = jobs.wait_for_stage(kubectl, "early", "Failed")
    request.addfinalizer(lambda: addons.remove_jobset(cluster))
    addons.install_jobset(cluster, home, say=print)
    restarted = lambda: operator.leader()["status"]["containerStatuses"][0]["restartCount"]  # noqa: E731
    eventually("the operator has started again", restarted)
    kubectl.apply(held_servers(kubectl, "late", "queue"))
    held = is_held(namespace, "late")
    kubectl("delete", jobs.KIND, "--all", "--timeout=300s")

    assert refused["reason"] == "InvalidInput"
    assert "hint: install JobSet" in refused["message"]
    assert "JobSet late-0 waits for Kueue" in held["message"]
