"""Planning: the plan's ConfigMap, plans of one's own, fallbacks, approval."""

import json
from typing import Any

import pytest
from neuroshard_api.documents.config_map import contents_of, unpack_files
from neuroshard_api.documents.levers import Lever, LeverName
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import ServedTables
from neuroshard_api.documents.request import Algorithm, PlanRequest
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.job.plan_request import dense_signature
from neuroshard_api.job.training_job import APPROVED_PLAN_ANNOTATION, DLRMTrainingJob
from neuroshard_decisions import names
from neuroshard_decisions.stages.input_hashes import plan_inputs_hash
from support import builders
from support.operator.operator_process import JOB, TWO_NODES, Story


def test_the_plan_is_kept_immutable_under_its_hash() -> None:
    """The planner's result is copied once, and the workers get the copy."""
    story = Story().planned()

    [plan] = story.world.of_kind("ConfigMap", names.PLAN)
    assert plan["immutable"]
    assert plan["metadata"]["name"] == story.status["plan"]["configMapRef"]["name"]
    assert names.short(story.status["plan"]["hash"]) in plan["metadata"]["name"]
    assert story.condition("Planned")["reason"] == "PlanWritten"
    assert story.status["cost"]["predicted"]["totalMicroseconds"] > 0


def test_what_would_help_is_in_the_status_next_to_the_predicted_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the plan says it, with the field of the job; a plan that names nothing leaves the field out."""
    without = Story().planned()
    lever = Lever(
        name=LeverName.BATCH_SIZE,
        text="2,048 samples per device",
        total_ms=0.75,
        num_samples=4096,
        saved_share=0.25,
        option="--batch-size 2048",
        field="spec.model.batchSizePerDevice: 2048",
    )
    made = builders.plan
    monkeypatch.setattr(builders, "plan", lambda *args, **fields: made(*args, **{"levers": (lever,), **fields}))

    story = Story().planned()

    assert "levers" not in without.status["cost"]
    assert story.status["cost"]["levers"] == [
        {
            "name": "batch_size",
            "text": lever.text,
            "totalMicroseconds": 750,
            "numSamples": 4096,
            "savedPercent": 25,
            "field": lever.field,
        }
    ]


AUTO_BATCH = {**builders.job_data()["spec"]["model"], "batchSizePerDevice": "Auto"}


def asked_of(story: Story) -> list[PlanRequest]:
    """Return the requests of all planners of the job."""
    files = [unpack_files(contents_of(each)) for each in story.world.of_kind("ConfigMap", names.REQUEST)]
    return [PlanRequest.from_json(each["request.json"]) for each in files]


def test_a_batch_that_the_plan_chooses_is_in_the_status_with_its_learning_rates() -> None:
    """The planner is given the sizes; the status, the condition, and the message have what it chose."""
    story = Story(model=AUTO_BATCH).planned()

    [asked] = asked_of(story)
    assert asked.batch_sizes[0] == 512
    assert asked.batch_sizes[-1] == 65_536
    assert story.status["batch"] == {
        "samplesPerDevice": 8192,
        "embeddingLearningRate": "0.02",
        "denseLearningRate": "0.001",
    }
    assert "8,192 samples per device, embedding learning rate 0.02" in story.condition("Planned")["message"]
    assert "batch" not in Story().planned().status


def test_a_job_that_is_planned_again_keeps_the_batch_that_was_chosen() -> None:
    """A training that resumes under another plan goes on with the same steps."""
    story = Story(model=AUTO_BATCH).planned()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.world.change_spec(JOB, suspend=False, planner={"algorithm": "SizeGreedy"})
    story.settle()

    again = next(each for each in asked_of(story) if each.algorithm is Algorithm.SIZE_GREEDY)
    assert again.batch_choices is None
    assert again.batch_sizes == (8192,)


def test_the_dense_part_is_counted_before_the_planner_starts() -> None:
    """The trainer's image counts it from the job's model; the planner reads what it wrote."""
    story = Story(trainer={**TWO_NODES, "image": "mine/trainer:1"}).do(names.PROFILER)

    [pod] = story.pods(names.PLANNER)
    [counter], [planner] = pod["spec"]["initContainers"], pod["spec"]["containers"]
    written = counter["command"][counter["command"].index("--out") + 1]
    assert counter["image"] == "mine/trainer:1"
    assert counter["command"][:3] == ["python", "-m", "neuroshard_trainer.dense_profile"]
    assert planner["command"][planner["command"].index("--dense") + 1] == written
    [asked] = story.world.of_kind("ConfigMap", names.REQUEST)
    files = unpack_files(contents_of(asked))
    counted = DLRMTrainingJob.from_data(json.loads(files["job.json"]), where="job.json")
    assert dense_signature(counted) == dense_signature(builders.job())
    assert set(counter["command"]) >= {f"/neuroshard/request/{name}" for name in files}


@pytest.mark.parametrize(
    "spec",
    [
        {"experimental": {"planner": {"denseMemoryPerDevice": "2Gi"}}},
        {"trainer": {**TWO_NODES, "command": ["python", "train.py"]}},
    ],
    ids=["a given size", "a trainer of your own"],
)
def test_a_dense_part_that_is_given_or_unknown_is_not_counted(spec: dict[str, Any]) -> None:
    """The planner's pod is what it was without counting."""
    story = Story(**spec).do(names.PROFILER)

    [pod] = story.pods(names.PLANNER)
    assert "initContainers" not in pod["spec"]
    assert "--dense" not in pod["spec"]["containers"][0]["command"]
    [asked] = story.world.of_kind("ConfigMap", names.REQUEST)
    assert list(unpack_files(contents_of(asked))) == ["request.json"]


