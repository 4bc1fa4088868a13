"""The course of a job, stage by stage, against a cluster in memory: what a user sees, and what is made for it."""

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import builders
import pytest
from neuroshard_api.config_map import pack_files
from neuroshard_api.plan import Plan
from neuroshard_api.training_job import APPROVED_PLAN_ANNOTATION
from neuroshard_operator import names
from neuroshard_operator.api import ApiError
from operator_world import NAMESPACE, SETTINGS, OperatorProcess, World, owners, profile_files

JOB = "job"
KEY = (NAMESPACE, JOB)
TWO_NODES = {"numNodes": 2}


class Story:
    """A world with one job, told in the words of what happens."""

    def __init__(self, **spec: Any) -> None:
        """Submit the job."""
        self.world = World()
        self.operator = OperatorProcess(self.world)
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

    def settle(self) -> None:
        """Let the operator look until it wants nothing more."""
        for _ in range(20):
            self.world.run_job_controller()
            self.world.catch_up()
            if asyncio.run(self.operator.look(KEY)):
                return
        raise AssertionError("the operator does not come to rest")

    def later(self, seconds: float) -> None:
        """Let time pass, and the operator look."""
        self.world.now += timedelta(seconds=seconds)
        self.settle()

    def pods(self, role: str) -> list[dict[str, Any]]:
        """Return the pods of a role that have not ended."""
        found = self.world.of_kind("Pod", role)
        return [pod for pod in found if pod["status"]["phase"] not in {"Succeeded", "Failed"}]

    def do(self, role: str) -> "Story":
        """Let the one pod of a stage do its work."""
        [pod] = self.pods(role)
        self.world.work(pod)
        self.settle()
        return self

    def planned(self) -> "Story":
        """Go on until there is a plan."""
        return self.do(names.PROFILER).do(names.PLANNER)

    def running(self) -> "Story":
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

    def bury(self) -> None:
        """Let every pod be gone that was asked to go."""
        for pod in self.world.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                self.world.finish_deletion(pod)
        self.settle()

    def jobs(self, role: str) -> list[str]:
        """Return the names of the Jobs of a role."""
        return [job["metadata"]["name"] for job in self.world.of_kind("Job", role)]

    def annotate(self, key: str, value: str) -> None:
        """Annotate the job."""
        job = self.world.training_job(JOB)
        job["metadata"].setdefault("annotations", {})[key] = value
        self.world._touch(job)
        self.settle()

    def reasons(self) -> list[str]:
        """Return the reasons of the events."""
        return [event["reason"] for event in self.world.events]


# Profiling


def test_a_new_job_is_profiled_first() -> None:
    """The profiler's Job is made together with what lets it publish, and the status says so at once."""
    story = Story()

    assert story.seen == ("Profiling", "ProfilerRunning")
    [job] = story.world.of_kind("Job", names.PROFILER)
    assert job["spec"]["backoffLimit"] == 2
    assert job["spec"]["activeDeadlineSeconds"] == 1800
    [role] = story.world.of_kind("Role")
    [rule] = role["rules"]
    assert rule["verbs"] == ["patch"]
    assert rule["resourceNames"] == [f"{job['metadata']['name']}-result"]


def test_the_profiler_runs_on_the_kind_of_node_that_the_workers_get() -> None:
    """Selector and tolerations are the workers', and the product of the commonest fitting node is kept to."""
    selector = {"pool": "gpu"}
    taints = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    world = World()
    gpu = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "143771"}
    world.nodes = [{"metadata": {"name": "n", "labels": {**gpu, "pool": "gpu"}}}]
    operator = OperatorProcess(world)
    limits = {"limits": {"nvidia.com/gpu": 8}}
    world.submit(
        JOB,
        trainer={"numNodes": 1, "resourcesPerNode": limits},
        podTemplate={"spec": {"nodeSelector": selector, "tolerations": taints}},
    )
    world.catch_up()
    asyncio.run(operator.look(KEY))

    [job] = world.of_kind("Job", names.PROFILER)
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200", "pool": "gpu"}
    assert pod["tolerations"] == taints
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert world.status(JOB)["hardware"]["gpuProduct"] == "NVIDIA-H200"


def test_a_profile_outlives_its_job_and_serves_the_next() -> None:
    """A second job on equal hardware skips profiling."""
    story = Story().planned()
    [profile] = story.world.of_kind("ConfigMap", names.PROFILE)
    assert owners(profile) == []
    story.world.submit("second")
    story.world.catch_up()
    asyncio.run(story.operator.look((NAMESPACE, "second")))

    status = story.world.status("second")
    assert status["stage"] == "Planning"
    assert status["profile"]["cached"]
    assert status["conditions"][0]["reason"] == "CacheHit"


