"""What holds further plans and restarts up: placements, jobs without candidates, budgets, and slow nodes."""

import itertools
import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.replanning.decision import COOLDOWN_S
from neuroshard_decisions import names
from support import builders
from support.depth import generated
from support.operator.operator_process import Story
from support.operator.replanning_story import AUTO, DRIFTED, SLOW, VOLUME, candidate, plan_in_force, replaced, report


def test_a_candidate_with_the_placement_in_force_restarts_nothing() -> None:
    """Neither in mode Auto, nor with a better measurement of that placement from before, nor when it is approved."""
    story = Story(**AUTO).running()
    before, workers = plan_in_force(story), story.jobs(names.WORKER)
    story.world.candidate_moves = 0
    candidate(story)
    current, found = story.condition("PlanCurrent"), story.status["replanning"]["candidate"]
    story.annotate("training.neuroshard.dev/approved-plan", found["planName"])
    story.later(60)

    assert (current["status"], current["reason"]) == ("True", "NoBetterPlan")
    assert "the same placement" in current["message"]
    assert (plan_in_force(story), story.jobs(names.WORKER)) == (before, workers)
    assert "replans" not in story.status["replanning"]


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


def test_changes_of_deduplicated_features_alone_are_not_planned_for() -> None:
    """The condition names them until the inputs return; another change in the same report gets a candidate."""
    story = Story(**AUTO).running()
    planners = story.jobs(names.PLANNER)
    left_out = {"changed_features": ("item",), "without_repeats": ("item",)}
    report(story, DRIFTED, inputs=left_out)
    story.later(60)
    current = story.condition("PlanCurrent")
    report(story, step=5_100, inputs={"without_repeats": ("item",)})
    story.later(60)

    assert (current["status"], current["reason"]) == ("Unknown", "CandidateUnsupported")
    assert "only deduplicated features changed ('item')" in current["message"]
    assert (story.jobs(names.PLANNER), "replanning" in story.status) == (planners, False)
    assert story.condition("PlanCurrent")["reason"] == "InputsReturned"
    report(story, DRIFTED, step=5_200, inputs={**left_out, "without_repeats": ("user",)})
    story.later(60)
    assert story.status["replanning"]["candidate"]["number"] == 1


def test_without_a_checkpoint_volume_mode_auto_only_suggests() -> None:
    """A restart would begin at step 0."""
    story = candidate(Story(replanning={"mode": "Auto"}).running())
    story.later(60)

    assert story.condition("PlanCurrent")["reason"] == "PriceUnknown"
    assert "checkpoints are not kept" in story.condition("PlanCurrent")["message"]
    assert story.seen == ("Running", "AllWorkersReady")


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
    story = Story(trainer={"numNodes": 3}, **VOLUME, replanning={"mode": "Auto"}).running()
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


@pytest.mark.parametrize("spec", [VOLUME, {**AUTO, "experimental": {"avoidSlowNodes": False}}])
def test_workers_stay_on_a_slow_node_otherwise(spec: dict[str, Any]) -> None:
    """In mode Suggest, and where the user wants it so; the condition says that it is slow."""
    story = Story(**spec).running()
    report(story, SLOW.model_copy(update={"ranks": _ranks(1)}), recent=_recent(slow=1))
    story.later(60)

    assert (story.condition("Steady")["reason"], story.seen) == ("NodeSlow", ("Running", "AllWorkersReady"))
    assert story.status["restarts"] == 0


def test_a_report_without_a_rank_moves_no_workers() -> None:
    """A rank that stopped reporting is not a slow one, and not its peers' measure: the report cannot be used."""
    story = Story(**AUTO).running()
    drift = report(story, SLOW.model_copy(update={"ranks": _ranks(1)}), recent=_recent(slow=1))
    raw = {**json.loads(drift.to_json()), "recent": [each.model_dump(mode="json") for each in _recent(slow=1)[:1]]}
    published = story.world.objects["ConfigMap", "job-report"]["data"]
    files = {**published, "drift-report.json": json.dumps(raw)}
    story.world.publish("job-report", {name: text.encode() for name, text in files.items()})
    story.later(60)
    steady = story.condition("Steady")

    assert (steady["status"], steady["reason"]) == ("Unknown", "UnusableReport")
    assert "must be those of the reference" in steady["message"]
    assert (story.seen, story.status["restarts"]) == (("Running", "AllWorkersReady"), 0)
    assert "replanning" not in story.status


@generated(4, 15)
@given(reports=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([60, 900, 4_000])), min_size=5, max_size=25))
def test_no_sequence_of_reports_restarts_a_job_too_often(reports: Sequence[tuple[int, int]]) -> None:
    """Changes that come and go, each at another step: never more than maxReplans restarts, each after the cooldown."""
    story = Story(**VOLUME, replanning={"mode": "Auto", "maxReplans": 2}).running()
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
    assert all(after - before >= timedelta(seconds=COOLDOWN_S) for before, after in itertools.pairwise(times))
    assert story.world.doubled == []


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
