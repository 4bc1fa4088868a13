"""Jobs whose inputs or nodes change in mid-training: another plan is made, shown, and taken; never in a storm."""

import asyncio
import itertools
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import builders
import pytest
import training_builders
from hypothesis import given, settings
from hypothesis import strategies as st
from neuroshard_api.drift_report import Cause, DriftChange, DriftReport, Evidence, StepPart
from neuroshard_api.replanning import Verdict
from neuroshard_operator import names
from neuroshard_operator.conditions import Reason
from neuroshard_operator.observed.results import content_hash
from neuroshard_operator.process.metrics import Metrics
from neuroshard_operator.status import read_status
from operator_process import JOB, KEY, OperatorProcess, Story
from operator_world import CrashError

VOLUME: dict[str, Any] = {"checkpoint": {"persistentVolumeClaim": {"claimName": "volume"}}}
AUTO: dict[str, Any] = {**VOLUME, "replanning": {"mode": "Auto"}}
EVIDENCE = (Evidence(part=StepPart.COMPUTE, rank=1, reference_ms=2.0, recent_ms=4.0),)
DRIFTED = DriftChange(cause=Cause.INPUTS_DRIFTED, tables=("t0",), since_step=600, evidence=EVIDENCE)
SLOW = DriftChange(cause=Cause.NODE_SLOW, ranks=(1,), since_step=600, evidence=EVIDENCE)


def plan_in_force(story: Story) -> str:
    """Return the hash of the plan that the newest workers mount."""
    workers = story.world.of_kind("Job", names.WORKER)[-1]
    volumes = {each["name"]: each for each in workers["spec"]["template"]["spec"]["volumes"]}
    return content_hash(story.world.objects["ConfigMap", volumes["plan"]["configMap"]["name"]])


def report(
    story: Story,
    *changes: DriftChange,
    step: int = 5_000,
    embedding_ms: float = 5.0,
    plan: str | None = None,
    **fields: Any,
) -> DriftReport:
    """Let the workers report steps, progress, drift, and inputs under the plan in force."""
    plan = plan or plan_in_force(story)
    drift = training_builders.drift_report(
        plan_sha256=plan,
        last_step=step,
        changes=changes,
        **{"checkpoint_ms": 1_000.0, "start_ms": 2_000.0, **fields},
    )
    ranks = tuple(builders.rank_times(rank, forward_compute_ms=embedding_ms - 4.0) for rank in (0, 1))
    files = {
        "step-report.json": builders.step_report(plan_sha256=plan, ranks=ranks, first_step=step - 100),
        "progress.json": builders.progress(step=step, num_steps=100_000),
        "drift-report.json": drift,
        "input-statistics.json": training_builders.input_statistics(plan_sha256=plan),
    }
    story.world.publish("job-report", {name: each.to_json().encode() for name, each in files.items()})
    return drift


def replaced(story: Story) -> Story:
    """Let the old workers end, and the new ones start."""
    story.bury()
    story.start_workers()
    return story


def candidate(story: Story) -> Story:
    """Let the inputs of a job drift, and its candidate be planned."""
    report(story, DRIFTED)
    story.later(60)
    return story.do(names.PLANNER)


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
    """It has the trainer's own line; the same change in the next report is no second event."""
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
    assert (old["hash"], old["reason"], old["measuredMicroseconds"]) == (f"sha256:{before}", "PlanWritten", 5_000)
    assert (new["hash"], new["reason"], new["fromStep"]) == (f"sha256:{after}", "InputsDrifted", 5_000)
    assert (new["promisedGainPercent"], new["measuredGainPercent"]) == (21, 10)
    assert story.condition("PlanCurrent")["reason"] == "PlanReplaced"
    assert story.reasons().count("PlanReplaced") == 1


@pytest.mark.parametrize(
    "fields",
    [{"replanning": {"mode": "Off"}}, {"planner": {"shardingGroups": {}}}],
    ids=["off", "groups"],
)
def test_mode_off_and_groups_only_say_that_steps_are_slower(fields: dict[str, Any]) -> None:
    """No planner runs: plans near one with groups of devices are not made."""
    story = Story(**VOLUME, **fields).running()
    planners = story.jobs(names.PLANNER)
    report(story, DRIFTED)
    story.later(60)

    assert story.condition("Steady")["reason"] == "InputsDrifted"
    assert (story.jobs(names.PLANNER), "replanning" in story.status) == (planners, False)


def test_without_a_checkpoint_volume_mode_auto_only_suggests() -> None:
    """A restart would begin at step 0."""
    story = candidate(Story(replanning={"mode": "Auto"}).running())
    story.later(60)

    assert story.condition("PlanCurrent")["reason"] == "PriceUnknown"
    assert "checkpoints are not kept" in story.condition("PlanCurrent")["message"]
    assert story.seen == ("Running", "AllWorkersReady")


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


