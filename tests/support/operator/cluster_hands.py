"""Hands in place of kubelets, profiler, planner and trainer: they say of pods what those would say."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_api.documents.config_map import contents_of, pack_files, unpack_files
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.progress import TrainingProgress
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.step_report import StepReport
from neuroshard_cluster.kubectl import Kubectl, Object
from neuroshard_cluster.waiting import eventually
from neuroshard_costs.bundle import bundled_bundle, bundled_root
from neuroshard_planner.pipeline import plan
from support import builders

DEVICE = "h100-80gb"
ROLE = "training.neuroshard.dev/role"


class Hands:
    """What happens in one namespace, in the test's words."""

    def __init__(self, kubectl: Kubectl) -> None:
        """Act in the client's namespace."""
        self.kubectl = kubectl

    def job(self, name: str) -> Object:
        """Return a training job."""
        return self.kubectl.get("dlrmjob", name)

    def status(self, name: str) -> dict[str, Any]:
        """Return a training job's status."""
        found: dict[str, Any] = self.job(name).get("status", {})
        return found

    def wait_for(self, name: str, stage: str, *, reason: str = "") -> dict[str, Any]:
        """Wait until a job shows a stage (and a reason), and return its status."""

        def is_there(status: Mapping[str, Any]) -> bool:
            return status.get("stage") == stage and reason in {"", status.get("reason")}

        return eventually(f"{name} is {stage} {reason}", lambda: self.status(name), accept=is_there)

    def pods(self, role: str, count: int = 1) -> Sequence[Object]:
        """Wait for that many pods of a role that have not ended, and return them by name."""

        def living() -> list[Object]:
            pods = self.kubectl.list("pods", selector=f"{ROLE}={role}")
            return [pod for pod in pods if pod["status"].get("phase") not in {"Succeeded", "Failed"}]

        return eventually(f"{count} {role} pods", living, accept=lambda pods: len(pods) == count)

    def bind(self, pod: Object, node: str) -> None:
        """Put a pod on a node, as the scheduler does."""
        name, namespace = pod["metadata"]["name"], self.kubectl.namespace
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
        self.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(binding))

    def say(self, pod: Object, **status: object) -> None:
        """Write a pod's status, as its kubelet does."""
        self.kubectl.patch("pod", pod["metadata"]["name"], {"status": status}, subresource="status")

    def start(self, *pods: Object) -> None:
        """Let pods run and be ready."""
        for pod in pods:
            name = pod["spec"]["containers"][0]["name"]
            states = [_container(name, {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, ready=True)]
            ready = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady", "PodScheduled")]
            self.say(pod, phase="Running", conditions=ready, containerStatuses=states)

    def end(self, *pods: Object, code: int = 0, message: str = "", disruption: str = "") -> None:
        """Let pods end with an exit code and the last words of their log."""
        for pod in pods:
            name = pod["spec"]["containers"][0]["name"]
            ended = {
                "exitCode": code,
                "reason": "Error" if code else "Completed",
                "message": message,
                "startedAt": "2026-01-01T00:00:00Z",
                "finishedAt": "2026-01-01T00:00:10Z",
            }
            conditions = [{"type": "Ready", "status": "False"}]
            if disruption:
                conditions.append({"type": "DisruptionTarget", "status": "True", "reason": disruption})
            states = [_container(name, {"terminated": ended}, ready=False)]
            self.say(pod, phase="Failed" if code else "Succeeded", conditions=conditions, containerStatuses=states)

    def bury(self) -> None:
        """Let every pod that was asked to go be gone, as a kubelet does after the grace period."""
        for pod in self.kubectl.list("pods"):
            if "deletionTimestamp" in pod["metadata"]:
                self.kubectl(
                    "delete", "pod", pod["metadata"]["name"], "--force", "--grace-period=0", "--ignore-not-found"
                )

    def publish(self, config_map: str, files: Mapping[str, bytes]) -> None:
        """Fill a result ConfigMap, as `neuroshard publish` does."""
        packed = pack_files(files)
        filled = {"data": dict(packed.data), "binaryData": dict(packed.binary_data)}
        self.kubectl.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": config_map}, **filled})

    def profile(self, job: str) -> None:
        """Do the work of profilers on two nodes: publish the bundled cost models as the result, and end the pods."""
        pod, peer = self.pods("profiler", 2)
        self.start(pod, peer)
        result = _publishes_to(pod)
        folder = bundled_root() / DEVICE
        files = {name: (folder / name).read_bytes() for name in ("manifest.json", "weights.safetensors")}
        hardware = hardware_of(job)
        self.publish(result, {**files, "hardware.json": hardware.to_json().encode()})
        self.end(pod, peer)

    def plan(self) -> Plan:
        """Do the planner's work with the real planner, and return the plan."""
        [pod] = self.pods("planner")
        self.start(pod)
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        asked = self.kubectl.get("configmap", volumes["request"]["configMap"]["name"])
        request = PlanRequest.from_json(unpack_files(contents_of(asked))["request.json"])
        found = plan(request, bundle=bundled_bundle(DEVICE))
        self.publish(_publishes_to(pod), {"plan.json": found.to_json().encode()})
        self.end(pod)
        return found

    def report(self, job: str, report: StepReport, progress: TrainingProgress | None = None) -> None:
        """Publish what rank 0 reports."""
        files = {"step-report.json": report.to_json().encode()}
        if progress is not None:
            files["progress.json"] = progress.to_json().encode()
        self.publish(f"{job}-report", files)

    def plan_of(self, job: str) -> bytes:
        """Return the plan document that the workers of a job are given."""
        name = self.status(job)["plan"]["configMapRef"]["name"]
        files = unpack_files(contents_of(self.kubectl.get("configmap", name)))
        return files["plan.json"]


def hardware_of(job: str) -> Hardware:
    """Return a profiler's document of its device."""
    return builders.hardware(environment={"job": job})


def _publishes_to(pod: Object) -> str:
    command: list[str] = pod["spec"]["containers"][0]["command"]
    return command[command.index("--config-map") + 1]


def _container(name: str, state: Mapping[str, object], *, ready: bool) -> dict[str, object]:
    return {"name": name, "image": "test", "imageID": "", "ready": ready, "restartCount": 0, "state": state}
