"""Profiling: what is made for it, what jobs share, and how it fails."""

import asyncio
import json

import pytest
from neuroshard_api.documents.config_map import pack_files
from neuroshard_decisions import names
from support.operator.operator_process import JOB, KEY, ONE_NODE, OperatorProcess, Story
from support.operator.operator_world import NAMESPACE, World, owners, profile_files, stamp


def test_a_new_job_is_profiled_first() -> None:
    """The profiler's Job is made together with what lets it publish, and the status says so at once."""
    story = Story()

    assert story.seen == ("Profiling", "ProfilerRunning")
    [job] = story.world.of_kind("Job", names.PROFILER)
    assert job["spec"]["backoffLimit"] == 2
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
    world.watches.catch_up()
    asyncio.run(operator.look(KEY))

    [job] = world.of_kind("Job", names.PROFILER)
    pod = job["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200", "pool": "gpu"}
    assert pod["tolerations"] == taints
    assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert world.status(JOB)["hardware"]["gpuProduct"] == "NVIDIA-H200"


def test_the_profiler_gets_the_resource_claims_of_the_workers() -> None:
    """With DRA a device is claimed by name in the pod and in the container; without its claim nothing is measured."""
    pod_spec = {
        "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "eight-gpus"}],
        "containers": [{"name": "trainer", "resources": {"claims": [{"name": "gpus"}]}}],
    }
    trainer = {"numNodes": 1, "numProcPerNode": 8, "resourcesPerNode": {"limits": {"cpu": 4}}}
    story = Story(trainer=trainer, podTemplate={"spec": pod_spec})

    [job] = story.world.of_kind("Job", names.PROFILER)
    pod = job["spec"]["template"]["spec"]
    assert pod["resourceClaims"] == pod_spec["resourceClaims"]
    assert pod["containers"][0]["resources"] == {"claims": [{"name": "gpus"}], "limits": {"cpu": 4}}
    story.planned()
    [workers] = story.world.of_kind("Job", names.WORKER)
    container = workers["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"] == {"claims": [{"name": "gpus"}], "limits": {"cpu": 4}}


def test_a_profile_outlives_its_job_and_serves_the_next() -> None:
    """A second job on equal hardware skips profiling."""
    story = Story(trainer=ONE_NODE).planned()
    [profile] = story.world.of_kind("ConfigMap", names.PROFILE)
    assert owners(profile) == []
    story.world.submit("second")
    story.world.watches.catch_up()
    asyncio.run(story.operator.look((NAMESPACE, "second")))

    status = story.world.status("second")
    assert status["stage"] == "Planning"
    assert status["profile"]["cached"]
    assert status["conditions"][0]["reason"] == "CacheHit"


def test_two_jobs_on_equal_hardware_do_not_both_profile() -> None:
    """The second waits for the first one's profile."""
    story = Story(trainer=ONE_NODE)
    story.world.submit("second")
    story.world.watches.catch_up()
    asyncio.run(story.operator.look((NAMESPACE, "second")))

    assert story.world.status("second")["reason"] == "WaitingForProfile"
    assert len(story.jobs(names.PROFILER)) == 1


def test_a_job_that_waits_for_the_profile_of_one_that_is_deleted_profiles_itself() -> None:
    """Nobody is left to wait for."""
    story = Story(trainer=ONE_NODE)
    world, second = story.world, (NAMESPACE, "second")
    world.submit("second")
    world.watches.catch_up()
    asyncio.run(story.operator.look(second))
    assert world.status("second")["reason"] == "WaitingForProfile"
    world.remove("DLRMTrainingJob", "job")
    story.later(story.operator.requeue_after_s or 0)
    asyncio.run(story.operator.look(second))

    assert world.status("second")["reason"] == "ProfilerRunning"
    assert story.jobs(names.PROFILER)[0].startswith("second-")


def second_profiler(story: Story, *, after_s: float) -> list[str]:
    """Return the profilers of a second job of equal hardware after so much more time."""
    if ("DLRMTrainingJob", "second") not in story.world.objects:
        story.world.submit("second")
    story.later(after_s)
    story.world.watches.catch_up()
    asyncio.run(story.operator.look((NAMESPACE, "second")))
    return [name for name in story.jobs(names.PROFILER) if name.startswith("second-")]


