"""Jobs whose inputs or nodes change in mid-training: another plan is made, shown, and taken; never in a storm."""

import asyncio
import itertools
import json
from datetime import timedelta
from typing import Any

import pytest
from neuroshard_api.documents.drift_report import DriftReport, SlowdownCause
from neuroshard_api.replanning.decision import ReplanVerdict
from neuroshard_decisions import names
from neuroshard_decisions.conditions import Reason
from neuroshard_decisions.observed.results import content_hash
from neuroshard_decisions.status import read_status
from neuroshard_operator.process.metrics import OperatorMetrics
from support import builders
from support.depth import depth
from support.operator.operator_process import KEY, OperatorProcess, Story
from support.operator.operator_world import CrashError
from support.operator.replanning_story import AUTO, DRIFTED, SLOW, VOLUME, candidate, plan_in_force, replaced, report


def test_steps_as_at_the_beginning_are_steady() -> None:
    """The condition says so, and nothing is planned."""
    story = Story(**AUTO).running()
    planners = story.jobs(names.PLANNER)
    report(story)
    story.later(60)

    assert (story.condition("Steady")["status"], story.condition("Steady")["reason"]) == ("True", "WithinReference")
    assert story.jobs(names.PLANNER) == planners
    assert "replanning" not in story.status


def test_a_slow_down_is_a_condition_and_one_event() -> None:
    """It has the trainer's own line; the same change in the next report is not a second event."""
    story = Story(**VOLUME).running()
    for step in (5_000, 5_100):
        drift = report(story, SLOW, step=step)
        story.later(60)
    steady = story.condition("Steady")

    assert (steady["status"], steady["reason"], steady["message"]) == ("False", "NodeSlow", drift.headline)
    assert story.reasons().count("DriftDetected") == 1


def test_mode_suggest_plans_beside_the_training_and_names_the_command() -> None:
    """Gain and price are shown; the workers stay as they are."""
    story = Story(**VOLUME).running()
    before, workers = plan_in_force(story), story.jobs(names.WORKER)
    candidate(story)
    story.later(60)
    current, found = story.condition("PlanCurrent"), story.status["replanning"]["candidate"]

    assert (current["status"], current["reason"]) == ("False", "BetterPlanFound")
    assert f"training.neuroshard.dev/approved-plan={found['planName']}" in current["message"]
    assert (found["predictedMicroseconds"], found["incumbentMicroseconds"]) == (3_000, 6_000)
    assert found["gainMicroseconds"] == pytest.approx(5_000 * 0.5 * 0.5 / 1.2, abs=1)
    assert found["priceMilliseconds"] == 1_000 + 2_000 + 50 * 9
    assert (plan_in_force(story), story.jobs(names.WORKER), story.seen[0]) == (before, workers, "Running")
    assert story.reasons().count("BetterPlanFound") == 1


def test_the_planner_of_a_candidate_has_the_plan_in_force_and_the_reports() -> None:
    """As they were when it was asked for: the ConfigMap of the reports is a copy that nothing changes."""
    story = Story(**VOLUME).running()
    before = plan_in_force(story)
    report(story, DRIFTED)
    story.later(60)
    [pod] = story.pods(names.PLANNER)
    command = pod["spec"]["containers"][0]["command"]
    report(story, DRIFTED, step=5_100)
    story.later(60)
    kept = story.world.objects["ConfigMap", "job-inputs-1"]

    assert command[command.index("--statistics") + 1].endswith("/inputs/input-statistics.json")
    assert command[command.index("--incumbent") + 1].endswith("/incumbent/plan.json")
    assert kept["immutable"]
    assert DriftReport.from_json(kept["data"]["drift-report.json"]).last_step == 5_000
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert content_hash(story.world.objects["ConfigMap", volumes["incumbent"]["configMap"]["name"]]) == before


@pytest.mark.parametrize("spec", [VOLUME, {**VOLUME, "launchPolicy": "Manual"}], ids=["Suggest", "Manual"])
def test_a_candidate_is_taken_once_the_user_approves_it(spec: dict[str, Any]) -> None:
    """By the annotation that approves plans."""
    story = Story(**spec).planned()
    if "launchPolicy" in spec:
        name = story.status["plan"]["configMapRef"]["name"]
        story.annotate("training.neuroshard.dev/approved-plan", name)
    story.start_workers()
    before = plan_in_force(story)
    candidate(story)
    found = story.status["replanning"]["candidate"]
    story.annotate("training.neuroshard.dev/approved-plan", found["planName"])
    replaced(story)

    assert plan_in_force(story) != before
    assert f"sha256:{plan_in_force(story)}" == found["hash"]
    assert story.seen == ("Running", "AllWorkersReady")


