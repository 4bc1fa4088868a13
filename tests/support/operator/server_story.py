"""The story of a job with embedding servers: two trainers on one node, and two servers."""

from typing import Any

from neuroshard_decisions import names
from support import builders
from support.operator.operator_process import SETTINGS, Story

SERVERS: dict[str, Any] = {
    "replicas": 2,
    "procsPerReplica": 3,
    "resources": {"limits": {"memory": "8Gi", "cpu": 4}},
    "tables": ["user"],
}
SERVED: dict[str, Any] = {
    "trainer": {"numNodes": 1, "numProcPerNode": 2},
    "model": {**builders.job_data()["spec"]["model"], "embeddingOptimizer": "SGD"},
    "experimental": {"pipeline": "None", "embeddingServers": SERVERS},
}
CPUS = builders.hardware(device=builders.device_type(name="cpu-test"), devices_per_node=2)


class ServerStory(Story):
    """A world with one job with embedding servers."""

    def __init__(self, **spec: Any) -> None:
        """Submit the job."""
        super().__init__(SETTINGS, **{**SERVED, **spec})
        self.world.hardware = CPUS

    def start_workers(self) -> None:
        """Let all workers and servers be ready."""
        for pod in [*self.pods(names.WORKER), *self.pods(names.SERVER)]:
            self.world.start_pod(pod)
        self.settle()

    def stop(self, role: str, code: int) -> None:
        """Let all pods of a role end."""
        for pod in self.pods(role):
            self.world.end_pod(pod, code)
        self.settle()
