import json
from typing import Any

from neuroshard_api.documents.presets import DevicePreset, load_presets
from neuroshard_planner.workload_store import workload_names


def test_every_workload_is_listed(neuroshard: Any) -> None:
    """By the name that `neuroshard plan` takes, with the licence of its numbers."""
    text, machine = neuroshard("workloads"), neuroshard("workloads", "--json")

    assert [line.split()[0] for line in text.out.splitlines()[1:]] == list(workload_names())
    rows = json.loads(machine.out)
    assert [row["name"] for row in rows] == list(workload_names())
    assert all(row["licence"] and row["source"] for row in rows)


def test_every_device_type_is_listed(neuroshard: Any) -> None:
    """By the name that --device-type takes, with all numbers for machines."""
    text, machine = neuroshard("devices"), neuroshard("devices", "--json")

    assert [line.split()[0] for line in text.out.splitlines()[1:]] == list(load_presets())
    assert [DevicePreset.model_validate_json(json.dumps(row)) for row in json.loads(machine.out)] == [
        *load_presets().values()
    ]
