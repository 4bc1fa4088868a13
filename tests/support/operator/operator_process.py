"""The operator against the cluster in memory of `operator_world`: one process of it, and the story of one job."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Self

from neuroshard_decisions import names
from neuroshard_decisions.context import earliest
from neuroshard_operator.cluster.caches import Caches
from neuroshard_operator.cluster.cluster import Cluster, StaleError
from neuroshard_operator.cluster.resync import Resync, Resynced
from neuroshard_operator.cluster.watched import JobKey
from neuroshard_operator.controller import decided, gathered
from neuroshard_operator.pace import StatusPace
from neuroshard_operator.settings import Settings
from support.operator.operator_world import NAMESPACE, START, World

SETTINGS = Settings(profiler_image="profiler", planner_image="planner", trainer_image="trainer")
JOB = "job"
KEY = (NAMESPACE, JOB)
ONE_NODE = {"numNodes": 1}
TWO_NODES = {"numNodes": 2}


class OperatorProcess:
    """The operator's code, without its queue: a pass is a look, a decision and its writes."""

    def __init__(self, world: World, settings: Settings = SETTINGS) -> None:
        """Start with caches as they are."""
        self._world = world
        self._settings = settings
        caches = Caches(world.watches.brought, clock=self._seconds)
        self._cluster = Cluster(world, caches, settings, clock=self._seconds)
        self._lists = Resync(world, caches.watched, ())
        self._pace = StatusPace(clock=self._seconds)
        self.requeue_after_s: float | None = None

    def _seconds(self) -> float:
        return (self._world.now - START).total_seconds()

    async def resync(self) -> Resynced:
        """List everything, as the controller does every some minutes."""
        return await self._lists.run()

    async def look(self, key: JobKey) -> bool:
        """Look once at a job; return whether nothing more is to be done now."""
        world = self._world
        observed = self._cluster.observe(key)
        if observed is None:
            return True
        before = world.writes
        try:
            context = await gathered(self._cluster, observed, now=world.now, settings=self._settings)
            decision = self._pace.paced(key, context.status, decided(context, self._settings))
            due_s = await self._cluster.apply(context.observed, decision)
        except StaleError:
            return False
        if decision.status is not None:
            self._pace.wrote(key)
        self.requeue_after_s = earliest([due_s, decision.requeue_after_s])
        return due_s != 0 and world.writes == before


class Story:
    """A world with one job, in the words of what happens."""

    def __init__(self, settings: Settings = SETTINGS, **spec: Any) -> None:
        """Submit the job."""
        self.world = World()
        self.operator = OperatorProcess(self.world, settings)
        self.world.submit(JOB, **{"trainer": TWO_NODES, **spec})
        self.settle()

    @property
    def status(self) -> dict[str, Any]:
        """The job's status."""
        return self.world.status(JOB)

    @property
    def seen(self) -> tuple[str, str]:
        """Stage and reason, as a user sees them."""
        return self.status["stage"], self.status["reason"]

    def condition(self, kind: str) -> Mapping[str, Any]:
        """Return one condition."""
        return next(each for each in self.status["conditions"] if each["type"] == kind)

    @property
    def warnings(self) -> dict[str, str]:
        """The messages of the job's warnings by their reasons."""
        return {each["reason"]: each["message"] for each in self.status.get("warnings", [])}

    def settle(self) -> None:
        """Let the operator look until it wants nothing more."""
        for _ in range(20):
            self.world.run_job_controller()
            self.world.watches.catch_up()
            if asyncio.run(self.operator.look(KEY)):
                return
        raise AssertionError("the operator does not come to rest")

    def look(self) -> None:
        """Let the operator reconcile the job once, while the Job controller rests."""
        asyncio.run(self.operator.look(KEY))

    def later(self, seconds: float) -> None:
        """Let time pass, and the operator look."""
        self.world.now += timedelta(seconds=seconds)
        self.settle()

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of a role that have not ended."""
        found = self.world.of_kind("Pod", role)
        return [pod for pod in found if pod["status"]["phase"] not in {"Succeeded", "Failed"}]

    def do(self, role: str) -> Self:
        """Let the pods of a stage do its work: one, or profilers on two nodes."""
        for pod in self.pods(role):
            self.world.work(pod)
        self.settle()
        return self

    def planned(self) -> Self:
        """Go on until there is a plan."""
        return self.do(names.PROFILER).do(names.PLANNER)

    def running(self) -> Self:
        """Go on until all workers are ready."""
        self.planned()
        self.start_workers()
        return self

    def start_workers(self) -> None:
        """Let all workers be ready."""
        for pod in self.pods(names.WORKER):
            self.world.start_pod(pod)
        self.settle()

    def fail(self, role: str, code: int, **how: str) -> None:
        """Let one pod of a role fail, and the others of its Job go."""
        self.world.end_pod(self.pods(role)[0], code, **how)
        self.settle()
        self.bury()

    def time_out(self, role: str) -> None:
        """Let the newest Job of a role reach its deadline."""
        self.world.expire(self.world.of_kind("Job", role)[-1])
        self.settle()

    def bury(self) -> None:
        """Let every pod be gone that was asked to go."""
        for pod in self.world.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                self.world.finish_deletion(pod)
        self.settle()

    def lose(self, role: str) -> dict[str, Any]:
        """Delete the one ConfigMap of a role, by another's hand; return what it was."""
        [lost] = self.world.of_kind("ConfigMap", role)
        self.world.remove("ConfigMap", lost["metadata"]["name"])
        return lost

    def jobs(self, role: str) -> list[str]:
        """Return the names of the Jobs of a role."""
        return [job["metadata"]["name"] for job in self.world.of_kind("Job", role)]

    def annotate(self, key: str, value: str) -> None:
        """Annotate the job."""
        job = self.world.training_job(JOB)
        job["metadata"].setdefault("annotations", {})[key] = value
        self.world.touch(job)
        self.settle()

    def reasons(self) -> list[str]:
        """Return the reasons of the events."""
        return [event["reason"] for event in self.world.events]
