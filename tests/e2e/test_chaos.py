"""Many small jobs while processes, pods, nodes' agents and the control plane are killed at random.

Some jobs have embedding servers, or a container next to the trainer's that runs on, kubelets reject pods, and a tenant
writes hostile objects.
"""

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from e2e import jobs
from e2e.operator_release import RELEASE, Release
from e2e.tenant import Tenant
from e2e.test_embedding_servers import TRAINER, served_job, with_plan
from e2e.test_rejections import reject
from e2e.test_tenants import MEMORY_LIMIT_KIB, foreign, peak_kib_of
from neuroshard_api.job.stage_commands import PROGRESS_FILE, STEP_REPORT_FILE
from neuroshard_cluster.errors import ClusterError
from neuroshard_cluster.images import PLANNER
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from neuroshard_operator.cluster.watched import WATCHED

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.long]

MOST_JOBS = 30
SECONDS_PER_JOB = 15
"""A short run has fewer jobs at once, so that it ends in about twice its time on two cores."""
BLOW_EVERY_S = 8.0
API_AWAY_S = 80.0
"""Longer than the API server's watch cache keeps events, and than any client's connection or lease lasts."""
NODE_BROKEN_S = 90.0
"""Long enough for the node to turn NotReady."""
REJECTED_WITHIN_S = 20.0
"""Within this time a pod comes to a node that rejects it, or none does."""
SHIPPED_SHARE = 0.3
"""Of the jobs, whose pods have a log shipper."""
HOSTILE_AT_ONCE = 4
GARBAGE = {"test.neuroshard.dev/garbage": "true"}
SCRIBBLES = ("", "{", "[]", '{"schema": 99}', "\N{NULL}x", "9" * 5000, "a" * 20_000)
GAUGE = re.compile(r'^neuroshard_jobs\{stage="(\w+)"\} (\d+)', re.MULTILINE)
WATCHED_GAUGE = re.compile(r'^neuroshard_watched_objects\{kind="(\w+)"\} (\d+)', re.MULTILINE)
MANAGED = "app.kubernetes.io/managed-by=dlrm-operator"
ALL_END_WITHIN_S = 900.0
STAGE_RETRIES = {each: {"backoffLimit": 10} for each in ("profiler", "planner")}
"""Blows hit the pods of profilers and planners too, and each counts."""
WORKS = "sleep {seconds} & wait $!"
"""The shell hears of its child's death; as the only process of its container it could not be killed from inside."""
REFUSES = "sleep {seconds} & wait $! || exit 137; echo it is never right >&2; exit 2"
ENDED = ("Succeeded", "Failed")
KINDS = ("works", "works", "works", "refuses", "is-deleted", "rests", "serves")
ATTEMPT_LABEL = "training.neuroshard.dev/attempt"
OF_ATTEMPTS = f"{jobs.ROLE_LABEL} in (worker,server)"
"""Selects the pods of workers and of embedding servers."""
SERVERS_END_WITHIN_S = 120.0
"""After the end of their job, on a busy machine; the operator gives them 30 s."""


@dataclass(kw_only=True)
class Fate:
    """What a job is for, and how it must end."""

    name: str
    stage: str
    is_deleted: bool = False
    has_ended: bool = field(default=False, init=False)


