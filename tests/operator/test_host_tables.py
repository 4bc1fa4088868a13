"""Memory of worker pods whose tables are in host memory."""

from typing import Any

import pytest
from neuroshard_api.documents.config_map import contents_of, unpack_files
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import PlanRequest
from neuroshard_decisions import names
from neuroshard_decisions.files import REQUEST_FILE
from neuroshard_decisions.observed.results import host_bytes_per_node, plan_summary
from neuroshard_operator.children.workers import with_host_tables
from support import builders
from support.builders import plan
from support.operator.operator_process import JOB, Story

GIB = 2**30


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({}, {"requests": {"memory": str(100 * GIB)}}),
        (
            {"requests": {"memory": "16Gi", "cpu": "8"}},
            {"requests": {"memory": str(116 * GIB), "cpu": "8"}},
        ),
        (
            {"limits": {"memory": "32Gi", "nvidia.com/gpu": 8}},
            {"limits": {"memory": str(132 * GIB), "nvidia.com/gpu": 8}, "requests": {"memory": str(132 * GIB)}},
        ),
        (
            {"limits": {"memory": "32Gi"}, "requests": {"memory": "16Gi"}},
            {"limits": {"memory": str(132 * GIB)}, "requests": {"memory": str(116 * GIB)}},
        ),
    ],
    ids=["nothing asked", "requests", "limits", "both"],
)
def test_tables_count_on_top_of_what_the_job_asks_for(resources: dict[str, Any], expected: dict[str, Any]) -> None:
    """What the job says is for the processes: it is the same under every plan."""
    assert with_host_tables(resources, 100 * GIB) == expected


def test_the_node_with_most_decides_for_all() -> None:
    """All pods of a Job are alike."""
    found = plan()
    memory = tuple(each.model_copy(update={"host_bytes": device * GIB}) for device, each in enumerate(found.memory))
    nodes = found.request.topology.model_copy(update={"num_nodes": 2, "devices_per_node": 2})
    held = found.model_copy(update={"memory": memory, "request": found.request.model_copy(update={"topology": nodes})})

    assert host_bytes_per_node(held) == 5 * GIB
    text = held.to_json().encode()
    assert plan_summary(text, key="plan.json", where="plan").host_bytes_per_node == 5 * GIB


@pytest.mark.parametrize("key", ["requests", "limits"])
def test_workers_are_started_with_the_memory_of_their_plans_tables(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gibibyte for each device of a node, also on top of what the pod template asks for."""

    def with_host_tables(asked: PlanRequest) -> Plan:
        found = plan(asked)
        return found.model_copy(
            update={"memory": tuple(each.model_copy(update={"host_bytes": GIB}) for each in found.memory)}
        )

    assert resources_of_workers(Story().planned()) == {}
    monkeypatch.setattr(builders, "plan", with_host_tables)
    story = Story().planned()

    devices = story.status["plan"]["worldSize"] // 2
    assert resources_of_workers(story) == {"requests": {"memory": str(devices * GIB)}}

    container = {"name": names.TRAINER, "resources": {key: {"memory": "2Gi"}}}
    story = Story(podTemplate={"spec": {"containers": [container]}}).planned()
    assert resources_of_workers(story)[key] == {"memory": str((devices + 2) * GIB)}


def gpu_node(name: str, memory: str) -> dict[str, Any]:
    """Return a node of eight GPUs that offers this much memory to pods."""
    labels = {"nvidia.com/gpu.product": "H100", "nvidia.com/gpu.count": "8"}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"allocatable": {"memory": memory}}}


@pytest.fixture
def known_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles of a device whose link to host memory is known."""
    made, device = builders.hardware, preset("h100-80gb").device
    monkeypatch.setattr(builders, "hardware", lambda: made(device=device))


def story_on(*nodes: dict[str, Any], permitted: str, **spec: Any) -> Story:
    """Return the story of a job that may store tables on these nodes, up to its plan."""
    gpus = {"numNodes": 2, "resourcesPerNode": {"limits": {"nvidia.com/gpu": 8, "memory": "64Gi"}}}
    profiler = {"backend": "Simulated", "deviceType": "h100-80gb"}
    planner = {"hostMemoryPerNode": permitted}
    story = Story(suspend=True, trainer=gpus, profiler=profiler, planner=planner, **spec)
    story.world.nodes = list(nodes)
    story.world.change_spec(JOB, suspend=False)
    story.settle()
    return story.do(names.PROFILER)


def asked_bytes(story: Story) -> int:
    """Return the host memory of a node that the planner is asked to plan with."""
    config_map = story.world.of_kind("ConfigMap", names.REQUEST)[-1]
    memory = PlanRequest.from_json(unpack_files(contents_of(config_map))[REQUEST_FILE]).topology.host_memory
    assert memory is not None
    return memory.bytes_per_node


@pytest.mark.usefixtures("known_device")
@pytest.mark.parametrize(
    ("permitted", "expected", "is_limited"), [("1Ti", (448 - 64) * GIB, True), ("100Gi", 100 * GIB, False)]
)
def test_plans_take_no_more_memory_than_nodes_offer(permitted: str, expected: int, *, is_limited: bool) -> None:
    """The least of the kind's nodes decides, less what workers request for themselves; a warning says so."""
    story = story_on(gpu_node("a", "512Gi"), gpu_node("b", "448Gi"), permitted=permitted)

    assert asked_bytes(story) == expected
    story.do(names.PLANNER)
    found = story.warnings.get("LimitedByNodes", "")
    assert ("nodes of the kind offer 448 GiB to pods, of which workers request 64 GiB" in found) == is_limited


@pytest.mark.usefixtures("known_device")
def test_nodes_without_room_for_tables_are_refused_with_the_numbers() -> None:
    """Before a planner runs in vain."""
    story = story_on(gpu_node("a", "32Gi"), permitted="1Ti")

    assert story.seen == ("Failed", "InvalidInput")
    assert "spec.planner.hostMemoryPerNode: nodes of the kind offer 32 GiB" in story.status["message"]


@pytest.mark.usefixtures("known_device")
def test_a_plan_that_no_node_has_memory_for_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that was made when nodes offered more."""

    def with_host_tables(asked: PlanRequest) -> Plan:
        found = plan(asked)
        held = tuple(each.model_copy(update={"host_bytes": 64 * GIB}) for each in found.memory)
        return found.model_copy(update={"memory": held})

    monkeypatch.setattr(builders, "plan", with_host_tables)
    story = story_on(gpu_node("a", "448Gi"), permitted="1Ti").do(names.PLANNER)

    assert "tables of the plan take 512 GiB of a node" in story.warnings["NodesTooSmall"]


def resources_of_workers(story: Story) -> dict[str, Any]:
    """Return the resources of the container that the workers train in."""
    [job] = story.world.of_kind("Job", names.WORKER)
    resources: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    return resources