def test_a_profiler_that_waits_for_a_node_holds_nobody_up() -> None:
    """The other job may get a node of another pool or queue; the profile of the first one serves both."""
    story = Story(trainer=ONE_NODE)
    assert second_profiler(story, after_s=60) == []
    [profiler] = second_profiler(story, after_s=61)
    story.world.run_job_controller()
    [pod] = [pod for pod in story.pods(names.PROFILER) if pod["metadata"]["name"].startswith(profiler)]
    story.world.work(pod)
    for _ in range(3):
        story.world.run_job_controller()
        story.world.watches.catch_up()
        asyncio.run(story.operator.look((NAMESPACE, "second")))
    story.settle()
    story.bury()

    assert story.seen == ("Planning", "PlannerRunning")
    assert story.status["profile"]["cached"]
    assert [name for name in story.jobs(names.PROFILER) if name.startswith("job-")] == []


def test_a_profiler_that_runs_is_waited_for() -> None:
    """However long it takes: a second one would measure the same."""
    story = Story(trainer=ONE_NODE)
    [pod] = story.pods(names.PROFILER)
    story.world.start_pod(pod)
    story.settle()

    assert second_profiler(story, after_s=900) == []


def test_the_time_limit_begins_when_a_node_has_taken_the_pod() -> None:
    """A cluster without a free device for two hours makes no job fail."""
    story = Story(suspend=True, trainer=ONE_NODE)
    story.world.has_free_nodes = False
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    [pod], [job] = story.pods(names.PROFILER), story.world.of_kind("Job", names.PROFILER)
    story.later(7200)
    assert "activeDeadlineSeconds" not in job["spec"]
    pod["spec"]["nodeName"] = "node-0"
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(story.world.now)}
    pod["status"]["conditions"] = [placed]
    story.world.touch(pod)
    story.settle()
    assert "activeDeadlineSeconds" not in job["spec"]
    assert (story.operator.requeue_after_s or 61) < 61
    story.later(60)

    assert job["spec"]["activeDeadlineSeconds"] == 7200 + 1800


def test_a_planner_that_ends_within_a_minute_gets_no_time_limit() -> None:
    """A limit is one more write, and one more pass that it brings about."""
    story = Story().do(names.PROFILER)
    [job] = story.world.of_kind("Job", names.PLANNER)
    story.later(50)
    story.do(names.PLANNER)

    assert "activeDeadlineSeconds" not in job["spec"]


def test_a_short_time_limit_is_written_in_time() -> None:
    """A limit of less than two minutes comes after half of it."""
    story = Story(experimental={"planner": {"timeoutSeconds": 60}}).do(names.PROFILER)
    [job] = story.world.of_kind("Job", names.PLANNER)
    story.later(31)

    assert job["spec"]["activeDeadlineSeconds"] == 60


WHOLE_NODE = {"numNodes": 1, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8}}}


def gpu_node(name: str, product: str, **spec: object) -> dict[str, object]:
    """Return a node of eight GPUs."""
    labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.count": "8", "nvidia.com/gpu.memory": "143771"}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def two_kinds() -> list[dict[str, object]]:
    """Return two nodes of one kind of GPU, and one of another."""
    return [gpu_node("a", "H200"), gpu_node("b", "H200"), gpu_node("c", "A100")]


def story_on_full_nodes() -> Story:
    """Return the story of a job for a whole node of a cluster that has two kinds of GPU, and no node free."""
    story = Story(suspend=True, trainer=WHOLE_NODE)
    story.world.has_free_nodes = False
    story.world.nodes = two_kinds()
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    return story


def test_the_kind_of_gpu_is_chosen_again_while_the_profilers_pod_finds_no_node() -> None:
    """Its nodes were cordoned after the choice: after two minutes another kind is measured, and the first Job goes."""
    story = story_on_full_nodes()
    [first] = story.jobs(names.PROFILER)
    assert story.status["hardware"]["gpuProduct"] == "H200"
    for node in story.world.nodes[:2]:
        node["spec"] = {"unschedulable": True}
    story.later(100)
    assert story.jobs(names.PROFILER) == [first]
    story.later(30)
    for pod in story.world.of_kind("Pod", names.PROFILER):
        if "deletionTimestamp" in pod["metadata"]:
            story.world.finish_deletion(pod)
    story.settle()

    assert story.status["hardware"]["gpuProduct"] == "A100"
    [second] = story.jobs(names.PROFILER)
    assert second != first
    selector = story.world.objects["Job", second]["spec"]["template"]["spec"]["nodeSelector"]
    assert selector == {"nvidia.com/gpu.product": "A100"}