class Chaos:
    """Jobs that come and go, and blows that fall meanwhile; the seed decides all but the timing."""

    def __init__(
        self,
        release: Release,
        namespace: Namespace,
        *,
        tenant: Tenant,
        at_once: int,
        api_away_s: float,
        seed: int,
    ) -> None:
        self._release = release
        self._tenant = tenant
        self._cluster = release.cluster
        self._kubectl = namespace.kubectl
        self._at_once = at_once
        self._api_away_s = api_away_s
        self._random = random.Random(seed)  # noqa: S311 - keeps no secret
        self.fates: list[Fate] = []
        self.told: list[str] = []
        """Every blow that fell."""
        self._broken: tuple[str, float] | None = None
        """A node without a kubelet, and when it comes back."""

    def run(self, seconds: float) -> None:
        """Keep the number of jobs up, and strike, for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            next_blow = time.monotonic() + BLOW_EVERY_S
            self._mend_node()
            self.look()
            while self._unended() < self._at_once:
                self._submit()
            self._strike()
            eventually("the next blow is due", time.monotonic, accept=next_blow.__lt__)

    def end(self) -> None:
        """Undo what lasts, and wait until every job has ended."""
        patiently(partial(self._mend_node, at_once=True))
        for name in self._under_way("rests-"):
            patiently(partial(self._kubectl.patch, jobs.KIND, name, {"spec": {"suspend": False}}))
        eventually("all jobs have ended", lambda: self.look() and self._unended() == 0, within_s=ALL_END_WITHIN_S)
        eventually("no server outlives its job", lambda: not self._living_servers(), within_s=SERVERS_END_WITHIN_S)

    def look(self) -> bool:
        """Collect finished jobs, check that none has pods of two attempts, and return whether anyone answered."""
        try:
            found = {each["metadata"]["name"]: each.get("status", {}) for each in self._kubectl.list(jobs.KIND)}
            workers = self._kubectl.list("pods", selector=OF_ATTEMPTS)
        except ClusterError:
            return False
        for fate in self.fates:
            stage = found.get(fate.name, {}).get("stage")
            fate.has_ended = stage in ENDED or (fate.is_deleted and fate.name not in found)
            assert not fate.has_ended or stage in {fate.stage, None}, f"{fate.name}: {found[fate.name]}"
        assert_one_attempt_lives(workers)
        return True

    def _living_servers(self) -> list[str]:
        pods = self._kubectl.list("pods", selector=f"{jobs.ROLE_LABEL}=server")
        return [pod["metadata"]["name"] for pod in pods if pod["status"].get("phase") in {"Pending", "Running"}]

    def _unended(self) -> int:
        return sum(not fate.has_ended for fate in self.fates)

    def _submit(self) -> None:
        number = len(self.fates)
        kind = KINDS[number % len(KINDS)]
        name = f"{kind}-{number}"
        seconds = self._random.randint(10, 40)
        script = (REFUSES if kind == "refuses" else WORKS).format(seconds=seconds)
        profiler = jobs.SIMULATED if self._random.random() < 0.2 else jobs.BUNDLED
        common: dict[str, Any] = {
            "failurePolicy": {"maxRestarts": 100},
            "podTemplate": {"spec": {"terminationGracePeriodSeconds": 5}},
        }
        if kind == "serves":
            job = self._served(name, script, **common)
        else:
            job = jobs.script_job(name, script, profiler=profiler, experimental=STAGE_RETRIES, **common)
        if self._random.random() < SHIPPED_SHARE:
            job["spec"]["podTemplate"]["spec"].setdefault("containers", []).append(jobs.LOG_SHIPPER)
        patiently(partial(self._kubectl.apply, job))
        self.fates.append(
            Fate(name=name, stage="Failed" if kind == "refuses" else "Succeeded", is_deleted=kind == "is-deleted")
        )

    def _served(self, name: str, script: str, **spec: object) -> Object:
        """Return a job whose workers and server run a script, under a plan that is at hand."""
        trainer = {**TRAINER, "image": PLANNER.tag}
        trainer["resourcesPerNode"] = {"requests": {"cpu": "10m"}, "limits": {"memory": "64Mi"}}
        servers = {"tables": ["users"], "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "10m"}}}
        experimental = {"pipeline": "None", "embeddingServers": servers}
        job = served_job(name, trainer=trainer, experimental=experimental, **spec)
        # Servers need NeuroShard's own trainer, and a pod template may have another command for its container.
        job["spec"]["podTemplate"]["spec"]["containers"] = [{"name": "trainer", "command": ["sh", "-c", script]}]
        made: list[Object] = []
        patiently(lambda: made.append(with_plan(self._kubectl, job)))
        return made[-1]

    def _strike(self) -> None:
        blows: Mapping[Callable[[], str], int] = {
            self._kill_a_process: 6,
            self._delete_a_pod: 5,
            self._kill_the_operator: 4,
            self._rest_or_go_on: 4,
            self._delete_a_job: 3,
            self._kill_a_kubelet: 2,
            self._kill_the_control_plane: 2,
            self._take_the_api_server_away: 1,
            self._break_a_node: 2,
            self._reject_a_pod: 5,
            self._scribble: 4,
            self._wish_ill: 4,
        }
        blow = self._random.choices(list(blows), weights=list(blows.values()))[0]
        try:
            self.told.append(blow())
        except ClusterError as error:  # what was to be struck is gone, or the API server is
            self.told.append(f"missed: {error}".splitlines()[0])

    def _kill_a_process(self) -> str:
        pod = self._any_pod(OF_ATTEMPTS)
        self._kubectl("exec", pod, "--", "sh", "-c", "kill -9 -1")
        return f"process of {pod}"

    def _delete_a_pod(self) -> str:
        pod = self._any_pod(jobs.ROLE_LABEL)
        self._kubectl.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")
        return f"pod {pod}"

    def _any_pod(self, selector: str) -> str:
        running = [pod for pod in self._kubectl.list("pods", selector=selector) if pod["status"]["phase"] == "Running"]
        if not running:
            raise ClusterError("nothing runs")
        name: str = self._random.choice(running)["metadata"]["name"]
        return name

    def _kill_the_operator(self) -> str:
        pod = self._random.choice(names_of(self._release.pods()))
        leads = self._release.kubectl.get("lease", RELEASE)["spec"].get("holderIdentity") == pod
        self._release.kubectl.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")
        return f"the {'leading' if leads else 'other'} operator"

    def _rest_or_go_on(self) -> str:
        name = self._any_job("rests-")
        rests = bool(self._kubectl.get(jobs.KIND, name)["spec"].get("suspend"))
        self._kubectl.patch(jobs.KIND, name, {"spec": {"suspend": not rests}})
        return f"{name} {'goes on' if rests else 'rests'}"

    def _delete_a_job(self) -> str:
        name = self._any_job("is-deleted-")
        self._kubectl.delete(jobs.KIND, name, "--wait=false")
        return f"job {name}"

    def _any_job(self, prefix: str) -> str:
        names = self._under_way(prefix)
        if not names:
            raise ClusterError(f"no job {prefix} is under way")
        return self._random.choice(names)

    def _under_way(self, prefix: str) -> list[str]:
        return [fate.name for fate in self.fates if fate.name.startswith(prefix) and not fate.has_ended]

    def _kill_a_kubelet(self) -> str:
        node = self._whole_node()
        self._cluster.restart("kubelet", node)
        return f"kubelet of {node}"

    def _whole_node(self) -> str:
        broken = self._broken[0] if self._broken else ""
        whole = [each for each in self._cluster.nodes() if each != broken]
        if not whole:
            raise ClusterError("the only node is broken")
        return self._random.choice(whole)

    def _kill_the_control_plane(self) -> str:
        process = self._random.choice(("kube-apiserver", "kube-controller-manager", "kube-scheduler"))
        self._cluster.restart(process)
        return process

    def _take_the_api_server_away(self) -> str:
        self._cluster.stop("kube-apiserver")
        back = time.monotonic() + self._api_away_s
        try:
            eventually("the outage is over", time.monotonic, within_s=2 * self._api_away_s, accept=back.__lt__)
        finally:
            self._cluster.start("kube-apiserver")
        return f"the API server, for {self._api_away_s:.0f} s"

    def _break_a_node(self) -> str:
        if self._broken is not None:
            raise ClusterError("a node is broken already")
        node = self._random.choice(self._cluster.nodes())
        self._broken = (node, time.monotonic() + NODE_BROKEN_S)  # first, for half of the blow may fall
        self._cluster.break_node(node)
        return f"node {node}, for {NODE_BROKEN_S:.0f} s"

    def _reject_a_pod(self) -> str:
        """Stop a kubelet until the scheduler gives it a pod, and write what it would write if it rejected that.

        So its containers never run, as after a reboot or with a device plug-in that restarts.
        """
        node = self._whole_node()
        self._cluster.stop("kubelet", node)
        try:
            pod = eventually(f"{node} gets a pod", partial(self._new_pod_on, node), within_s=REJECTED_WITHIN_S)
            assert pod is not None
            reject(self._kubectl, pod)
        finally:
            self._cluster.start("kubelet", node)
        return f"pod {pod['metadata']['name']} rejected by the kubelet of {node}"

    def _new_pod_on(self, node: str) -> Object | None:
        pods = self._kubectl.list("pods", selector=jobs.ROLE_LABEL)
        new = [pod for pod in pods if pod["spec"].get("nodeName") == node and "containerStatuses" not in pod["status"]]
        return next((pod for pod in new if "deletionTimestamp" not in pod["metadata"]), None)

    def _wish_ill(self) -> str:
        return "; ".join(self._tenant.write() for _ in range(HOSTILE_AT_ONCE))

    def _mend_node(self, *, at_once: bool = False) -> None:
        if self._broken is None or (self._broken[1] > time.monotonic() and not at_once):
            return
        try:
            self._cluster.mend_node(self._broken[0])
        except ClusterError as error:  # the API server is away: the next round tries again
            self.told.append(f"missed: {error}".splitlines()[0])
            if at_once:
                raise
        else:
            self._broken = None

    def _scribble(self) -> str:
        """Write an object that any tenant may write: a report's files, or a ConfigMap that passes for a child of a job.

        The operator reads the first, and watches the second, for it has the labels and the owner of a child.
        """
        text = self._random.choice(SCRIBBLES)
        job = self._any_job("")
        if self._random.random() < 0.5:
            name = f"{job}-report"
            files = dict.fromkeys((STEP_REPORT_FILE, PROGRESS_FILE), text)
            self._kubectl.patch("configmap", name, {"data": files, "binaryData": None})
            return f"report {name}"
        labels = {
            "app.kubernetes.io/managed-by": "dlrm-operator",
            jobs.JOB_LABEL: job,
            jobs.ROLE_LABEL: self._random.choice(("profiler", "planner", "worker")),
            **GARBAGE,
        }
        name = f"garbage-{len(self.told)}"
        found = self._kubectl.get(jobs.KIND, job)
        owner = {"kind": found["kind"], "name": job, "uid": found["metadata"]["uid"], "controller": True}
        owners = [{"apiVersion": found["apiVersion"], **owner}]
        metadata = {"name": name, "labels": labels, "ownerReferences": owners}
        self._kubectl.create(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"plan.json": text}}
        )
        return f"garbage for {job}"


def names_of(objects: Sequence[Object]) -> list[str]:
    """Return the objects' names, and fail where there are none."""
    if not objects:
        raise ClusterError("there is none")
    return jobs.names(objects)