def test_two_jobs_on_equal_hardware_do_not_both_profile() -> None:
    """The second waits for the first one's profile."""
    story = Story()
    story.world.submit("second")
    story.world.catch_up()
    asyncio.run(story.operator.look((NAMESPACE, "second")))

    assert story.world.status("second")["reason"] == "WaitingForProfile"
    assert len(story.jobs(names.PROFILER)) == 1


def test_a_profile_that_was_damaged_is_made_anew() -> None:
    """Weights that are not the manifest's are not used for a plan."""
    story = Story().do(names.PROFILER)
    [profile] = story.world.of_kind("ConfigMap", names.PROFILE)
    name = profile["metadata"]["name"]
    damaged = pack_files({**profile_files(), "weights.safetensors": b"other"})
    profile |= {"data": dict(damaged.data), "binaryData": dict(damaged.binary_data)}
    story.world._touch(profile)
    story.settle()

    assert "ChildRepaired" in story.reasons()
    assert story.world.objects["ConfigMap", name]["binaryData" if damaged.binary_data else "data"] != damaged.data


def test_a_profiler_that_fails_ends_the_job_with_its_words() -> None:
    """The reason is the stage's, the message the pod's own, and the pod is recorded."""
    story = Story()
    story.fail(names.PROFILER, 1)

    assert story.seen == ("Failed", "ProfilingFailed")
    assert "exit 1" in story.status["message"]
    assert story.status["lastFailure"]["exitCode"] == 1
    assert story.status["lastFailure"]["nodeName"] == "node-0"
    assert story.reasons() == ["Failed"]


def test_a_profiler_that_publishes_nothing_ends_the_job() -> None:
    """The two watches get half a minute to bring the result; then it is missing."""
    story = Story()
    [pod] = story.pods(names.PROFILER)
    story.world.end_pod(pod, 0)
    story.settle()
    assert story.seen == ("Profiling", "ProfilerRunning")
    story.later(31)

    assert story.seen == ("Failed", "ProfileUnusable")


def test_cost_models_that_are_given_replace_profiling() -> None:
    """With policy Never the planner takes the bundled models of the device type."""
    story = Story(profiler={"policy": "Never", "deviceType": "h100-80gb"})

    assert story.seen == ("Planning", "PlannerRunning")
    [job] = story.world.of_kind("Job", names.PLANNER)
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("--bundle") + 1] == "h100-80gb"
    assert story.jobs(names.PROFILER) == []


# Planning


def test_the_plan_is_kept_immutable_under_its_hash() -> None:
    """The planner's result is copied once, and the workers get the copy."""
    story = Story().planned()

    [plan] = story.world.of_kind("ConfigMap", names.PLAN)
    assert plan["immutable"]
    assert plan["metadata"]["name"] == story.status["plan"]["configMapRef"]["name"]
    assert names.short(story.status["plan"]["hash"]) in plan["metadata"]["name"]
    assert story.condition("Planned")["reason"] == "PlanWritten"
    assert story.status["cost"]["predicted"]["totalMicroseconds"] > 0


def test_a_plan_that_was_deleted_comes_back_under_running_workers() -> None:
    """It is copied again from the planner's result; nothing is planned or started anew."""
    story = Story().running()
    [plan] = story.world.of_kind("ConfigMap", names.PLAN)
    story.world.remove("ConfigMap", plan["metadata"]["name"])
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
    story.world._touch(plan)
    story.settle()

    [again] = story.world.of_kind("ConfigMap", names.PLAN)
    assert again["data"]["plan.json"] == content
    assert "ChildRepaired" in story.reasons()


def test_no_plan_that_fits_is_told_in_the_planners_words() -> None:
    """Exit code 3 of the planner is infeasible, and not retried."""
    story = Story().do(names.PROFILER)
    story.fail(names.PLANNER, 3)

    assert story.seen == ("Failed", "Infeasible")


def test_the_fallback_plans_when_the_algorithm_fails() -> None:
    """The second planner is asked for the fallback algorithm, and the job goes on with its plan."""
    story = Story(planner={"fallbackAlgorithm": "DimGreedy"}).do(names.PROFILER)
    story.fail(names.PLANNER, 1)
    assert story.seen == ("Planning", "FallbackPlannerRunning")
    story.do(names.PLANNER)

    assert story.status["stage"] == "Launching"
    assert len(story.jobs(names.PLANNER)) == 2


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