def test_another_dense_optimizer_asks_for_another_plan() -> None:
    """Its state takes other memory, unless the job says how much the dense part needs."""
    adam, sgd = builders.job().spec, builders.job(training={"denseOptimizer": "SGD"}).spec
    given = {"planner": {"denseMemoryPerDevice": "2Gi"}}
    adam_given = builders.job(experimental=given).spec
    sgd_given = builders.job(experimental=given, training={"denseOptimizer": "SGD"}).spec

    assert plan_inputs_hash(adam, None, replans=0) != plan_inputs_hash(sgd, None, replans=0)
    assert plan_inputs_hash(adam_given, None, replans=0) == plan_inputs_hash(sgd_given, None, replans=0)


def test_a_plan_that_was_deleted_comes_back_under_running_workers() -> None:
    """It is copied again from the planner's result; nothing is planned or started again."""
    story = Story().running()
    plan = story.lose(names.PLAN)
    story.settle()

    [again] = story.world.of_kind("ConfigMap", names.PLAN)
    assert again["metadata"]["name"] == plan["metadata"]["name"]
    assert again["data"] == plan["data"]
    assert story.seen == ("Running", "AllWorkersReady")
    assert story.jobs(names.WORKER) == ["job-worker-0"]


def test_a_plan_that_was_replaced_by_hand_is_put_right() -> None:
    """A ConfigMap whose content is not what its name says is deleted and made again."""
    story = Story().planned()
    [plan] = story.world.of_kind("ConfigMap", names.PLAN)
    content = plan["data"]["plan.json"]
    plan["data"]["plan.json"] = content.replace("neuroshard", "random", 1)
    story.world.touch(plan)
    story.settle()

    [again] = story.world.of_kind("ConfigMap", names.PLAN)
    assert again["data"]["plan.json"] == content
    assert "ChildRepaired" in story.reasons()


def test_a_plan_that_is_lost_with_its_source_is_made_again_under_running_workers() -> None:
    """Equal questions have equal answers: the workers go on under the same plan."""
    story = Story().running()
    plan, _ = story.lose(names.PLAN), story.lose(names.PLANNER)
    story.later(31)
    assert story.seen == ("Running", "AllWorkersReady")
    assert story.condition("Planned")["reason"] == "PlannerRunning"
    story.do(names.PLANNER)

    [again] = story.world.of_kind("ConfigMap", names.PLAN)
    assert again["data"] == plan["data"]
    assert story.seen == ("Running", "AllWorkersReady")
    assert story.jobs(names.WORKER) == ["job-worker-0"]


def test_no_plan_that_fits_is_told_in_the_planners_words() -> None:
    """Exit code 3 of the planner is infeasible, and not retried."""
    story = Story().do(names.PROFILER)
    story.fail(names.PLANNER, 3)

    assert story.seen == ("Failed", "Infeasible")


@pytest.mark.parametrize("code", [1, 3, 9, 137, None], ids=str)
def test_the_fallback_plans_when_the_algorithm_fails(code: int | None) -> None:
    """By an exit code, or by its time limit: the second planner is asked for it, and the job goes on with its plan."""
    story = Story(planner={"fallbackAlgorithm": "DimGreedy"}).do(names.PROFILER)
    if code is None:
        story.time_out(names.PLANNER)
    else:
        story.fail(names.PLANNER, code)
    assert story.seen == ("Planning", "FallbackPlannerRunning")
    story.do(names.PLANNER)

    assert story.status["stage"] == "Launching"
    assert len(story.jobs(names.PLANNER)) == 2