def jobs_of_operator(release: Release) -> Counter[str]:
    """Return the leading operator's number of jobs in each stage, by its metrics."""
    holder = release.leader()["metadata"]["name"]
    page = release.metrics(holder)
    return Counter({stage: int(count) for stage, count in GAUGE.findall(page) if int(count)})


def jobs_of_api(release: Release) -> Counter[str]:
    """Return the number of all namespaces' jobs in each stage, by their status."""
    # Not as JSON: that of hostile jobs is as hard to read here as for the operator.
    stages = '--output=jsonpath={range .items[*]}{.status.stage}{"\\n"}{end}'
    return Counter(release.kubectl("get", jobs.KIND, "--all-namespaces", stages).splitlines())


def objects_of_operator(release: Release) -> Counter[str]:
    """Return the leading operator's number of objects of each kind, by its metrics."""
    page = release.metrics(release.leader()["metadata"]["name"])
    return Counter({kind: int(count) for kind, count in WATCHED_GAUGE.findall(page)})


def objects_of_api(release: Release) -> Counter[str]:
    """Return the number of jobs, and of objects with their children's label, in all namespaces, by kind."""

    def count(kind: str) -> int:
        selector = [] if kind.lower() == jobs.KIND else [f"--selector={MANAGED}"]
        return len(release.kubectl("get", kind.lower(), "--all-namespaces", "--output=name", *selector).split())

    return Counter({kind: count(kind) for kind in WATCHED})