# Workers


def test_workers_are_an_indexed_job_that_finds_itself() -> None:
    """All pods or none, host names by a Service, torchrun's settings in its variables, shared memory, time to stop."""
    story = Story().planned()

    [job] = story.world.of_kind("Job", names.WORKER)
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        2,
        2,
        0,
    )
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == "job-workers"
    assert pod["terminationGracePeriodSeconds"] == 300
    [container] = pod["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["PET_RDZV_ENDPOINT"] == "job-worker-0-0.job-workers:29500"
    assert env["PET_NNODES"] == "2"
    assert "dshm" in [mount["name"] for mount in container["volumeMounts"]]
    [service] = story.world.of_kind("Service")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]


def test_a_trainer_of_ones_own_gets_a_sidecar_that_publishes() -> None:
    """Its image need not know our command."""
    story = Story(trainer={"numNodes": 1, "image": "mine", "command": ["torchrun", "train.py"]}).planned()

    [job] = story.world.of_kind("Job", names.WORKER)
    pod = job["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["torchrun", "train.py"]
    [sidecar] = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    assert sidecar["command"][:2] == ["neuroshard", "publish"]


def test_a_job_that_trains_succeeds() -> None:
    """All workers ended well."""
    story = Story().running()
    assert story.seen == ("Running", "AllWorkersReady")
    for pod in story.pods(names.WORKER):
        story.world.end_pod(pod, 0)
    story.settle()

    assert story.seen == ("Succeeded", "TrainingCompleted")
    assert story.status["completionTime"]
    assert story.reasons() == ["Profiled", "Planned", "Running", "Succeeded"]


def test_what_the_workers_measure_is_held_beside_the_prediction() -> None:
    """Once at once, then at most every 30 s, and the last word in any case."""
    story = Story().running()
    digest = story.status["plan"]["hash"].removeprefix("sha256:")

    def report(compute_ms: float) -> None:
        ranks = (builders.rank_times(0, forward_compute_ms=compute_ms), builders.rank_times(1))
        document = builders.step_report(plan_sha256=digest, ranks=ranks)
        story.world.publish("job-report", {"step-report.json": document.to_json().encode()})
        story.settle()

    report(2.0)
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 5000
    predicted = story.status["cost"]["predicted"]["totalMicroseconds"]
    assert story.status["cost"]["errorPercent"] == round(100 * (5000 - predicted) / predicted)
    report(3.0)
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 5000
    story.later(31)
    assert story.status["cost"]["measured"]["totalMicroseconds"] == 6000


def test_a_report_under_another_plan_is_not_believed() -> None:
    """It was measured by workers of an earlier plan."""
    story = Story().running()
    story.world.publish("job-report", {"step-report.json": builders.step_report().to_json().encode()})
    story.settle()

    assert "measured" not in story.status["cost"]


# Failures


def test_a_failure_restarts_all_workers_with_the_same_plan() -> None:
    """The restart is recorded with its cause, then the next attempt starts."""
    story = Story().running()
    plan = story.status["plan"]
    story.fail(names.WORKER, 137)

    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]
    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 1)
    assert story.status["lastFailure"]["exitCode"] == 137
    assert story.status["plan"] == plan
    assert len(story.jobs(names.PLANNER)) == 1
    assert "WorkersRestarted" in story.reasons()


def test_new_workers_wait_until_the_old_ones_are_gone() -> None:
    """A pod that still ends holds GPUs and a checkpoint."""
    story = Story().running()
    story.world.end_pod(story.pods(names.WORKER)[0], 137)
    story.settle()
    assert story.seen == ("Launching", "WaitingForOldPods")
    assert story.jobs(names.WORKER) == ["job-worker-0"]
    story.bury()

    assert story.jobs(names.WORKER) == ["job-worker-0", "job-worker-1"]


def test_a_pod_on_a_lost_node_holds_nobody_up_for_ever() -> None:
    """A minute past its grace period it counts as gone."""
    story = Story().running()
    story.world.end_pod(story.pods(names.WORKER)[0], 137)
    story.settle()
    story.later(91)

    assert "job-worker-1" in story.jobs(names.WORKER)


def test_a_drained_node_does_not_count() -> None:
    """The pod says that the cluster took it away."""
    story = Story().running()
    story.fail(names.WORKER, 143, disruption="EvictionByEvictionAPI")

    assert (story.status["restarts"], story.status["restartsCountTowardsMax"]) == (1, 0)
    assert story.status["lastFailure"]["reason"] == "EvictionByEvictionAPI"