def test_a_planner_that_fails_leaves_the_training_alone() -> None:
    """The failure is shown, and the same change is planned for again after twice the cooldown alone."""
    story = Story(**AUTO).running()
    report(story, DRIFTED)
    story.later(60)
    story.fail(names.PLANNER, 3)
    planners = story.jobs(names.PLANNER)
    report(story, DRIFTED, step=9_000)
    story.later(3_000)

    assert story.condition("PlanCurrent")["reason"] == "CandidateFailed"
    assert (story.seen, story.jobs(names.PLANNER)) == (("Running", "AllWorkersReady"), planners)
    story.later(600)
    assert story.condition("PlanCurrent")["reason"] == "PlanningCandidate"
    assert story.status["replanning"]["candidate"]["number"] == 2


def test_drift_that_grows_is_planned_for_again() -> None:
    """The gain was too small; after twice the cooldown the planner counts the inputs as they are then."""
    story = Story(**AUTO).running()
    story.world.training_job(JOB)["spec"]["replanning"]["minGainPercent"] = 60
    candidate(story)
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


def test_a_plan_that_workers_ran_under_needs_no_further_approval() -> None:
    """The annotation names a candidate that is not taken, since the inputs returned; then a worker fails."""
    story = Story(**VOLUME, launchPolicy="Manual").planned()
    key = "training.neuroshard.dev/approved-plan"
    story.annotate(key, story.status["plan"]["configMapRef"]["name"])
    story.start_workers()
    before = plan_in_force(story)
    candidate(story)
    found = story.status["replanning"]["candidate"]
    report(story, step=5_300)
    story.later(60)
    story.annotate(key, found["planName"])
    story.later(60)
    story.fail(names.WORKER, 1)
    story.later(400)
    story.start_workers()

    assert (story.status["restarts"], story.seen) == (1, ("Running", "AllWorkersReady"))
    assert plan_in_force(story) == before
    assert story.condition("Approved")["status"] == "True"


def test_one_restart_at_a_time_follows_from_a_report() -> None:
    """Of drift and a slow node at once: the workers leave the node, and no plan is announced that is not taken."""
    story = Story(**AUTO).running()
    report(story, DRIFTED)
    story.later(60)
    for pod in story.pods(names.PLANNER):
        story.world.work(pod)
    slow = SLOW.model_copy(update={"ranks": _ranks(1)})
    report(story, DRIFTED, slow, step=5_100, recent=_recent(slow=1))
    story.later(60)
    further = story.status["replanning"]

    assert [each["reason"] for each in further["history"]] == ["PlanWritten", "NodeSlow"]
    assert ("accepted" in further, further["replans"]) == (False, 1)
    assert ("SlowNode" in story.reasons(), "PlanReplaced" in story.reasons()) == (True, False)
    assert story.condition("PlanCurrent")["reason"] != "PlanReplaced"
    assert story.condition("Steady")["status"] == "False"


def test_what_a_slow_node_cost_before_a_restart_pays_for_no_other() -> None:
    """The change began at step 600; the loss since the last restart alone counts for the next slow node."""
    story = Story(trainer={"numNodes": 3}, **VOLUME, replanning={"mode": "Auto", "cooldownSeconds": 60}).running()
    report(story, SLOW.model_copy(update={"ranks": _ranks(1)}), recent=_recent(slow=1))
    story.later(60)
    replaced(story)
    assert story.status["replanning"]["replans"] == 1
    story.later(3_600)
    report(story, SLOW.model_copy(update={"ranks": _ranks(0)}), step=5_020, recent=_recent(slow=0))
    story.later(60)
    assert story.status["replanning"]["replans"] == 1
    report(story, SLOW.model_copy(update={"ranks": _ranks(0)}), step=9_000, recent=_recent(slow=0))
    story.later(60)

    assert story.status["replanning"]["replans"] == 2


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


def under_own_plan(spec: dict[str, Any]) -> Story:
    """Return a job that trains under its user's plan."""
    [plan] = Story().planned().world.of_kind("ConfigMap", names.PLAN)
    story = Story(**VOLUME, **spec)
    story.world.put({"kind": "ConfigMap", "metadata": {"name": "own-plan"}, "data": plan["data"]})
    story.later(15)
    story.start_workers()
    return story


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"planRef": {"name": "own-plan", "key": "plan.json"}}, "spec.planRef"),
        ({"planner": {"shardingGroups": {}}}, "spec.planner.shardingGroups"),
    ],
    ids=["planRef", "groups"],
)
def test_a_job_without_candidates_says_so_once_its_inputs_drift(spec: dict[str, Any], words: str) -> None:
    """With the field and the remedy, and no planner; once the inputs are as before, that is what the condition says."""
    story = under_own_plan(spec) if "planRef" in spec else Story(**VOLUME, **spec).running()
    planners = story.jobs(names.PLANNER)
    report(story)
    story.later(60)
    assert "PlanCurrent" not in {each["type"] for each in story.status["conditions"]}
    report(story, DRIFTED, step=5_100)
    story.later(60)
    current = story.condition("PlanCurrent")
    report(story, step=5_200)
    story.later(60)

    assert (current["status"], current["reason"]) == ("Unknown", "CandidateUnsupported")
    assert words in current["message"]
    assert "hint: " in current["message"]
    assert story.jobs(names.PLANNER) == planners
    assert "candidate" not in story.status.get("replanning", {})
    assert story.condition("PlanCurrent")["reason"] == "InputsReturned"


