"""Memory of worker pods whose tables are in host memory."""

from typing import Any

import builders
import pytest
from builders import plan
from neuroshard_api.plan import Plan
from neuroshard_api.request import PlanRequest
from neuroshard_operator import names
from neuroshard_operator.children.workers import with_host_tables
from neuroshard_operator.observed.results import host_bytes_per_node, plan_summary
from operator_process import Story

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


def resources_of_workers(story: Story) -> dict[str, Any]:
    """Return the resources of the container that the workers train in."""
    [job] = story.world.of_kind("Job", names.WORKER)
    resources: dict[str, Any] = job["spec"]["template"]["spec"]["containers"][0]["resources"]
    return resources
