"""The operator on a test cluster: installed from the chart with the images of this checkout."""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neuroshard_cluster.addons import helm
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.commands import run
from neuroshard_cluster.images import OPERATOR, PLANNER
from neuroshard_cluster.kubectl import Kubectl, Object
from neuroshard_cluster.waiting import eventually

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "neuroshard-operator"
RELEASE = "neuroshard-operator"
NAMESPACE = "neuroshard-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
READY_WITHIN_S = 600
VALUES: Mapping[str, Any] = {
    "images": {"registry": OPERATOR.tag.rsplit("/", 1)[0], "tag": OPERATOR.tag.rsplit(":", 1)[1]},
    # Two cores carry three nodes here; a search of four tables needs little.
    "plannerResources": {"cpu": "100m", "memory": "512Mi"},
    "resyncSeconds": 10,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """An installed operator."""

    cluster: Cluster
    kubectl: Kubectl

    def helm(self, *words: str, values: Mapping[str, Any] | None = None) -> str:
        """Run helm on the cluster, in the operator's namespace."""
        chosen = ["--values=-"] if values is not None else []
        argv = [helm(), *words, f"--namespace={NAMESPACE}", *chosen]
        return run(
            argv,
            stdin=json.dumps(values) if values is not None else None,
            env=self.kubectl.environment,
            timeout_s=READY_WITHIN_S + 60,
        )

    def install(self, chart: Path = CHART, **values: Any) -> None:
        """Install or upgrade, and wait until it is ready."""
        words = ("upgrade", "--install", RELEASE, str(chart), "--create-namespace")
        self.helm(*words, "--wait", f"--timeout={READY_WITHIN_S}s", values={**VALUES, **values})
        self.await_rollout()  # helm waits for the new pods, and not for the end of the old ones

    def await_rollout(self) -> None:
        """Wait until the operator has the pods that were asked for, all of them ready, and no others."""
        self.kubectl("rollout", "status", f"deployment/{RELEASE}", f"--timeout={READY_WITHIN_S}s")

    def pods(self) -> Sequence[Object]:
        """Return the operator's pods that are not going."""
        return [pod for pod in self._all_pods() if "deletionTimestamp" not in pod["metadata"]]

    def _all_pods(self) -> Sequence[Object]:
        return self.kubectl.list("pods", selector=f"app.kubernetes.io/instance={RELEASE},pod-template-hash")

    def restarts(self) -> dict[str, int]:
        """Return the number of restarts of the operator's containers, by pod."""
        return {
            pod["metadata"]["name"]: sum(each["restartCount"] for each in pod["status"].get("containerStatuses", []))
            for pod in self.pods()
        }

    def leader(self) -> Object:
        """Return the pod that works: the holder of the Lease, or the only one, which needs none."""
        self.await_rollout()

        def leads() -> Sequence[Object]:
            pods = self.pods()
            if self.kubectl.get("deployment", RELEASE)["spec"]["replicas"] == 1:
                return pods if len(pods) == 1 else []
            holder = self.kubectl.get("lease", RELEASE)["spec"].get("holderIdentity")
            return [pod for pod in pods if pod["metadata"]["name"] == holder]

        [leader] = eventually("a pod of the operator leads", leads, within_s=READY_WITHIN_S)
        return leader

    def kill(self) -> None:
        """Kill the operator's process as if its node lost power: no farewell, no grace. It comes back by itself."""
        for pod in self.pods():
            self.kubectl.delete("pod", pod["metadata"]["name"], "--grace-period=0", "--force", "--wait=false")

    def scale(self, replicas: int) -> None:
        """Have that many replicas, and wait until they are ready or gone."""
        self.kubectl("scale", f"deployment/{RELEASE}", f"--replicas={replicas}")
        if replicas:
            self.await_rollout()
        else:
            eventually("the operator is gone", lambda: not self._all_pods())

    def logs(self) -> str:
        """Return all that the operator's pods wrote; a kubelet that has just come back knows none of its pods yet."""
        words = ("logs", f"--selector=app.kubernetes.io/instance={RELEASE}", "--tail=-1")
        return eventually("the operator's logs can be read", lambda: self.kubectl(*words), accept=lambda _: True)

    def metrics(self, pod: str) -> str:
        """Return the metrics of one of the operator's pods, in Prometheus' text format."""
        return self.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8080/proxy/metrics")

    def calls(self, *users: str) -> Iterator[Mapping[str, Any]]:
        """Yield these users' calls in the audit log."""
        with self.cluster.audit_log.open() as lines:
            for line in lines:
                if not line.endswith("\n"):  # it is being written
                    return
                call = json.loads(line)
                if call["user"].get("username", "") in users or not users:
                    yield call


def installed(cluster: Cluster) -> Release:
    """Return the operator, installed again with the images of this checkout.

    Those with PyTorch are large, and are taken as they were when the cluster came up.
    """
    cluster.load_images([cluster.build_image(image, say=print) for image in (OPERATOR, PLANNER)])
    release = Release(cluster=cluster, kubectl=cluster.kubectl.in_namespace(NAMESPACE))
    release.install(podAnnotations={"neuroshard.dev/tested-at": str(int(time.time()))})
    return release


def process_of(pod: Object) -> int:
    """Return the host's pid of the operator in a pod."""
    uid = pod["metadata"]["uid"]
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            in_pod = {uid, uid.replace("-", "_")}
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdecimal() else []
            if b"neuroshard_operator" in words and any(each in (folder / "cgroup").read_text() for each in in_pod):
                return int(folder.name)
    raise AssertionError(f"pod {pod['metadata']['name']} has no process of the operator on this machine")
