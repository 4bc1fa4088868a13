"""The network of jobs of several nodes: profilers on two nodes that measure it, and what follows where they cannot."""

import json
from typing import Any

import pytest
from neuroshard_api.documents.config_map import pack_files
from neuroshard_decisions import names
from support.operator.operator_process import JOB, ONE_NODE, Story
from support.operator.operator_world import profile_files

GPUS = {"numNodes": 4, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8, "rdma/hca": 1}}}
SIMULATED = {"backend": "Simulated", "deviceType": "h100-80gb"}


def gpu_node(name: str, **spec: object) -> dict[str, Any]:
    """Return a node of eight GPUs."""
    labels = {"nvidia.com/gpu.product": "H200", "nvidia.com/gpu.count": "8"}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec}


def story_on(*nodes: dict[str, Any], **spec: Any) -> Story:
    """Return the story of a job for four whole nodes on a cluster of these nodes."""
    story = Story(suspend=True, **{"trainer": GPUS, **spec})
    story.world.nodes = list(nodes)
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    return story


def profiler(story: Story) -> dict[str, Any]:
    """Return the newest Job of profilers."""
    job: dict[str, Any] = story.world.of_kind("Job", names.PROFILER)[-1]
    return job


def do_not_meet(story: Story) -> None:
    """Let pod 0 wait in vain until its Job has failed, while no node takes pod 1."""
    first, second = story.pods(names.PROFILER)
    second["spec"]["nodeName"] = ""
    story.world.touch(second)
    story.world.start_pod(first)
    story.world.end_pod(first, 7)
    story.settle()
    story.bury()