def test_mode_auto_restarts_the_workers_under_the_candidate() -> None:
    """Uncounted, with both plans in the history, and with what the new one brought once it is measured."""
    story = Story(**AUTO).running()
    before = plan_in_force(story)
    candidate(story)
    replaced(story)
    after = plan_in_force(story)
    report(story, step=5_200, embedding_ms=4.5)
    story.later(60)
    story.later(60)
    further = story.status["replanning"]
    old, new = further["history"]

    assert (story.seen, story.status["restartsCountTowardsMax"]) == (("Running", "AllWorkersReady"), 0)
    assert story.status["plan"]["hash"] == f"sha256:{after}" != f"sha256:{before}"
    assert (further["replans"], further["accepted"], "candidate" in further) == (1, 1, False)
    assert "ChildRepaired" not in story.reasons(), "the planner's Role is for another plan: nobody edited it"
    assert (old["hash"], old["reason"], old["measuredMicroseconds"]) == (f"sha256:{before}", "PlanWritten", 5_000)
    assert (new["hash"], new["reason"], new["fromStep"]) == (f"sha256:{after}", "InputsDrifted", 5_000)
    assert (new["promisedGainPercent"], new["measuredGainPercent"]) == (21, 10)
    assert story.condition("PlanCurrent")["reason"] == "PlanReplaced"
    assert story.reasons().count("PlanReplaced") == 1


@pytest.mark.parametrize(
    "other", [{"plan": "7" * 64}, {"run_id": "00000000-0000-0000-0000-000000000000-7"}], ids=["plan", "attempt"]
)
def test_reports_of_something_else_change_nothing(other: dict[str, Any]) -> None:
    """Of another plan, or of another attempt."""
    story = Story(**AUTO).running()
    report(story, DRIFTED, **other)
    story.later(60)

    assert all(each["type"] != "Steady" for each in story.status["conditions"])
    assert "replanning" not in story.status


def test_a_drift_report_that_cannot_be_read_hides_no_steps() -> None:
    """Steady is unknown, with the reason; measured steps are still shown."""
    story = Story(**AUTO).running()
    measured = builders.step_report(plan_sha256=plan_in_force(story)).to_json().encode()
    story.world.publish("job-report", {"step-report.json": measured, "drift-report.json": b'{"recent": [NaN]}'})
    story.later(60)
    steady = story.condition("Steady")

    assert (steady["status"], steady["reason"]) == ("Unknown", "UnusableReport")
    assert "drift-report.json" in steady["message"]
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 5_000


@pytest.mark.parametrize("document", ["step-report.json", "drift-report.json"])
def test_times_beyond_all_measure_stop_no_pass(document: str) -> None:
    """A report with them cannot be read; workers that fail meanwhile restart."""
    story = Story(**AUTO).running()
    report(story, DRIFTED)
    published = story.world.objects["ConfigMap", "job-report"]["data"]
    raw = json.loads(published[document])
    (raw["ranks"] if document == "step-report.json" else raw["recent"])[0]["step_ms"] = 1e300
    broken = {**published, document: json.dumps(raw)}
    story.world.publish("job-report", {name: text.encode() for name, text in broken.items()})
    story.later(60)
    story.fail(names.WORKER, 1)
    story.later(400)
    story.start_workers()

    assert (story.status["restarts"], story.seen) == (1, ("Running", "AllWorkersReady"))


def test_drift_that_grows_is_planned_for_again() -> None:
    """The gain was too small; after twice the cooldown the planner counts the inputs as they are then."""
    story = Story(**AUTO).running()
    report(story, DRIFTED, checkpoint_ms=1e6)
    story.later(60)
    story.do(names.PLANNER)
    story.later(60)
    assert story.condition("PlanCurrent")["reason"] == "GainTooSmall"
    report(story, DRIFTED, step=9_000)
    story.later(3_600)

    assert story.status["replanning"]["candidate"]["number"] == 2
    assert len(story.pods(names.PLANNER)) == 1