def test_a_profiler_whose_kind_was_given_up_goes_also_where_the_other_kind_is_profiled_already() -> None:
    """It would take its nodes' GPUs as soon as they are open again."""
    story = Story(suspend=True, trainer=WHOLE_NODE)
    world, second = story.world, (NAMESPACE, "second")
    world.nodes = [gpu_node("c", "A100")]
    world.change_spec(JOB, suspend=False)
    story.settle()
    story.do(names.PROFILER)
    world.has_free_nodes = False
    world.nodes = two_kinds()
    world.submit("second", trainer=WHOLE_NODE)

    def look(*, later_s: float) -> list[str]:
        story.later(later_s)
        for _ in range(5):
            world.run_job_controller()
            world.watches.catch_up()
            asyncio.run(story.operator.look(second))
        for pod in world.of_kind("Pod", names.PROFILER):
            if "deletionTimestamp" in pod["metadata"]:
                world.finish_deletion(pod)
        return [name for name in story.jobs(names.PROFILER) if name.startswith("second-")]

    assert len(look(later_s=60)) == 1
    for node in world.nodes[:2]:
        node["spec"] = {"unschedulable": True}
    look(later_s=130)

    assert look(later_s=1) == []
    assert world.status("second")["hardware"]["gpuProduct"] == "A100"
    assert world.status("second")["profile"]["cached"]


def test_a_profiler_that_waits_for_its_nodes_keeps_its_kind_while_no_other_is_free() -> None:
    """A full cluster is not a reason to measure another kind of GPU."""
    story = story_on_full_nodes()
    jobs = story.jobs(names.PROFILER)
    story.later(3600)

    assert story.jobs(names.PROFILER) == jobs
    assert story.status["hardware"]["gpuProduct"] == "H200"


def test_a_profile_that_was_damaged_is_made_anew() -> None:
    """Weights that are not the manifest's are not used for a plan."""
    story = Story().do(names.PROFILER)
    [profile] = story.world.of_kind("ConfigMap", names.PROFILE)
    name = profile["metadata"]["name"]
    damaged = pack_files({**profile_files(), "weights.safetensors": b"other"})
    profile |= {"data": dict(damaged.data), "binaryData": dict(damaged.binary_data)}
    story.world.touch(profile)
    story.settle()

    assert "ChildRepaired" in story.reasons()
    assert story.world.objects["ConfigMap", name]["binaryData" if damaged.binary_data else "data"] != damaged.data


def test_a_profile_without_the_network_that_the_nodes_span_is_not_planned_with() -> None:
    """An unknown device that was measured on one node serves no job of several; the profile is made again."""
    story = Story().do(names.PROFILER)
    [profile] = story.world.of_kind("ConfigMap", names.PROFILE)
    files = profile_files()
    hardware = json.loads(files["hardware.json"])
    hardware["device"]["name"] = "unknown-device"
    hardware.pop("inter_node", None)
    packed = pack_files({**files, "hardware.json": json.dumps(hardware).encode()})
    profile |= {"data": dict(packed.data), "binaryData": dict(packed.binary_data)}
    story.world.touch(profile)
    story.settle()

    assert "ChildRepaired" in story.reasons()
    [repaired] = story.world.of_kind("ConfigMap", names.PROFILE)
    assert repaired["metadata"]["uid"] != profile["metadata"]["uid"]


def test_a_profiler_that_an_earlier_release_started_is_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name was another one; a second one next to it would measure under the load of the first."""
    with monkeypatch.context() as earlier:
        earlier.setattr(names, "profiler_job", lambda job, key: f"{job}-profiler-{names.short(key)}")
        story = Story(trainer=ONE_NODE)
    story.operator = OperatorProcess(story.world)
    story.settle()
    [only] = story.jobs(names.PROFILER)
    assert only.startswith("job-profiler-")
    story.do(names.PROFILER)

    assert story.seen == ("Planning", "PlannerRunning")


def test_a_profiler_that_fails_ends_the_job_with_its_words() -> None:
    """The reason is the stage's, the message the pod's own, and the pod is recorded."""
    story = Story()
    story.fail(names.PROFILER, 1)

    assert story.seen == ("Failed", "ProfilingFailed")
    assert "exit 1" in story.status["message"]
    assert story.status["lastFailure"]["exitCode"] == 1
    assert story.status["lastFailure"]["nodeName"] == "node-0"
    assert story.reasons() == ["Failed"]


def test_a_profile_that_is_lost_with_its_source_is_measured_again() -> None:
    """Somebody deleted both the profile and the profiler's result while the planner was at work."""
    story = Story().do(names.PROFILER)
    story.lose(names.PROFILE)
    story.lose(names.PROFILER)
    story.later(31)
    assert story.seen == ("Profiling", "ProfilerRunning")
    assert "ChildRepaired" in story.reasons()
    story.do(names.PROFILER)

    assert story.seen == ("Planning", "PlannerRunning")


def test_a_profiler_that_publishes_nothing_ends_the_job() -> None:
    """The two watches get half a minute to bring the result; then it is missing."""
    story = Story(trainer=ONE_NODE)
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
