"""The story of a job with embedding servers: two trainers on one node, and two servers."""

from typing import Any, Self

from neuroshard_decisions import names
from neuroshard_operator.settings import Settings
from support import builders
from support.operator.operator_process import JOB, SETTINGS, Story

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
JOINING = SETTINGS.model_copy(update={"job_sets": True})
"""Settings with which a JobSet joins workers and servers of a queued job."""
CPUS = builders.hardware(device=builders.device_type(name="cpu-test"), devices_per_node=2)


class ServerStory(Story):
    """A world with one job with embedding servers."""

    def __init__(self, settings: Settings = SETTINGS, **spec: Any) -> None:
        """Submit the job."""
        super().__init__(settings, **{**SERVED, **spec})
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


class QueuedServerStory(ServerStory):
    """The same of a job that Kueue queues, in a cluster with JobSets."""

    def __init__(self, **spec: Any) -> None:
        """Submit the job with the label of a queue."""
        super().__init__(JOINING, suspend=True, **spec)
        self.world.label(JOB, {names.QUEUE_LABEL: "queue"})
        self.world.change_spec(JOB, suspend=False)
        self.settle()

    def do(self, role: str) -> Self:
        """Let Kueue admit what waits, and the pods of a stage do its work."""
        self.admit()
        return super().do(role)

    def running(self) -> Self:
        """Go on until all workers and servers are ready."""
        self.planned()
        self.admit()
        self.start_workers()
        return self

    def admit(self) -> None:
        """Let Kueue admit what waits."""
        self.world.admit()
        self.settle()

    def preempt(self) -> None:
        """Let Kueue suspend the JobSet that is not finished, and the processes of its pods stop in order."""
        for job_set in self.world.of_kind(names.JOB_SET):
            job_set["spec"]["suspend"] = True
            self.world.touch(job_set)
        for role in names.OF_AN_ATTEMPT:
            for pod in self.pods(role):
                self.world.end_pod(pod, 143)
        self.settle()

    def job_sets(self) -> list[str]:
        """Return the names of the JobSets."""
        return [each["metadata"]["name"] for each in self.world.of_kind(names.JOB_SET)]