def test_a_candidate_for_an_earlier_change_decides_nothing_about_another() -> None:
    """The inputs changed once more while it was made: the workers stay, until a candidate for that is there."""
    story = Story(**AUTO).running()
    before = plan_in_force(story)
    report(story, DRIFTED)
    story.later(60)
    report(story, DRIFTED.model_copy(update={"since_step": 5_500}), step=6_000)
    story.do(names.PLANNER)
    story.later(60)
    assert (plan_in_force(story), "accepted" in story.status["replanning"]) == (before, False)
    story.later(1_800)
    story.do(names.PLANNER)

    assert story.status["replanning"]["accepted"] == 2


def test_a_gain_is_measured_with_a_drift_report_of_the_plan_alone() -> None:
    """Before there is one, steps may be of the warm-up, wherever the training resumed."""
    story = candidate(Story(**AUTO).running())
    replaced(story)
    report(story, step=7_000, embedding_ms=4.5)
    published = dict(story.world.objects["ConfigMap", "job-report"]["data"])
    early = {name: text.encode() for name, text in published.items() if name != "drift-report.json"}
    story.world.publish("job-report", early)
    story.later(60)
    story.later(60)
    assert "measuredGainPercent" not in story.status["replanning"]["history"][-1]
    report(story, step=7_200, embedding_ms=4.5)
    story.later(60)
    story.later(60)

    assert story.status["replanning"]["history"][-1]["measuredGainPercent"] == 10


def test_every_cause_and_verdict_is_the_reason_of_a_condition() -> None:
    """But for the one about slow nodes, which restart the workers and have no condition."""
    values = {each.value for each in Reason}

    assert {each.value for each in SlowdownCause} <= values
    assert {each.value for each in ReplanVerdict} - values == {ReplanVerdict.RESTART_PAYS.value}


def test_a_further_change_is_planned_for_after_the_cooldown() -> None:
    """Another first step is another change; planners do not run more often than restarts may follow."""
    story = candidate(Story(**VOLUME).running())
    again = DRIFTED.model_copy(update={"since_step": 5_500})
    report(story, again, step=6_000)
    story.later(60)
    assert story.pods(names.PLANNER) == []
    story.later(1_800)

    assert len(story.pods(names.PLANNER)) == 1
    assert story.status["replanning"]["candidate"]["number"] == 2
    assert [each["metadata"]["name"] for each in story.world.of_kind("ConfigMap", names.INPUTS)] == ["job-inputs-2"]
    assert len(story.jobs(names.PLANNER)) == 2


def test_an_approved_candidate_is_taken_though_another_change_is_due() -> None:
    """The change began at another step meanwhile; what somebody approved is not thrown away for a further candidate."""
    story = candidate(Story(**VOLUME).running())
    before, found = plan_in_force(story), story.status["replanning"]["candidate"]
    report(story, DRIFTED.model_copy(update={"since_step": 5_500}), step=6_000)
    story.world.now += timedelta(hours=1)
    story.annotate("training.neuroshard.dev/approved-plan", found["planName"])
    story.later(60)
    replaced(story)

    assert story.status["replanning"]["candidates"] == 1
    assert f"sha256:{plan_in_force(story)}" == found["hash"] != f"sha256:{before}"


def test_inputs_that_were_counted_under_another_plan_are_not_planned_for() -> None:
    """A report of the plan before may still be there."""
    story = Story(**AUTO).running()
    planners = story.jobs(names.PLANNER)
    report(story, DRIFTED, inputs={"plan_sha256": "7" * 64})
    story.later(60)
    assert (story.condition("Steady")["reason"], story.jobs(names.PLANNER)) == ("InputsDrifted", planners)
    report(story, DRIFTED, step=5_100)
    story.later(60)

    assert len(story.jobs(names.PLANNER)) == len(planners) + 1


def test_workers_that_fail_under_a_plan_that_was_not_measured_resume_under_the_one_before() -> None:
    """That restart counts as no failure; the plan is not taken again, even where it is approved."""
    story = Story(**AUTO, failurePolicy={"maxRestarts": 0}).running()
    before = plan_in_force(story)
    replaced(candidate(story))
    taken = plan_in_force(story)
    story.fail(names.WORKER, 1)
    story.later(60)
    replaced(story)
    back = story.status
    report(story, DRIFTED, step=6_000)
    story.later(4_000)
    story.do(names.PLANNER)
    story.annotate("training.neuroshard.dev/approved-plan", back["replanning"]["history"][1]["hash"])
    story.later(60)
    current = story.condition("PlanCurrent")

    assert before != taken
    assert (plan_in_force(story), story.seen[0]) == (before, "Running")
    assert [each["reason"] for each in back["replanning"]["history"]] == ["PlanWritten", "InputsDrifted", "PlanFailed"]
    assert "before it was measured" in back["replanning"]["history"][2]["message"]
    assert (back["restartsCountTowardsMax"], back["replanning"]["replans"]) == (0, 1)
    assert (current["status"], current["reason"]) == ("True", "NoBetterPlan")
    assert "under which the workers failed" in current["message"]