def assert_no_ghosts(release: Release) -> None:
    """Wait until the operator knows what the API server has, jobs by stage and objects by kind, and nothing else."""

    def views() -> tuple[tuple[Counter[str], Counter[str]], tuple[Counter[str], Counter[str]]]:
        known = jobs_of_operator(release), objects_of_operator(release)
        return known, (jobs_of_api(release), objects_of_api(release))

    eventually("operator and API server agree", views, accept=lambda seen: seen[0] == seen[1])


def patiently(call: Callable[[], None]) -> None:
    """Make a call that must be heard, though the API server may be away for a while."""

    def made() -> bool:
        call()
        return True

    eventually("the API server listens", made)


def assert_one_attempt_lives(workers: Sequence[Object]) -> None:
    """Fail if a training job has live pods of two Jobs of a role or two attempts; those being deleted do not count."""
    owners: dict[tuple[str, str], set[str]] = {}
    for pod in workers:
        metadata = pod["metadata"]
        if pod["status"].get("phase") in {"Pending", "Running"} and "deletionTimestamp" not in metadata:
            [owner] = metadata["ownerReferences"]
            labels = metadata["labels"]
            owners.setdefault((labels[jobs.JOB_LABEL], labels[jobs.ROLE_LABEL]), set()).add(owner["name"])
            owners.setdefault((labels[jobs.JOB_LABEL], ""), set()).add(labels[ATTEMPT_LABEL])
    doubled = {job: found for job, found in owners.items() if len(found) > 1}
    assert not doubled, doubled


