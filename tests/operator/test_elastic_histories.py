"""What holds of an elastic job in every history of nodes and quota that come and go, and of an operator that dies."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_decisions import names
from support.depth import generated
from support.operator.elastic_story import nodes
from support.operator.operator_process import JOB, KEY, OperatorProcess, Story
from support.operator.operator_world import CrashError, is_finished
from support.operator.replanning_story import VOLUME, report

LEAST, MOST = 2, 4
SIZES = {8: {2, 4}, 12: {2, 3, 4}}
"""By samples per device, the numbers of nodes within the bounds that divide those of a step."""

Happening = tuple[str, int]
HAPPENINGS = st.one_of(
    st.tuples(st.just("nodes"), st.integers(0, 5)),
    st.tuples(st.just("drain"), st.integers(0, 5)),
    st.tuples(st.just("other pods"), st.integers(1, 4)),
    st.tuples(st.just("operator dies"), st.integers(1, 6)),
    st.tuples(st.just("time"), st.sampled_from([5, 130, 700])),
    *(st.just((name, 0)) for name in ("all goes well", "all goes well", "all goes well", "train", "train", "start")),
    st.tuples(st.just("quota"), st.integers(0, 5)),
    *(st.just((name, 0)) for name in ("preempt", "work", "gone", "fail", "no plan", "suspend", "resume", "delete")),
)


class History:
    """One job, and what happens to it."""

    def __init__(self, count: int, quota: int | None = None, *, batch_size: int = 12) -> None:
        """Submit the job where that many nodes are open; with a quota it is in a queue."""
        self.sizes = SIZES[batch_size]
        self.story = Story(
            suspend=True,
            trainer={"numNodes": MOST, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}},
            experimental={"elastic": {"minNodes": LEAST}},
            failurePolicy={"maxRestarts": 100},
            **VOLUME,
        )
        self.world = self.story.world
        self.world.training_job(JOB)["spec"]["model"]["batchSizePerDevice"] = batch_size
        self.world.nodes, self.world.quota = nodes(count), quota
        if quota is not None:
            self.world.label(JOB, {names.QUEUE_LABEL: "queue"})
        self.world.change_spec(JOB, suspend=False)
        self.settle()
        self._all_goes_well(0)

    def happen(self, what: str, amount: int) -> None:
        """Let something happen, and the operator see it."""
        getattr(self, f"_{what.replace(' ', '_')}")(amount)
        self.settle()

    def _nodes(self, count: int) -> None:
        self.world.nodes = nodes(count)

    def _quota(self, count: int) -> None:
        if self.world.quota is not None:
            self.world.quota = count

    def _preempt(self, _: int) -> None:
        """Let Kueue take the quota of the workers back."""
        for job in self.world.of_kind("Job", names.WORKER):
            is_admitted = self.world.quota is not None and not job["spec"]["suspend"] and not is_finished(job)
            if is_admitted and "deletionTimestamp" not in job["metadata"]:
                self.world.preempt(job)

    def _drain(self, count: int) -> None:
        for pod in self.running[:1]:
            self.world.nodes = nodes(count)
            self.world.end_pod(pod, ExitCode.STOPPED, disruption="EvictionByEvictionAPI")

    def _other_pods(self, count: int) -> None:
        """Let other pods have the nodes of workers that do not run yet, for longer than patience lasts."""
        for pod in [each for each in self.story.pods(names.WORKER) if each["status"]["phase"] == "Pending"][:count]:
            pod["spec"]["nodeName"] = ""
            self.world.touch(pod)
        self._time(130)

    def _operator_dies(self, after: int) -> None:
        self.world.crash_after = after

    def _time(self, seconds: int) -> None:
        self.world.now += timedelta(seconds=seconds)

    def _start(self, _: int) -> None:
        for pod in self.story.pods(names.WORKER):
            if pod["spec"]["nodeName"]:
                self.world.start_pod(pod)

    def _work(self, _: int) -> None:
        for pod in (*self.story.pods(names.PROFILER), *self.story.pods(names.PLANNER)):
            self.world.work(pod)

    def _train(self, _: int) -> None:
        """Let the workers train for longer than the cooldown, and report their steps."""
        if self.running and self.story.seen == ("Running", "AllWorkersReady"):
            report(self.story, step=5_000)
        self._time(2_000)

    def _fail(self, _: int) -> None:
        for pod in self.running[:1]:
            self.world.end_pod(pod, 1)

    def _no_plan(self, _: int) -> None:
        for pod in self.story.pods(names.PLANNER)[:1]:
            self.world.end_pod(pod, ExitCode.INFEASIBLE)

    def _gone(self, _: int) -> None:
        """Let every pod be gone that was asked to go."""
        for pod in self.world.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                self.world.finish_deletion(pod)

    def _suspend(self, _: int) -> None:
        self.world.change_spec(JOB, suspend=True)

    def _resume(self, _: int) -> None:
        self.world.change_spec(JOB, suspend=False)

    def _delete(self, _: int) -> None:
        """Let somebody delete the newest workers."""
        for job in self.world.of_kind("Job", names.WORKER)[-1:]:
            self.world.remove("Job", job["metadata"]["name"], foreground=True)

    def _all_goes_well(self, _: int) -> None:
        """Let everybody do what is due, so that the job trains if it may."""
        for what in ("gone", "work", "work", "start"):
            self.happen(what, 0)

    @property
    def running(self) -> list[dict[str, Any]]:
        """Worker pods that run."""
        return [pod for pod in self.story.pods(names.WORKER) if pod["status"]["phase"] == "Running"]

    def settle(self) -> None:
        """Let the operator look until it wants nothing more; where it dies, another one takes over."""
        for _ in range(40):
            self.world.run_job_controller()
            self.world.watches.catch_up()
            try:
                rests = asyncio.run(self.story.operator.look(KEY))
            except CrashError:
                self.story.operator, rests = OperatorProcess(self.world), False
            self.check()
            if rests:
                return
        raise AssertionError("the operator does not come to rest")

    def check(self) -> None:
        """See that there is one set of workers, of a number within the bounds; they train in the recorded number.

        Kueue may admit any number in between, of which no training comes.
        """
        assert self.world.doubled == []
        jobs = self.world.of_kind("Job", names.WORKER)
        active = [job for job in jobs if not is_finished(job) and "deletionTimestamp" not in job["metadata"]]
        assert len(active) <= 1
        allowed = self.sizes if self.world.quota is None else set(range(LEAST, MOST + 1))
        assert {job["spec"]["completions"] for job in jobs} <= allowed
        recorded = self.story.status.get("elastic")
        assert recorded is None or recorded["numNodes"] in self.sizes
        if self.story.seen == ("Running", "AllWorkersReady") and active:
            assert recorded is not None
            assert active[0]["spec"]["completions"] == recorded["numNodes"]

    def come_to_an_end(self) -> None:
        """Let all go well until the job has ended: other pods leave too, and workers find nodes."""
        self.world.crash_after = None
        self.happen("nodes", 5)
        for place, pod in enumerate(self.story.pods(names.WORKER)):
            pod["spec"]["nodeName"] = pod["spec"]["nodeName"] or f"node-{place}"
            self.world.touch(pod)
        self.happen("quota", 5)
        self.happen("resume", 0)
        for _ in range(6):
            self.happen("time", 700)
            self._all_goes_well(0)
            for pod in self.running:
                self.world.end_pod(pod, 0)
            self.settle()
            if self.story.seen[0] in {"Succeeded", "Failed"}:
                assert self.story.jobs(names.QUOTA) == []
                return
        raise AssertionError(f"the job does not end: {self.story.seen}, {self.story.status['message']}")


@pytest.mark.slow
@generated(12, 300, deadline=None)
@given(
    st.integers(0, 5),
    st.none() | st.integers(0, 5),
    st.sampled_from(sorted(SIZES)),
    st.lists(HAPPENINGS, min_size=5, max_size=25),
)
def test_one_set_of_workers_within_the_bounds_comes_to_its_end(
    count: int, quota: int | None, batch_size: int, happenings: list[Happening]
) -> None:
    """In whatever order nodes and quota come and go, workers fail, plans are not found, and the operator dies."""
    history = History(count, quota, batch_size=batch_size)
    for what, amount in happenings:
        history.happen(what, amount)
    history.come_to_an_end()


@pytest.mark.slow
@pytest.mark.parametrize("writes", range(1, 9))
def test_an_operator_that_dies_at_any_write_leads_to_the_same_sizes(writes: int) -> None:
    """Four nodes, two after a drain, and four again while the job trains: each decision is in the status or a child."""
    history, sizes = History(4), []
    for happenings in (("time", 130), ("drain", 2)), (("nodes", 4), ("train", 0), ("train", 0)):
        history.world.crash_after = writes
        for what, amount in (*happenings, ("time", 700), ("all goes well", 0), ("time", 60), ("all goes well", 0)):
            history.happen(what, amount)
        sizes.append((history.story.status["elastic"]["numNodes"], len(history.running)))

    assert sizes == [(2, 2), (4, 4)]
    assert history.story.status["restartsCountTowardsMax"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("writes", range(1, 9))
def test_an_operator_that_dies_at_any_write_takes_the_quota_that_there_is(writes: int) -> None:
    """Four workers, three after a preemption, and four again while the job trains, in a queue."""
    history, sizes = History(4, quota=4), []
    for happenings in (("quota", 3), ("preempt", 0)), (("quota", 4), ("train", 0), ("time", 10)):
        history.world.crash_after = writes
        for what, amount in (*happenings, *(("all goes well", 0), ("time", 60)) * 4, ("all goes well", 0)):
            history.happen(what, amount)
        sizes.append((history.story.status["elastic"]["numNodes"], len(history.running)))

    assert sizes == [(3, 3), (4, 4)]
    assert history.story.status["restartsCountTowardsMax"] == 0
    assert history.story.jobs(names.QUOTA) == []