def test_wrong_input_is_not_tried_twice() -> None:
    """Exit code 2 ends the job."""
    story = Story().running()
    story.fail(names.WORKER, 2)

    assert story.seen == ("Failed", "WorkersFailed")


def test_restarts_end_at_their_limit() -> None:
    """Each pause is longer than the one before; the failure after the last restart ends the job."""
    story = Story(failurePolicy={"maxRestarts": 2}).running()
    for _ in range(2):
        story.fail(names.WORKER, 1)
        story.later(400)
        story.start_workers()
    story.fail(names.WORKER, 1)

    assert story.seen == ("Failed", "MaxRestartsExceeded")
    assert story.status["restarts"] == 2


def test_the_second_restart_waits_a_little() -> None:
    """A job that fails at once does not fill the cluster with pods."""
    story = Story().running()
    story.fail(names.WORKER, 1)
    story.start_workers()
    story.fail(names.WORKER, 1)
    assert story.seen == ("Launching", "WaitingToRestart")
    story.later(11)

    assert "job-worker-2" in story.jobs(names.WORKER)


def test_a_rule_can_ask_for_another_plan() -> None:
    """ReplanAndRestart plans with more memory held back, since equal questions have equal answers."""
    rule = {"action": "ReplanAndRestart", "onExitCodes": {"operator": "In", "values": [9]}}
    story = Story(failurePolicy={"rules": [rule]}).running()
    story.fail(names.WORKER, 9)

    assert story.seen == ("Planning", "PlannerRunning")
    requests = [each["data"]["request.json"] for each in story.world.of_kind("ConfigMap", names.REQUEST)]
    assert len({text for text in requests if '"reserve_fraction": 0.15' in text}) == 1


# Suspension and deadlines


@pytest.mark.parametrize("stage", ["profiling", "planning", "running"])
def test_a_suspended_job_has_no_pods_and_goes_on_where_it_was(stage: str) -> None:
    """Profile and plan stay; the workers start again without a restart being counted."""
    story = Story()
    if stage != "profiling":
        story.do(names.PROFILER)
    if stage == "running":
        story.do(names.PLANNER)
        story.start_workers()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    assert story.seen == ("Suspended", "SuspendedByUser")
    assert [pod for role in ("profiler", "planner", "worker") for pod in story.pods(role)] == []
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    if stage == "profiling":
        story.do(names.PROFILER)
    if stage != "running":
        story.do(names.PLANNER)
    story.start_workers()

    assert story.seen == ("Running", "AllWorkersReady")
    assert story.status["restarts"] == 0
    assert story.condition("Suspended")["status"] == "False"


def test_another_size_while_suspended_means_another_plan() -> None:
    """The profile stays."""
    story = Story().running()
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    story.world.change_spec(JOB, suspend=False, trainer={"numNodes": 3})
    story.settle()
    assert story.seen == ("Planning", "PlannerRunning")
    story.do(names.PLANNER)

    assert story.status["plan"]["worldSize"] == 3
    [job] = story.world.of_kind("Job", names.WORKER)
    assert job["spec"]["parallelism"] == 3


def test_a_queued_job_waits_for_kueue() -> None:
    """The Job is made suspended with Kueue's label, and the operator leaves the switch alone."""
    story = Story()
    world = World()
    operator = OperatorProcess(world)
    world.submit(JOB, profiler={"policy": "Never", "deviceType": "h100-80gb"})
    world.training_job(JOB)["metadata"]["labels"] = {names.QUEUE_LABEL: "gpus"}
    story.world, story.operator = world, operator
    story.settle()
    story.do(names.PLANNER)

    assert story.seen == ("Suspended", "WaitingForAdmission")
    [job] = world.of_kind("Job", names.WORKER)
    assert job["spec"]["suspend"]
    assert job["metadata"]["labels"][names.QUEUE_LABEL] == "gpus"


def test_a_job_that_takes_too_long_fails() -> None:
    """Its workers are stopped."""
    story = Story(runPolicy={"activeDeadlineSeconds": 100}).running()
    story.later(101)
    story.bury()

    assert story.seen == ("Failed", "DeadlineExceeded")
    assert story.jobs(names.WORKER) == []


def test_workers_that_never_all_run_end_the_job_in_time() -> None:
    """The message says what it was waiting for."""
    story = Story(runPolicy={"preRunningDeadlineSeconds": 60}).planned()
    story.later(61)

    assert story.seen == ("Failed", "PreRunningDeadlineExceeded")
    assert "0 of 2 workers are ready" in story.status["message"]


