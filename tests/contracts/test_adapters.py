"""The two adapters of a job's decisions: the same history leads to the same status in a cluster and on one machine."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_decisions import names
from support.cli.local_life import OWN, LocalLife, local_life
from support.cli.local_runs import BUNDLED
from support.depth import depth
from support.operator.operator_process import JOB, ONE_NODE, Story
from support.operator.server_story import SERVED, ServerStory

REPLANS = {"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [40]}}
IGNORES = {"action": "RestartJobAndIgnoreMaxRestarts", "onExitCodes": {"operator": "In", "values": [41]}}
SPEC: dict[str, Any] = {
    "profiler": BUNDLED,
    "trainer": {**OWN, **ONE_NODE},
    "planner": {"fallbackAlgorithm": "DimGreedy"},
    "failurePolicy": {"maxRestarts": 2, "rules": [REPLANS, IGNORES]},
    "runPolicy": {"activeDeadlineSeconds": 20_000},
}
UNMEASURED = {"planner": {"denseMemoryPerDevice": "1Gi"}}
"""Nobody measures the dense part before the planner runs."""
WITH_SERVERS = {**SPEC, **SERVED, "experimental": {**SERVED["experimental"], **UNMEASURED}}
HAPPENINGS = st.one_of(
    st.tuples(st.just("workers end"), st.sampled_from([0, 1, 1, 2, 7, 40, 40, 41, 137])),
    st.tuples(st.just("planner ends"), st.sampled_from([0, 0, 1, 2, 3])),
    st.tuples(st.just("time passes"), st.sampled_from([1, 11, 60, 4_000])),
    st.tuples(st.just("it is suspended"), st.just(0)),
)


class InACluster:
    """The job under the operator, on a cluster in memory."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.story = (ServerStory if spec is WITH_SERVERS else Story)(**spec)

    def happens(self, what: str, number: int) -> None:
        """Let something happen to the job."""
        story = self.story
        if what == "time passes":
            story.later(number)
        elif what == "it is suspended":
            story.world.change_spec(JOB, suspend=True)
            story.settle()
            story.bury()
            story.world.change_spec(JOB, suspend=False)
            story.settle()
        elif what == "planner ends" and story.pods(names.PLANNER):
            story.fail(names.PLANNER, number) if number else story.do(names.PLANNER)
        elif what == "workers end" and story.pods(names.WORKER):
            for pod in story.pods(names.SERVER):  # they lose their peers, or end with them
                story.world.end_pod(pod, ExitCode.PEER_LOST if number else 0)
            story.fail(names.WORKER, number)
        story.start_workers()

    def facts(self) -> tuple[object, ...]:
        """Return the stage, the reason, and the counts of the job."""
        status = self.story.status
        counts = ("restarts", "restartsCountTowardsMax", "replans")
        return (*self.story.seen, *(status.get(each) or 0 for each in counts))


class OnOneMachine:
    """The job under `neuroshard run`."""

    def __init__(self, life: LocalLife) -> None:
        self.life = life
        life.begin()

    def happens(self, what: str, number: int) -> None:
        """Let something happen to the job."""
        life = self.life
        if what == "time passes":
            life.wait(number)
        elif what == "it is suspended" and not life.local.has_ended:
            life.local.suspend()
            life.settle()
        elif what == "planner ends" and life.running("plan"):
            life.end("plan", number) if number else life.plan()
        elif what == "workers end" and life.running("train"):
            life.end("train", number)
        if life.running("train"):  # NeuroShard's own trainer says so, others are from their start on
            life.ready()

    def facts(self) -> tuple[object, ...]:
        """Return the stage, the reason, and the counts of the job."""
        status = self.life.status
        counts = (status.restarts, status.restarts_count_towards_max, status.replans)
        return (str(status.stage), str(status.reason), *(each or 0 for each in counts))


@pytest.mark.deep
@settings(max_examples=depth(10, 200))
@given(spec=st.sampled_from([SPEC, WITH_SERVERS]), history=st.lists(HAPPENINGS, max_size=12))
def test_the_same_history_leads_to_the_same_status_in_both_adapters(
    tmp_path_factory: pytest.TempPathFactory, spec: dict[str, Any], history: list[tuple[str, int]]
) -> None:
    """Stage, reason, and what is counted, after each thing that happens, with and without embedding servers."""
    with local_life(tmp_path_factory.mktemp("run"), **spec) as life:
        both = InACluster(spec), OnOneMachine(life)
        for what, number in [("planner ends", 0), *history]:
            for each in both:
                each.happens(what, number)
            cluster, machine = (each.facts() for each in both)
            assert cluster == machine, (what, number)
