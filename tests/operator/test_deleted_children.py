"""Whatever somebody deletes, and whenever: a job that is profiled or planned comes to run."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.job.training_job import KIND
from neuroshard_decisions import names
from support.depth import generated
from support.operator.operator_process import JOB, KEY, TWO_NODES, OperatorProcess
from support.operator.operator_world import World


class Life:
    """A job's life in small steps, each of which may be late."""

    def __init__(self) -> None:
        """Submit the job."""
        self.world = World()
        self.operator = OperatorProcess(self.world)
        self.world.submit(JOB, trainer=TWO_NODES)

    def watches(self) -> None:
        """The watches bring what happened."""
        self.world.watches.catch_up()

    def look(self) -> None:
        """The operator looks."""
        asyncio.run(self.operator.look(KEY))

    def controllers(self) -> None:
        """The Job controller does its work."""
        self.world.run_job_controller()

    def kubelets(self) -> None:
        """Pods start, and those that were asked to go are gone."""
        for pod in self.world.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                self.world.finish_deletion(pod)
            elif pod["status"]["phase"] == "Pending":
                self.world.start_pod(pod)

    def work(self) -> None:
        """Profiler and planner come to their end; nobody starts and publishes within a second."""
        self.world.now += timedelta(seconds=1)
        for pod in self.world.of_kind("Pod"):
            if pod["status"]["phase"] == "Running" and pod["metadata"]["labels"][names.ROLE_LABEL] != names.WORKER:
                self.world.work(pod)

    def restart(self) -> None:
        """Another operator takes over; it knows what the watches have brought."""
        self.operator = OperatorProcess(self.world)

    def comes_to_run(self) -> bool:
        """Return whether the job runs in the end, when nobody meddles any more."""
        for _ in range(20):
            self.world.now += timedelta(seconds=12)  # longer than a write is believed without a watch
            for step in STAGE:
                step(self)
            if self.world.status(JOB)["stage"] == "Running":
                return True
        return False


STAGE: Sequence[Callable[[Life], None]] = (
    Life.watches, Life.look, Life.watches, Life.look,
    Life.controllers, Life.watches, Life.look,
    Life.kubelets, Life.watches, Life.look,
    Life.work, Life.watches, Life.look,
    Life.controllers, Life.watches, Life.look,
)  # fmt: skip
"""About one stage of a job."""


@generated(30, 150)
@given(data=st.data(), moment=st.integers(0, 2 * len(STAGE)), restarts=st.booleans(), is_seen=st.booleans())
def test_a_job_survives_the_loss_of_any_children_at_any_moment(
    data: st.DataObject, moment: int, *, restarts: bool, is_seen: bool
) -> None:
    """Jobs, pods, accounts, inputs, results, profile and plan; another operator may take over, watches may be late."""
    life = Life()
    for step in (*STAGE, *STAGE)[:moment]:
        step(life)
    children = [place for place in sorted(life.world.objects) if place[0] != KIND]
    for place in data.draw(st.sets(st.sampled_from(children)) if children else st.just(set()), label="deleted"):
        if place in life.world.objects:  # and has not gone with its owner
            life.world.remove(*place)
    if restarts:
        life.restart()
    if is_seen:
        life.watches()
    life.look()

    assert life.comes_to_run(), life.world.status(JOB)["message"]
