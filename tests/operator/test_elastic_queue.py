"""Elastic jobs in a queue of Kueue's: fewer workers than asked for, preemption, and quota that comes back."""

from typing import Any

from neuroshard_decisions import names
from support.operator.elastic_story import COOLDOWN_S, nodes, settled_in_queue, training_on
from support.operator.operator_process import JOB, Story
from support.operator.replanning_story import report


def size(story: Story) -> tuple[int, str]:
    """Return the recorded number of nodes, and its reason."""
    recorded = story.status["elastic"]
    return recorded["numNodes"], recorded["reason"]


def newest(story: Story) -> dict[str, Any]:
    """Return the newest Job of workers."""
    found: dict[str, Any] = story.world.of_kind("Job", names.WORKER)[-1]
    return found


def verdict(story: Story) -> str | None:
    """Return the verdict of the last look for more nodes."""
    found: str | None = story.status["elastic"].get("growth", {}).get("verdict")
    return found


def looked(story: Story, quota: int, after_s: float = COOLDOWN_S) -> Story:
    """Let quota come, time pass, and the workers report, so that the queue is asked for more."""
    story.world.quota = quota
    story.later(after_s)
    report(story, step=6_000)
    story.later(10)
    return story


def planned_in_queue(most: int, *, least: int) -> Story:
    """Return the story of an elastic job that was planned in a queue with quota for two workers."""
    story = Story(suspend=True, trainer={"numNodes": most}, experimental={"elastic": {"minNodes": least}})
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.world.nodes, story.world.quota = nodes(most), 2
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.planned()
    return story


def test_workers_ask_for_all_first_and_for_fewer_after_half_a_minute() -> None:
    """Quota of the start before may be on its way back; then any number down to the minimum will do."""
    story = planned_in_queue(4, least=2)
    story.world.quota = 0
    story.later(20)
    at_first = dict(newest(story)["metadata"].get("annotations", {}))
    story.later(20)

    assert at_first == {}
    assert newest(story)["metadata"]["annotations"] == {
        names.LEAST_PODS_ANNOTATION: "2",
        names.WHOLE_SIZE_ANNOTATION: "true",
    }
    assert (newest(story)["spec"]["parallelism"], story.seen) == (4, ("Suspended", "WaitingForAdmission"))


def test_a_job_trains_on_what_kueue_admits() -> None:
    """Three of four, which do not divide the samples of a step: the plan and the workers are for two."""
    story = training_on(4, quota=3)

    assert size(story) == (2, "QuotaLacking")
    assert "Kueue admits 3 of 4 workers" in story.status["elastic"]["message"]
    assert (story.seen, story.status["plan"]["worldSize"]) == (("Running", "AllWorkersReady"), 16)
    assert (newest(story)["spec"]["completions"], len(story.pods(names.WORKER))) == (2, 2)
    assert story.status["restartsCountTowardsMax"] == 0
    assert "Resized" in story.reasons()
    assert story.world.doubled == []


def test_workers_keep_their_quota_until_there_is_a_plan_for_it() -> None:
    """Another job would take it meanwhile."""
    story = planned_in_queue(2, least=1)
    story.world.preempt(newest(story))
    story.world.quota = 1
    story.settle()
    story.bury()
    story.later(10)
    story.later(40)
    asked, planning = newest(story), size(story)
    story.do(names.PLANNER)

    assert planning == (1, "QuotaLacking")
    assert (asked["spec"]["suspend"], asked["spec"]["parallelism"]) == (False, 1)
    assert "deletionTimestamp" in asked["metadata"]


def test_a_job_within_its_quota_tells_of_no_size() -> None:
    """It is admitted as a whole, as any other job."""
    story = training_on(4, quota=4)

    assert size(story) == (4, "NodesAvailable")
    assert "Resized" not in story.reasons()
    assert story.jobs(names.QUOTA) == []


def test_a_preempted_job_resumes_on_fewer_nodes() -> None:
    """Of its quota half is left: it asks for all again, then takes what there is, and no restart counts."""
    story = training_on(2, most=2, quota=2)
    story.world.quota = 1
    story.world.preempt(newest(story))
    story.settle()
    story.bury()
    waits = story.seen
    settled_in_queue(story)

    assert waits == ("Suspended", "WaitingForAdmission")
    assert (size(story), story.seen) == ((1, "QuotaLacking"), ("Running", "AllWorkersReady"))
    assert story.status["restartsCountTowardsMax"] == 0
    assert story.world.doubled == []


def test_a_job_without_quota_for_its_minimum_waits() -> None:
    """As any other job in a queue."""
    story = training_on(2, most=2, quota=2)
    story.world.quota = 0
    story.world.preempt(newest(story))
    story.settle()
    story.bury()
    settled_in_queue(story)

    assert (size(story), story.seen) == ((2, "NodesAvailable"), ("Suspended", "WaitingForAdmission"))


def test_a_failure_asks_for_the_quota_that_was_there() -> None:
    """More is asked for while the workers train, so that no restart gives up quota."""
    story = training_on(4, quota=2)
    story.fail(names.WORKER, 1)
    story.later(700)
    story.start_workers()

    assert size(story) == (2, "NodesAvailable")
    assert (story.seen, newest(story)["spec"]["parallelism"]) == (("Running", "AllWorkersReady"), 2)