def test_a_failure_rule_plans_for_the_inputs_of_the_accepted_candidate() -> None:
    """Near the plan that was made for them; those of the spec are of before the drift."""
    rule = {"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [9]}}
    story = replaced(candidate(Story(**AUTO, failurePolicy={"rules": [rule]}).running()))
    taken = plan_in_force(story)
    report(story, step=5_200, embedding_ms=4.5)
    story.later(60)
    story.fail(names.WORKER, 9)
    story.later(60)
    [pod] = story.pods(names.PLANNER)
    command = pod["spec"]["containers"][0]["command"]
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}

    assert command[command.index("--statistics") + 1].endswith("/inputs/input-statistics.json")
    assert volumes["inputs"]["configMap"]["name"] == "job-inputs-1"
    assert content_hash(story.world.objects["ConfigMap", volumes["incumbent"]["configMap"]["name"]]) == taken
    replaced(story.do(names.PLANNER))
    assert (plan_in_force(story) != taken, story.seen[0]) == (True, "Running")


def test_workers_that_fail_under_a_plan_that_was_measured_restart_under_it() -> None:
    """The plan trains; something else made them fail."""
    story = replaced(candidate(Story(**AUTO).running()))
    taken = plan_in_force(story)
    report(story, step=5_200, embedding_ms=4.5)
    story.later(60)
    story.fail(names.WORKER, 1)
    story.later(60)
    replaced(story)

    assert plan_in_force(story) == taken
    assert story.status["restartsCountTowardsMax"] == 1


def test_metrics_count_slow_downs_restarts_and_gains() -> None:
    """Once each, from the statuses that were written."""
    story = Story(**AUTO).running()
    candidate(story)
    replaced(story)
    report(story, step=5_200, embedding_ms=4.5)
    story.later(60)
    metrics = OperatorMetrics()
    statuses = [read_status(each) for each in story.world.statuses]
    for before, after in itertools.pairwise(statuses):
        metrics.status_written(before, after)
    value = metrics.registry.get_sample_value

    assert value("neuroshard_drift_total", {"cause": "InputsDrifted"}) == 1
    assert value("neuroshard_replans_total", {"reason": "InputsDrifted"}) == 1
    for gain, below, above in (("promised", "0.2", "0.5"), ("measured", "0.05", "0.1")):
        name = f"neuroshard_replan_{gain}_gain_ratio_bucket"
        assert (value(name, {"le": below}), value(name, {"le": above})) == (0, 1)


@pytest.mark.deep
@pytest.mark.parametrize("dies_after", range(1, 25, depth(3, 1)))
def test_an_operator_killed_in_between_comes_to_the_same_end(dies_after: int) -> None:
    """After any of its writes: the candidate is taken once, and one set of workers trains under it."""
    story = Story(**AUTO).running()
    before = plan_in_force(story)
    report(story, DRIFTED)
    story.world.now += timedelta(seconds=60)
    story.world.crash_after = dies_after
    for _ in range(4):
        _settled_by_others(story)
        for pod in story.pods(names.PLANNER):
            story.world.work(pod)
        _settled_by_others(story)
        for pod in story.world.of_kind("Pod", names.WORKER):
            if "deletionTimestamp" in pod["metadata"]:
                story.world.finish_deletion(pod)
        story.world.now += timedelta(seconds=31)
    story.world.crash_after = None
    story.start_workers()
    further = story.status["replanning"]

    assert plan_in_force(story) != before
    assert (further["replans"], further["candidates"], len(further["history"])) == (1, 1, 2)
    assert (story.seen, story.world.doubled) == (("Running", "AllWorkersReady"), [])


def _settled_by_others(story: Story) -> None:
    """Let operators reconcile until nothing more is wanted; the next one takes over from one that was killed."""
    for _ in range(20):
        story.world.run_job_controller()
        story.world.watches.catch_up()
        try:
            if asyncio.run(story.operator.look(KEY)):
                return
        except CrashError:
            story.world.crash_after = None
            story.operator = OperatorProcess(story.world)
    raise AssertionError("the operator does not come to rest")