def test_every_cause_and_verdict_is_the_reason_of_a_condition() -> None:
    """But for the one about slow nodes, which restart the workers and have no condition."""
    values = {each.value for each in Reason}

    assert {each.value for each in Cause} <= values
    assert {each.value for each in Verdict} - values == {Verdict.RESTART_PAYS.value}


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


def test_workers_leave_a_slow_node_in_mode_auto() -> None:
    """All start again, uncounted, and prefer other nodes; the plan stays."""
    story = Story(**AUTO).running()
    before = plan_in_force(story)
    node = next(pod["spec"]["nodeName"] for pod in story.pods(names.WORKER) if _index(pod) == 1)
    report(story, SLOW.model_copy(update={"ranks": _ranks(1)}), recent=_recent(slow=1))
    story.later(60)
    replaced(story)
    spec = story.world.of_kind("Job", names.WORKER)[-1]["spec"]["template"]["spec"]
    [preferred] = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    further = story.status["replanning"]

    assert preferred["preference"]["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 0)
    assert (plan_in_force(story), story.seen) == (before, ("Running", "AllWorkersReady"))
    assert ([each["name"] for each in further["avoidedNodes"]], further["replans"]) == ([node], 1)
    assert [each["reason"] for each in further["history"]] == ["PlanWritten", "NodeSlow"]
    assert story.reasons().count("SlowNode") == 1


@pytest.mark.parametrize("spec", [VOLUME, {**VOLUME, "replanning": {"mode": "Auto", "avoidSlowNodes": False}}])
def test_workers_stay_on_a_slow_node_otherwise(spec: dict[str, Any]) -> None:
    """In mode Suggest, and where the user wants it so; the condition says that it is slow."""
    story = Story(**spec).running()
    report(story, SLOW.model_copy(update={"ranks": _ranks(1)}), recent=_recent(slow=1))
    story.later(60)

    assert (story.condition("Steady")["reason"], story.seen) == ("NodeSlow", ("Running", "AllWorkersReady"))
    assert story.status["restarts"] == 0


def test_metrics_count_slow_downs_restarts_and_gains() -> None:
    """Once each, from the statuses that were written."""
    story = Story(**AUTO).running()
    candidate(story)
    replaced(story)
    report(story, step=5_200, embedding_ms=4.5)
    story.later(60)
    metrics = Metrics()
    statuses = [read_status(each) for each in story.world.statuses]
    for before, after in itertools.pairwise(statuses):
        metrics.status_written(before, after)
    value = metrics.registry.get_sample_value

    assert value("neuroshard_drift_total", {"cause": "InputsDrifted"}) == 1
    assert value("neuroshard_replans_total", {"reason": "InputsDrifted"}) == 1
    for gain, below, above in (("promised", "0.2", "0.5"), ("measured", "0.05", "0.1")):
        name = f"neuroshard_replan_{gain}_gain_ratio_bucket"
        assert (value(name, {"le": below}), value(name, {"le": above})) == (0, 1)


@pytest.mark.parametrize("dies_after", range(1, 25))
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


@settings(max_examples=15, deadline=None)
@given(reports=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([60, 900, 4_000])), min_size=5, max_size=25))
def test_no_sequence_of_reports_restarts_a_job_too_often(reports: Sequence[tuple[int, int]]) -> None:
    """Changes that come and go, each at another step: never more than maxReplans restarts, each after the cooldown."""
    story = Story(**VOLUME, replanning={"mode": "Auto", "maxReplans": 2, "cooldownSeconds": 600}).running()
    step, starts = 5_000, []
    for kind, seconds in reports:
        step += 1_000
        changes = () if kind == 0 else (DRIFTED.model_copy(update={"since_step": step - 100 * kind}),)
        report(story, *changes, step=step, embedding_ms=4.2 + 0.2 * kind)
        story.later(seconds)
        story.do(names.PLANNER)
        replaced(story)
        starts = [each["startTime"] for each in story.status.get("replanning", {}).get("history", ())][1:]

    assert len(starts) <= 2
    assert len(starts) == story.status.get("replanning", {}).get("replans", 0)
    times = [datetime.fromisoformat(each) for each in starts]
    assert all(after - before >= timedelta(seconds=600) for before, after in itertools.pairwise(times))
    assert story.world.doubled == []


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


def _index(pod: dict[str, Any]) -> int:
    return int(pod["metadata"]["labels"][names.POD_INDEX_LABEL])


def _ranks(index: int) -> tuple[int, ...]:
    """Return the ranks of a worker."""
    per_node = builders.job(trainer={"numNodes": 2}).spec.trainer.devices_per_node
    return tuple(range(per_node * index, per_node * (index + 1)))


def _recent(*, slow: int) -> tuple[Any, ...]:
    """Return the times of two ranks, of which one computes for longer."""
    return tuple(
        builders.rank_times(rank, forward_compute_ms=4.0 if rank == slow else 1.0, step_ms=12.0) for rank in (0, 1)
    )