@pytest.mark.parametrize("code", [2, 4, 5, 6, 8], ids=str)
def test_no_fallback_plans_after_what_every_algorithm_meets(code: int) -> None:
    """Input, cost models, packages, and storage: the job fails with the planner's sentence."""
    story = Story(planner={"fallbackAlgorithm": "DimGreedy"}).do(names.PROFILER)
    story.fail(names.PLANNER, code)

    assert story.status["stage"] == "Failed"


def given_plan(world_size: int) -> dict[str, Any]:
    """Return a ConfigMap with a plan for the story's tables."""
    model = builders.job().spec.model.inline_tables(JOB)
    assert model is not None
    request = builders.request(*model.tables, num_devices=world_size)
    plan: Plan = builders.plan(request)
    return {"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"plan.json": plan.to_json()}}


def test_a_plan_of_ones_own_skips_both_stages() -> None:
    """The plan is copied, so that a later change of the user's ConfigMap does not reach the workers."""
    story = Story(planRef={"name": "mine"})
    assert story.seen == ("Pending", "InputMissing")
    story.world.put(given_plan(2))
    story.later(15)

    assert story.status["stage"] == "Launching"
    assert story.condition("Planned")["reason"] == "PlanGiven"
    assert [stage["state"] for stage in story.status["stages"][:2]] == ["Skipped", "Skipped"]


def test_a_plan_for_another_world_size_is_refused() -> None:
    """The sentence names both numbers."""
    story = Story(planRef={"name": "mine"})
    story.world.put(given_plan(4))
    story.later(15)

    assert story.seen == ("Failed", "WorldSizeMismatch")
    assert "4 devices, the job has 2" in story.status["message"]


def test_a_plan_with_servers_that_the_job_lacks_is_refused() -> None:
    """The workers would wait for them; the sentence comes before any of them starts."""
    story = Story(planRef={"name": "mine"})
    given = given_plan(2)
    plan = Plan.from_data(json.loads(given["data"]["plan.json"]))
    *near, far = plan.tables
    pool = ServerPool(count=1, memory_bytes=2**33, tables=(far.name,))
    served = ServedTables(tables=(far,))
    fields = {"tables": tuple(near), "servers": served, "request": plan.request.model_copy(update={"servers": pool})}
    story.world.put({**given, "data": {"plan.json": plan.model_copy(update=fields).to_json()}})
    story.later(15)

    assert story.seen == ("Failed", "WorldSizeMismatch")
    assert "1 processes of embedding servers, the job has none" in story.status["message"]


def test_plan_only_ends_with_the_plan() -> None:
    """Nothing is launched."""
    story = Story(launchPolicy="PlanOnly").planned()

    assert story.seen == ("Succeeded", "PlanOnly")
    assert story.jobs(names.WORKER) == []


def test_a_manual_launch_waits_for_the_approval_of_this_plan() -> None:
    """An approval that names another plan does not count."""
    story = Story(launchPolicy="Manual").planned()
    assert story.seen == ("Launching", "WaitingForApproval")
    story.annotate(APPROVED_PLAN_ANNOTATION, "another")
    assert story.seen == ("Launching", "WaitingForApproval")
    story.annotate(APPROVED_PLAN_ANNOTATION, story.status["plan"]["configMapRef"]["name"])

    assert story.jobs(names.WORKER) == ["job-worker-0"]


def test_tables_that_are_broken_for_a_moment_are_waited_for() -> None:
    """Somebody writes them while the hardware is profiled: they could be read before, and can be soon after."""
    source = {"configMapKeyRef": {"name": "mine", "key": "tables.json"}}
    tables = {
        "schema_version": "table-set/v1",
        "name": "mine",
        "tables": [{"name": "t", "num_embeddings": 1000, "embedding_dim": 16, "pooling_factor": 1.0}],
    }
    story = Story(suspend=True, model={"embeddingTablesFrom": source, "batchSizePerDevice": 64})
    mine = story.world.put(
        {"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"tables.json": json.dumps(tables)}}
    )
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    assert story.status["stage"] == "Profiling"
    mine["data"]["tables.json"] = '{"schema_version": '
    story.world.touch(mine)
    story.do(names.PROFILER)
    assert (story.status["stage"], story.status["reason"]) == ("Pending", "InvalidInput")
    assert "is read again every 15 s" in story.status["message"]
    mine["data"]["tables.json"] = json.dumps(tables)
    story.later(16)

    assert story.status["stage"] == "Planning"
