"""The whole text of conditions and events in typical histories of a job, as the file ``messages.txt`` has it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from neuroshard_decisions import names
from support import builders
from support.golden import Golden, sections
from support.operator.elastic_story import joined, training_on
from support.operator.operator_process import JOB, Story
from support.operator.replanning_story import AUTO, SLOW, VOLUME, candidate, replaced, report
from support.operator.server_story import QueuedServerStory, ServerStory

MESSAGES = Path(__file__).parent / "messages.txt"
HASH = re.compile(r"\b[0-9a-f]{8,64}\b")
POD = re.compile(r"(pod job-\S+)-\d+ on")


def trained() -> Story:
    """Return the story of a job that succeeds."""
    story = Story(**VOLUME).running()
    for pod in story.pods(names.WORKER):
        story.world.end_pod(pod, 0)
    story.settle()
    return story


def invalid() -> Story:
    """Return the story of a job with a launch policy that does not exist."""
    return Story(launchPolicy="Eventually")


def newer() -> Story:
    """Return the story of a job with a field that this operator does not know."""
    story = Story()
    story.world.training_job(JOB)["spec"]["newPart"] = {"enabled": True}
    story.world.touch(story.world.training_job(JOB))
    story.settle()
    return story


def profiler_fails() -> Story:
    """Return the story of a job whose profiler fails."""
    story = Story()
    story.fail(names.PROFILER, 1)
    return story


def profiler_late() -> Story:
    """Return the story of a job whose profiler reaches its deadline."""
    story = Story()
    story.time_out(names.PROFILER)
    return story


def profiler_silent() -> Story:
    """Return the story of a job whose profiler publishes nothing."""
    story = Story(trainer={"numNodes": 1})
    story.world.end_pod(story.pods(names.PROFILER)[0], 0)
    story.settle()
    story.later(31)
    return story


def infeasible() -> Story:
    """Return the story of a job whose tables do not fit."""
    story = Story().do(names.PROFILER)
    story.fail(names.PLANNER, 3)
    return story


def planner_late() -> Story:
    """Return the story of a job whose planner reaches its deadline."""
    story = Story().do(names.PROFILER)
    story.time_out(names.PLANNER)
    return story


def planner_silent() -> Story:
    """Return the story of a job whose planner publishes nothing."""
    story = Story().do(names.PROFILER)
    story.world.end_pod(story.pods(names.PLANNER)[0], 0)
    story.settle()
    story.later(31)
    return story


def fallback() -> Story:
    """Return the story of a job that is planned by its fallback algorithm."""
    story = Story(planner={"fallbackAlgorithm": "DimGreedy"}).do(names.PROFILER)
    story.fail(names.PLANNER, 1)
    return story


def input_missing() -> Story:
    """Return the story of a job whose plan is not in the cluster."""
    return Story(planRef={"name": "mine"})


def approval() -> Story:
    """Return the story of a job that waits for approval."""
    return Story(launchPolicy="Manual").planned()


def plan_only() -> Story:
    """Return the story of a job that ends with its plan."""
    return Story(launchPolicy="PlanOnly").planned()


def restarts() -> Story:
    """Return the story of a job that fails twice with one restart."""
    story = Story(failurePolicy={"maxRestarts": 1}).running()
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.fail(names.WORKER, 1)
    return story


def disruptions() -> Story:
    """Return the story of a job that is preempted twice in quick succession."""
    story = Story().running()
    for _ in range(2):
        story.fail(names.WORKER, 1, disruption="PreemptionByScheduler")
        story.start_workers()
    return story


def no_restarts() -> Story:
    """Return the story of a job that may not restart."""
    story = Story(failurePolicy={"maxRestarts": 0}).running()
    story.fail(names.WORKER, 1)
    return story


def invalid_input() -> Story:
    """Return the story of a job whose trainer refuses its input."""
    story = Story().running()
    story.fail(names.WORKER, 2)
    return story


def hang() -> Story:
    """Return the story of a job whose steps stop."""
    story = Story(failurePolicy={"maxRestarts": 1, "progressTimeoutSeconds": 900}).running()
    story.world.publish("job-report", {"progress.json": builders.progress(step=10).to_json().encode()})
    story.later(60)
    story.later(901)
    return story


def old_pods() -> Story:
    """Return the story of a job whose earlier pods still end."""
    story = Story(failurePolicy={"maxRestarts": 3}).running()
    story.world.end_pod(story.pods(names.WORKER)[0], 1)
    story.settle()
    return story


def deadline() -> Story:
    """Return the story of a job that runs longer than it may."""
    story = Story(runPolicy={"activeDeadlineSeconds": 100}).running()
    story.later(101)
    return story


def start_deadline() -> Story:
    """Return the story of a job that does not run in time."""
    story = Story(runPolicy={"preRunningDeadlineSeconds": 60}).planned()
    story.later(61)
    return story


def suspended() -> Story:
    """Return the story of a job that is suspended and resumed."""
    story = Story().running()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    return story


def queued() -> Story:
    """Return the story of a job whose Kubernetes Jobs Kueue suspends."""
    story = Story().planned()
    story.world.suspends_jobs_without_queue = True
    for _ in range(3):
        story.world.run_job_controller()
        story.settle()
    return story


def plan_repaired() -> Story:
    """Return the story of a job whose plan is changed by someone else."""
    story = Story().planned()
    [plan] = story.world.of_kind("ConfigMap", names.PLAN)
    plan["data"]["plan.json"] = plan["data"]["plan.json"].replace("neuroshard", "random", 1)
    story.world.touch(plan)
    story.settle()
    return story


def slow_node() -> Story:
    """Return the story of a job one of whose nodes becomes slow."""
    story = Story(**VOLUME).running()
    report(story, SLOW)
    story.later(60)
    return story


def better_plan() -> Story:
    """Return the story of a job for which a better plan is found and waits for approval."""
    return candidate(Story(**VOLUME).running())


def replanned() -> Story:
    """Return the story of a job that restarts under a better plan."""
    return replaced(candidate(Story(**AUTO).running()))


def drift_unreadable() -> Story:
    """Return the story of a job whose drift report is damaged."""
    story = Story(**AUTO).running()
    story.world.publish("job-report", {"drift-report.json": b'{"recent": [NaN]}'})
    story.later(60)
    return story


def elastic() -> Story:
    """Return the story of an elastic job that starts on two nodes, is drained, and finds one, and no plan for it."""
    gpus = {"limits": {"nvidia.com/gpu": 8}}
    labels = {"nvidia.com/gpu.product": "H200", "nvidia.com/gpu.count": "8"}
    node = {"metadata": {"name": "node-0", "labels": labels}}
    story = Story(
        suspend=True,
        trainer={"numNodes": 4, "resourcesPerNode": gpus},
        experimental={"elastic": {"minNodes": 1}},
        **VOLUME,
    )
    story.world.nodes = [node, node]
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.running()
    story.world.nodes = [node]
    story.later(700)
    story.fail(names.WORKER, 143, disruption="EvictionByEvictionAPI")
    story.fail(names.PLANNER, 3)
    return story


def growth() -> Story:
    """Return the story of an elastic job that finds a second node while it trains, and later no third one."""
    story = training_on(1)
    for count in (1, 2):
        joined(story, count).do(names.PLANNER)
    replaced(story)
    return story


def elastic_queued() -> Story:
    """Return the story of an elastic job whose queue has quota for half of its nodes, later no more, and then more."""
    story = training_on(4, quota=2)
    for quota, after_s in ((2, 1800), (4, 400)):
        story.world.quota = quota
        story.later(after_s)
        report(story, step=6_000)
        story.later(10)
        story.later(40)
    return story


def served() -> Story:
    """Return the story of a job one of whose embedding servers fails, and then its node is lost."""
    story = ServerStory(**VOLUME).running()
    story.fail(names.SERVER, 137)
    story.bury()
    story.start_workers()
    story.stop(names.WORKER, 7)
    story.later(31)
    story.later(91)
    return story


def served_in_queue() -> Story:
    """Return the story of a job with embedding servers and the label of a queue."""
    story = ServerStory()
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.settle()
    return story


def served_in_job_set() -> Story:
    """Return the story of the same in a cluster with JobSets, whose server fails once and that is preempted once."""
    story = QueuedServerStory(**VOLUME).running()
    story.fail(names.SERVER, 137)
    story.bury()
    story.admit()
    story.start_workers()
    story.preempt()
    return story


HISTORIES: dict[str, Callable[[], Story]] = {
    "a job that succeeds": trained,
    "an unknown policy": invalid,
    "a field of a newer release": newer,
    "a profiler that fails": profiler_fails,
    "a profiler past its deadline": profiler_late,
    "a profiler without a result": profiler_silent,
    "tables that do not fit": infeasible,
    "a planner past its deadline": planner_late,
    "a planner without a result": planner_silent,
    "a fallback algorithm": fallback,
    "a plan that is not there": input_missing,
    "a plan that waits for approval": approval,
    "a job that is only planned": plan_only,
    "more failures than restarts": restarts,
    "preemptions": disruptions,
    "a failure without restarts": no_restarts,
    "input that the trainer refuses": invalid_input,
    "steps that stop": hang,
    "earlier pods that still end": old_pods,
    "a job past its deadline": deadline,
    "a job that does not start in time": start_deadline,
    "a job that is suspended and resumed": suspended,
    "a job that Kueue suspends": queued,
    "a plan that was changed": plan_repaired,
    "a slow node": slow_node,
    "embedding servers that fail": served,
    "embedding servers in a queue": served_in_queue,
    "embedding servers in a queue, with JobSet": served_in_job_set,
    "a better plan": better_plan,
    "a job that is replanned": replanned,
    "a damaged drift report": drift_unreadable,
    "an elastic job": elastic,
    "an elastic job in a queue": elastic_queued,
    "an elastic job and nodes that join": growth,
}


def messages(story: Story) -> Iterator[str]:
    """Give the texts of a job's status, its conditions, its warnings, and its events, each with its reason."""
    for status in story.world.statuses:
        for each in (status, *status.get("conditions", ()), *status.get("warnings", ())):
            yield f"{each['reason']}: {each['message']}"
    for event in story.world.events:
        yield event["message"] if event["reason"] == "Failed" else f"{event['reason']}: {event['message']}"


def masked(text: str) -> str:
    """Return a text without hashes and without the ends of pod names, which count objects of the cluster."""
    return POD.sub(r"\1-POD on", HASH.sub("HASH", text))


@pytest.mark.slow
def test_histories_of_jobs_have_the_texts_of_their_file(golden: Golden) -> None:
    """Conditions and events are what users read: a change of their words is seen in review.

    The file has each text once, under the first history that shows it.
    """
    seen: set[str] = set()
    texts: dict[str, str] = {}
    for name, history in HISTORIES.items():
        new = [text for text in dict.fromkeys(map(masked, messages(history()))) if text not in seen]
        seen.update(new)
        texts[name] = "\n".join(new)

    golden(MESSAGES, sections(texts))
