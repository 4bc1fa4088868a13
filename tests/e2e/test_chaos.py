"""Many small jobs while processes, pods, nodes' agents and the control plane are killed at random."""

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pytest
from e2e import jobs
from e2e.operator_release import Release
from neuroshard_cluster.errors import ClusterError
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]

MOST_JOBS = 30
SECONDS_PER_JOB = 15
"""A short run has fewer jobs at once, so that it ends in about twice its time on two cores."""
BLOW_EVERY_S = 8.0
ALL_END_WITHIN_S = 900.0
WORKS = "sleep {seconds} & wait $!"
"""The shell hears of its child's death; as the only process of its container it could not be killed from inside."""
REFUSES = "sleep {seconds} & wait $! || exit 137; echo it is never right >&2; exit 2"
ENDED = ("Succeeded", "Failed")


@dataclass(kw_only=True)
class Fate:
    """What a job is for, and how it must end."""

    name: str
    stage: str
    is_deleted: bool = False
    has_ended: bool = field(default=False, init=False)


class Chaos:
    """Jobs that come and go, and blows that fall meanwhile; the seed decides all but the timing."""

    def __init__(self, release: Release, namespace: Namespace, *, at_once: int, seed: int) -> None:
        self._release = release
        self._cluster = release.cluster
        self._kubectl = namespace.kubectl
        self._at_once = at_once
        self._random = random.Random(seed)  # noqa: S311 - keeps no secret
        self.fates: list[Fate] = []
        self.told: list[str] = []
        """Every blow that fell."""

    def run(self, seconds: float) -> None:
        """Keep the number of jobs up, and strike, for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            next_blow = time.monotonic() + BLOW_EVERY_S
            self.look()
            while self._unended() < self._at_once:
                self._submit()
            self._strike()
            eventually("the next blow is due", time.monotonic, within_s=60, accept=next_blow.__lt__)

    def end(self) -> None:
        """Wait until every job has ended."""
        eventually("all jobs have ended", lambda: self.look() and self._unended() == 0, within_s=ALL_END_WITHIN_S)

    def look(self) -> bool:
        """See which jobs have ended, and that no job has workers of two attempts; return whether anyone answered."""
        try:
            found = {each["metadata"]["name"]: each.get("status", {}) for each in self._kubectl.list(jobs.KIND)}
            workers = self._kubectl.list("pods", selector=f"{jobs.ROLE_LABEL}=worker")
        except ClusterError:
            return False
        for fate in self.fates:
            stage = found.get(fate.name, {}).get("stage")
            fate.has_ended = stage in ENDED or (fate.is_deleted and fate.name not in found)
            assert not fate.has_ended or stage in {fate.stage, None}, f"{fate.name}: {found[fate.name]}"
        assert_one_attempt_lives(workers)
        return True

    def _unended(self) -> int:
        return sum(not fate.has_ended for fate in self.fates)

    def _submit(self) -> None:
        number = len(self.fates)
        kind = ("works", "works", "works", "refuses", "is-deleted", "rests")[number % 6]
        name = f"{kind}-{number}"
        seconds = self._random.randint(10, 40)
        script = (REFUSES if kind == "refuses" else WORKS).format(seconds=seconds)
        profiler = jobs.SIMULATED if self._random.random() < 0.2 else jobs.BUNDLED
        policy = {"maxRestarts": 100}
        job = jobs.script_job(name, script, profiler=profiler, failurePolicy=policy)
        patiently(partial(self._kubectl.apply, job))
        self.fates.append(
            Fate(name=name, stage="Failed" if kind == "refuses" else "Succeeded", is_deleted=kind == "is-deleted")
        )

    def _strike(self) -> None:
        blows: Mapping[Callable[[], str], int] = {
            self._kill_a_process: 6,
            self._delete_a_pod: 5,
            self._kill_the_operator: 4,
            self._rest_or_go_on: 4,
            self._delete_a_job: 3,
            self._kill_a_kubelet: 2,
            self._kill_the_control_plane: 2,
        }
        blow = self._random.choices(list(blows), weights=list(blows.values()))[0]
        try:
            self.told.append(blow())
        except ClusterError as error:  # what was to be struck is gone, or the API server is
            self.told.append(f"missed: {error}".splitlines()[0])

    def _kill_a_process(self) -> str:
        pod = self._any_pod("worker")
        self._kubectl("exec", pod, "--", "sh", "-c", "kill -9 -1")
        return f"process of {pod}"

    def _delete_a_pod(self) -> str:
        pod = self._any_pod("")
        self._kubectl.delete("pod", pod, "--grace-period=0", "--force", "--wait=false")
        return f"pod {pod}"

    def _any_pod(self, role: str) -> str:
        selector = f"{jobs.ROLE_LABEL}={role}" if role else jobs.ROLE_LABEL
        running = [pod for pod in self._kubectl.list("pods", selector=selector) if pod["status"]["phase"] == "Running"]
        if not running:
            raise ClusterError("nothing runs")
        name: str = self._random.choice(running)["metadata"]["name"]
        return name

    def _kill_the_operator(self) -> str:
        self._release.kill()
        return "the operator"

    def _rest_or_go_on(self) -> str:
        name = self._any_job("rests-")
        rests = bool(self._kubectl.get(jobs.KIND, name)["spec"].get("suspend"))
        self._kubectl.patch(jobs.KIND, name, {"spec": {"suspend": not rests}})
        return f"{name} {'goes on' if rests else 'rests'}"

    def wake_all(self) -> None:
        """Let every job go on that rests."""
        for name in self._under_way("rests-"):
            patiently(partial(self._kubectl.patch, jobs.KIND, name, {"spec": {"suspend": False}}))

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
        node = self._random.choice(self._cluster.nodes())
        self._cluster.restart("kubelet", node)
        return f"kubelet of {node}"

    def _kill_the_control_plane(self) -> str:
        process = self._random.choice(("kube-apiserver", "kube-controller-manager", "kube-scheduler"))
        self._cluster.restart(process)
        return process


def patiently(call: Callable[[], None]) -> None:
    """Make a call that must be heard, though the API server may be away for a while."""

    def made() -> bool:
        call()
        return True

    eventually("the API server listens", made, within_s=120)


def assert_one_attempt_lives(workers: Sequence[Object]) -> None:
    """Fail if a training job has live worker pods of two Jobs."""
    owners: dict[str, set[str]] = {}
    for pod in workers:
        metadata = pod["metadata"]
        if pod["status"].get("phase") in {"Pending", "Running"} and "deletionTimestamp" not in metadata:
            [owner] = metadata["ownerReferences"]
            owners.setdefault(metadata["labels"][jobs.JOB_LABEL], set()).add(owner["name"])
    doubled = {job: found for job, found in owners.items() if len(found) > 1}
    assert not doubled, doubled


def left(namespace: Namespace) -> list[str]:
    """Return what is left of all jobs but for the profiles that the namespace keeps."""
    kinds = "jobs,pods,configmaps,services,serviceaccounts,roles,rolebindings"
    found = namespace.kubectl("get", kinds, f"--selector={jobs.JOB_LABEL}", "--output=name")
    return found.split()


@pytest.mark.timeout(3600)
def test_every_job_ends_right_whatever_is_killed(
    operator: Release, namespace: Namespace, pytestconfig: pytest.Config
) -> None:
    """Jobs that work succeed, jobs that refuse fail, deleted ones are gone, and nothing is left of any of them."""
    seconds = float(pytestconfig.getoption("--chaos-seconds"))
    at_once = min(MOST_JOBS, round(seconds / SECONDS_PER_JOB))
    chaos = Chaos(operator, namespace, at_once=at_once, seed=0)
    chaos.run(seconds)
    chaos.wake_all()
    chaos.end()
    statuses = {each["metadata"]["name"]: each["status"] for each in namespace.kubectl.list(jobs.KIND)}
    logs = operator.kubectl("logs", "--selector=app.kubernetes.io/instance=neuroshard-operator", "--tail=-1")
    namespace.kubectl("delete", jobs.KIND, "--all", "--wait=false")
    eventually("nothing is left", lambda: left(namespace), within_s=120, accept=lambda found: not found)

    story = {
        "jobs": len(chaos.fates),
        "restarts": sum(status.get("restarts", 0) for status in statuses.values()),
        "blows": chaos.told,
    }
    namespace.artifacts.mkdir(parents=True, exist_ok=True)
    (namespace.artifacts / "chaos.json").write_text(json.dumps(story, indent=1))
    assert "Traceback" not in logs
    assert all(
        status["lastFailure"]["exitCode"] == 2 for name, status in statuses.items() if name.startswith("refuses")
    )