def test_quota_that_comes_back_is_asked_for_and_taken() -> None:
    """A question holds it, whose pods never start; the plan pays, the old workers end, and the question goes last."""
    story = looked(training_on(6, most=6, quota=2), 3)
    [question] = story.world.of_kind("Job", names.QUOTA)
    asked = question["spec"]["parallelism"], question["spec"]["suspend"]
    pods = [pod["spec"]["nodeName"] for pod in story.pods(names.QUOTA)]
    before = size(story)
    story.do(names.PLANNER)
    decided, held = size(story), story.jobs(names.QUOTA)
    story.bury()
    story.settle()
    story.start_workers()

    assert (before, asked, pods) == ((2, "QuotaLacking"), (1, False), [""])
    assert (decided, held) == ((3, "QuotaReturned"), [question["metadata"]["name"]])
    assert story.jobs(names.QUOTA) == []
    assert (story.seen, newest(story)["spec"]["parallelism"]) == (("Running", "AllWorkersReady"), 3)
    assert story.status["restartsCountTowardsMax"] == 0
    assert story.world.doubled == []


def test_a_queue_without_more_quota_is_not_asked_for_long() -> None:
    """After half a minute the question goes, and comes again five minutes later; no planner runs for it."""
    story = looked(training_on(4, quota=2), 2)
    asked = story.jobs(names.QUOTA)
    story.later(40)
    after, first = story.jobs(names.QUOTA), verdict(story)
    story.later(310)

    assert (len(asked), after, first) == (1, [], "NoQuota")
    assert len(story.jobs(names.QUOTA)) == 1
    assert (size(story)[0], len(story.jobs(names.PLANNER))) == (2, 2)


def test_quota_that_does_not_pay_is_given_back() -> None:
    """The question goes with the verdict."""
    story = training_on(4, quota=2)
    report(story, start_ms=1e9)
    story.world.quota = 4
    story.later(COOLDOWN_S)
    story.later(10)
    story.do(names.PLANNER)

    assert (verdict(story), story.jobs(names.QUOTA), story.status["restarts"]) == ("GainTooSmall", [], 1)


def test_a_question_has_no_priority_and_asks_for_no_place() -> None:
    """It preempts no other job, and its pods ask for what a worker asks for."""
    story = training_on(4, quota=2, podTemplate={"spec": {"priorityClassName": "high"}})
    story.world.label(JOB, {f"{names.KUEUE_LABEL_PREFIX}priority-class": "high"})
    [question] = looked(story, 4).world.of_kind("Job", names.QUOTA)
    template, worker = question["spec"]["template"]["spec"], newest(story)["spec"]["template"]["spec"]

    assert f"{names.KUEUE_LABEL_PREFIX}priority-class" not in question["metadata"]["labels"]
    assert ("priorityClassName" in template, "priorityClassName" in worker) == (False, True)
    assert template["containers"][0]["resources"] == worker["containers"][0]["resources"]


def test_a_question_goes_with_workers_that_are_suspended() -> None:
    """It would hold quota for nobody."""
    story = looked(training_on(6, most=6, quota=2), 3)
    asked = story.jobs(names.QUOTA)
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()

    assert (len(asked), story.jobs(names.QUOTA)) == (1, [])


def test_a_question_goes_with_the_job_that_has_ended() -> None:
    """Whatever cleanPodPolicy says: its pods would hold quota for ever."""
    story = looked(training_on(6, most=6, quota=2, runPolicy={"cleanPodPolicy": "None"}), 3)
    asked = story.jobs(names.QUOTA)
    for pod in story.pods(names.WORKER):
        story.world.end_pod(pod, 0)
    for _ in range(3):
        story.settle()

    assert (len(asked), story.seen[0], story.jobs(names.QUOTA)) == (1, "Succeeded", [])


def test_workers_whose_plans_a_person_approves_wait_for_all_their_nodes() -> None:
    """Those of fewer would hold devices until the plan for them is approved."""
    story = Story(
        suspend=True,
        trainer={"numNodes": 2},
        experimental={"elastic": {"minNodes": 1}},
        launchPolicy="Manual",
    )
    story.world.label(JOB, {names.QUEUE_LABEL: "queue"})
    story.world.nodes, story.world.quota = nodes(2), 2
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.planned()
    story.world.quota = 1
    story.annotate("training.neuroshard.dev/approved-plan", story.status["plan"]["configMapRef"]["name"])
    story.later(100)

    assert "annotations" not in newest(story)["metadata"]
    assert story.seen == ("Suspended", "WaitingForAdmission")


def test_workers_give_their_quota_to_a_planner_that_waits_for_it() -> None:
    """A default queue has the planner too, and the workers of another size hold all of its quota."""
    story = Story(suspend=True, trainer={"numNodes": 2}, experimental={"elastic": {"minNodes": 1}})
    story.world.default_queue = "default"
    story.world.nodes, story.world.quota = nodes(2), 2
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.running()
    story.world.quota = 1
    story.world.preempt(newest(story))
    story.settle()
    story.bury()
    story.later(40)
    planning = size(story), story.seen
    story.later(40)
    story.bury()
    story.do(names.PLANNER)
    story.later(10)
    story.start_workers()

    assert planning == ((1, "QuotaLacking"), ("Suspended", "WaitingForAdmission"))
    assert (size(story)[0], story.seen) == (1, ("Running", "AllWorkersReady"))
    assert story.world.doubled == []