def test_profilers_on_two_nodes_meet_by_a_service() -> None:
    """An Indexed Job of two pods that are never on one node, and one profile: pod 0 publishes it."""
    story = story_on(gpu_node("a"), gpu_node("b"), gpu_node("c"))

    job = profiler(story)
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 2, 2)
    [term] = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    [container] = pod["containers"]
    command = container["command"]
    name = job["metadata"]["name"]
    assert command[command.index("--meet") + 1] == f"{name}-0.job-profilers:29500"
    assert len(f"{'j' * 44}{name.removeprefix('job')}-1") <= 63
    [rank] = [each for each in container["env"] if each["name"] == "PET_NODE_RANK"]
    assert rank["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['batch.kubernetes.io/job-completion-index']"
    [service] = story.world.of_kind("Service", names.PROFILER)
    assert (service["metadata"]["name"], pod["subdomain"]) == ("job-profilers", "job-profilers")
    assert service["spec"]["selector"].items() <= labels.items()
    assert story.status["hardware"]["networkNodes"] == 2


def test_the_measured_link_is_shown_and_planned_with() -> None:
    """The message of the profile has bandwidth and latency; the request of the plan has the same link."""
    story = story_on(gpu_node("a"), gpu_node("b"))
    story.do(names.PROFILER)

    found = story.condition("Profiled")
    link = json.loads(profile_files()["hardware.json"])["inter_node"]
    assert (found["status"], story.warnings) == ("True", {})
    assert f"{link['bandwidth_bytes_per_second'] / 1e9:.3g} GB/s" in found["message"]
    [request] = story.world.of_kind("ConfigMap", names.REQUEST)
    assert json.loads(request["data"]["request.json"])["topology"]["inter_node"] == link


def test_a_profile_of_two_nodes_without_their_link_is_made_again() -> None:
    """It is damaged: two nodes were profiled, and nothing stands for what they measured."""
    story = story_on(gpu_node("a"), gpu_node("b"))
    story.do(names.PROFILER)
    [profile] = story.world.of_kind("ConfigMap", names.PROFILE)
    hardware = json.loads(profile_files()["hardware.json"])
    del hardware["inter_node"]
    packed = pack_files({**profile_files(), "hardware.json": json.dumps(hardware).encode()})
    profile |= {"data": dict(packed.data), "binaryData": dict(packed.binary_data)}
    story.world.touch(profile)
    story.settle()

    assert "ChildRepaired" in story.reasons()
    [repaired] = story.world.of_kind("ConfigMap", names.PROFILE)
    assert repaired["metadata"]["uid"] != profile["metadata"]["uid"]


@pytest.mark.parametrize(
    "nodes",
    [(gpu_node("a"),), (gpu_node("a"), gpu_node("b", unschedulable=True))],
    ids=["one node", "the other one is cordoned"],
)
def test_where_one_node_alone_takes_the_pods_the_network_is_not_measured(nodes: tuple[dict[str, Any], ...]) -> None:
    """One node is profiled, and a warning and an event say that the link is the device type's."""
    story = story_on(*nodes)
    story.do(names.PROFILER)

    assert "the usual network of the device type" in story.warnings["OneNodeOfKind"]
    assert story.reasons().count("NetworkNotMeasured") == 1
    assert "completionMode" not in profiler(story)["spec"]
    assert "networkNodes" not in story.status["hardware"]
    assert story.seen == ("Planning", "PlannerRunning")


def test_where_the_second_node_does_not_come_in_time_one_node_is_profiled() -> None:
    """The pod that waited ended with the code of a lost peer; the job goes on, and says what its plan lacks."""
    story = story_on(gpu_node("a"), gpu_node("b"))
    first = profiler(story)["metadata"]["name"]
    do_not_meet(story)

    assert story.seen == ("Profiling", "ProfilerRunning")
    assert story.warnings.keys() == {"NodesDidNotMeet"}
    alone = [name for name in story.jobs(names.PROFILER) if name != first]
    assert len(alone) == 1
    assert "completionMode" not in story.world.objects["Job", alone[0]]["spec"]
    story.do(names.PROFILER)
    assert story.seen == ("Planning", "PlannerRunning")
    assert "NodesDidNotMeet" in story.warnings
    assert story.reasons().count("NetworkNotMeasured") == 1


def test_a_resumed_job_has_its_network_measured_where_two_nodes_are_free_by_then() -> None:
    """The hint of the warning: suspend and resume."""
    story = story_on(gpu_node("a"), gpu_node("b"))
    do_not_meet(story)
    story.world.change_spec(JOB, suspend=True)
    story.settle()
    story.bury()
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    story.do(names.PROFILER)

    assert story.warnings == {}
    assert "the link between nodes was measured on 2 nodes" in story.condition("Profiled")["message"]


def test_a_profiler_that_fails_of_itself_ends_the_job_also_on_two_nodes() -> None:
    """A node whose driver is too old is not a reason to make up a network."""
    story = story_on(gpu_node("a"), gpu_node("b"))
    first, second = story.pods(names.PROFILER)
    for pod, code in ((second, 2), (first, 7)):
        story.world.start_pod(pod)
        story.world.end_pod(pod, code)
    story.settle()

    assert story.seen == ("Failed", "ProfilingFailed")
    assert story.status["lastFailure"]["exitCode"] == 2


def test_node_0_that_is_lost_after_its_peer_had_ended_begins_again_with_a_peer() -> None:
    """The peer of an Indexed Job is not started twice, so the Job is."""
    story = story_on(gpu_node("a"), gpu_node("b"))
    job = profiler(story)
    first, second = story.pods(names.PROFILER)
    story.world.work(second)
    job["status"]["succeeded"] = 1
    story.world.start_pod(first)
    story.world.end_pod(first, 7)
    story.settle()
    story.bury()

    assert "ChildRepaired" in story.reasons()
    assert profiler(story)["metadata"]["uid"] != job["metadata"]["uid"]
    assert story.status["hardware"]["networkNodes"] == 2


def test_the_workers_network_is_the_profilers() -> None:
    """Variables, attached networks, and the capability to pin memory; other annotations and variables stay away."""
    trainer = {**GPUS, "env": [{"name": "NCCL_IB_HCA", "value": "mlx5_0"}, {"name": "SECRET", "value": "x"}]}
    template = {
        "metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "rdma", "scheduling.k8s.io/group-name": "shop"}},
        "spec": {"containers": [{"name": "trainer", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}]},
    }
    story = story_on(gpu_node("a"), gpu_node("b"), trainer=trainer, podTemplate=template)

    pod = profiler(story)["spec"]["template"]
    [container] = pod["spec"]["containers"]
    assert pod["metadata"]["annotations"] == {"k8s.v1.cni.cncf.io/networks": "rdma"}
    assert {"name": "NCCL_IB_HCA", "value": "mlx5_0"} in container["env"]
    assert "SECRET" not in {each["name"] for each in container["env"]}
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert container["resources"]["limits"]["rdma/hca"] == 1


@pytest.mark.parametrize(
    "spec",
    [{"trainer": {**GPUS, "numNodes": 1}}, {"profiler": SIMULATED}, {"trainer": ONE_NODE}],
    ids=["one node", "simulated", "one node of CPUs"],
)
def test_a_job_without_a_network_to_measure_is_profiled_on_one_node(spec: dict[str, Any]) -> None:
    """And has no warning about it."""
    story = story_on(gpu_node("a"), gpu_node("b"), **spec)

    assert "completionMode" not in profiler(story)["spec"]
    assert story.warnings == {}