# The end


def test_an_ended_job_is_deleted_when_its_time_is_over() -> None:
    """The time counts from the end, also if nobody looked meanwhile."""
    story = Story(launchPolicy="PlanOnly", runPolicy={"ttlSecondsAfterFinished": 60}).planned()
    assert story.operator.look_again_s == pytest.approx(60, abs=1)
    story.later(61)

    assert story.world.of_kind("DLRMTrainingJob") == []
    assert [each for each in story.world.objects.values() if owners(each)] == []


def test_clean_up_takes_what_the_policy_says() -> None:
    """All: also Jobs that have ended, with their logs."""
    story = Story(launchPolicy="PlanOnly", runPolicy={"cleanPodPolicy": "All"}).planned()

    assert story.world.of_kind("Job") == []
    assert story.world.of_kind("ConfigMap", names.PLAN) != []


# Other people's hands


def test_a_foreign_object_is_never_adopted() -> None:
    """A Service of the same name stays as it is, and the job says why it cannot go on."""
    story = Story()
    foreign = story.world.put(
        {"kind": "Service", "metadata": {"name": "job-workers"}, "spec": {"clusterIP": "10.0.0.1"}}
    )
    story.planned()

    assert story.seen == ("Failed", "NameConflict")
    assert foreign["spec"] == {"clusterIP": "10.0.0.1"}


def test_a_widened_role_is_narrowed_again() -> None:
    """An edit by hand is set right and told."""
    story = Story()
    [role] = story.world.of_kind("Role")
    rules = role["rules"]
    role["rules"] = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
    story.world._touch(role)
    story.planned()
    [worker] = [each for each in story.world.of_kind("Role") if each["metadata"]["name"] == "job-worker"]
    worker["rules"] = []
    story.world._touch(worker)
    story.settle()

    assert rules
    assert worker["rules"] == [{**rules[0], "resourceNames": ["job-report"]}]
    assert "ChildRepaired" in story.reasons()


def test_a_worker_job_that_was_deleted_is_made_again() -> None:
    """The same attempt goes on once its pods are gone."""
    story = Story().running()
    story.world.remove("Job", "job-worker-0")
    story.settle()
    assert story.seen == ("Launching", "WaitingForOldPods")
    story.bury()

    assert story.jobs(names.WORKER) == ["job-worker-0"]
    assert story.status["restarts"] == 0


def test_a_refused_child_is_told_and_tried_again() -> None:
    """A quota that is full may have room later."""
    story = Story()
    story.world.refuse["Job"] = ApiError(403, "Forbidden", "exceeded quota: gpus")
    story.do(names.PROFILER)
    assert story.seen == ("Planning", "ChildRefused")
    assert "exceeded quota: gpus" in story.status["message"]
    assert story.operator.look_again_s is not None
    story.world.refuse.clear()
    story.later(30)

    assert story.seen == ("Planning", "PlannerRunning")


def test_a_pod_template_that_kubernetes_refuses_ends_the_job() -> None:
    """The API server's own words are the message."""
    story = Story(profiler={"policy": "Never", "deviceType": "h100-80gb"})
    story.world.refuse["Job"] = ApiError(422, "Invalid", "spec.template.spec.containers[0].image: Required value")
    story.do(names.PLANNER)

    assert story.seen == ("Failed", "InvalidPodTemplate")
    assert "image: Required value" in story.status["message"]


def test_a_job_of_another_manager_is_left_alone() -> None:
    """Kueue runs it in another cluster."""
    world = World()
    world.submit(JOB, managedBy="kueue.x-k8s.io/multikueue")
    world.catch_up()

    assert asyncio.run(OperatorProcess(world).look(KEY))
    assert world.writes == 0


def test_tables_may_come_from_a_config_map() -> None:
    """The job waits for it, and a broken one ends it with the field's path."""
    reference = {"configMapKeyRef": {"name": "tables", "key": "tables.json"}}
    story = Story(model={"embeddingTablesFrom": reference})
    assert story.seen == ("Pending", "InputMissing")
    story.world.put({"kind": "ConfigMap", "metadata": {"name": "tables"}, "data": {"tables.json": '{"tables": 3}'}})
    story.later(15)

    assert story.seen == ("Failed", "InvalidInput")
    assert "schema_version" in story.status["message"]


def test_the_settings_are_the_images_of_pods_that_name_none() -> None:
    """A job need not know where the operator's images lie."""
    story = Story()

    [job] = story.world.of_kind("Job", names.PROFILER)
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == SETTINGS.profiler_image