def left(namespace: Namespace) -> list[str]:
    """Return the remaining objects of all jobs but for the profiles that the namespace keeps."""
    kinds = "jobs,pods,configmaps,services,serviceaccounts,roles,rolebindings"
    found = namespace.kubectl("get", kinds, f"--selector={jobs.JOB_LABEL}", "--output=name")
    return found.split()


@pytest.fixture
def other(operator: Release, namespace: Namespace) -> Iterator[Namespace]:
    """Another namespace, whose tenant wishes the operator ill."""
    with foreign(operator.cluster, f"{namespace.name}-other") as made:
        yield made


@pytest.mark.timeout(3600)
def test_every_job_ends_right_whatever_is_killed(
    operator: Release, namespace: Namespace, other: Namespace, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Jobs that work succeed, jobs that refuse fail, deleted ones are gone, nothing is left of them, and no ghost."""
    operator.install(replicas=2)
    request.addfinalizer(operator.install)
    seconds = float(request.config.getoption("--chaos-seconds"))
    at_once = min(MOST_JOBS, round(seconds / SECONDS_PER_JOB))
    tenant = Tenant(other, tmp_path, seed=0)
    away_s = min(API_AWAY_S, seconds / 4)
    chaos = Chaos(operator, namespace, tenant=tenant, at_once=at_once, api_away_s=away_s, seed=0)
    statuses: dict[str, Object] = {}
    peaks_kib: list[int] = []
    began = time.monotonic()
    try:
        chaos.run(seconds)
        chaos.end()
        statuses = {each["metadata"]["name"]: each["status"] for each in namespace.kubectl.list(jobs.KIND)}
        peaks_kib += [peak_kib_of(pod) for pod in operator.pods()]
    finally:
        story = {
            "jobs": len(chaos.fates),
            "restarts": {name: status.get("restarts", 0) for name, status in statuses.items()},
            "blows": chaos.told,
            "hostile objects": {"taken": tenant.taken, "refused": tenant.refused},
            "peak KiB": peaks_kib,
            "seconds": round(time.monotonic() - began),
        }
        namespace.artifacts.mkdir(parents=True, exist_ok=True)
        (namespace.artifacts / "chaos.json").write_text(json.dumps(story, indent=1))
    logs = operator.logs()
    assert_no_ghosts(operator)
    namespace.kubectl("delete", jobs.KIND, "--all", "--wait=false")
    namespace.kubectl("delete", "configmap", f"--selector={','.join('='.join(label) for label in GARBAGE.items())}")
    eventually("nothing is left", lambda: left(namespace), accept=lambda found: not found)
    assert_no_ghosts(operator)

    assert "Traceback" not in logs
    assert max(peaks_kib) < MEMORY_LIMIT_KIB
    assert all(
        status["lastFailure"]["exitCode"] == 2 for name, status in statuses.items() if name.startswith("refuses")
    )
