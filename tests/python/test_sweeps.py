"""A job on a part of the devices: the same samples of a step, and its share of a node."""

from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm.sweeps import moved_to, on_part, require_sweepable
from neuroshard_report.explain.divisions import Room
from support.builders import job_data

ROOM = Room(num_nodes=2, devices_per_node=8)


def job_file(**spec: Any) -> JobFile:
    """Return a job as a file holds it."""
    document = job_data(**spec)
    return JobFile(path=Path("jobs/job.yaml"), job=DLRMTrainingJob.from_data(document), document=document)


@pytest.mark.parametrize(("size", "nodes", "per_node"), [(1, 1, 1), (4, 1, 4), (8, 1, 8), (16, 2, 8)])
def test_a_part_keeps_the_samples_of_a_step_and_has_its_share_of_a_node(size: int, nodes: int, per_node: int) -> None:
    """GPUs, CPUs, and memory, so that as many pods as parts fit on a node."""
    limits = {"nvidia.com/gpu": 8, "cpu": "30", "memory": "64Gi", "rdma/hca": 1}
    tables = job_data()["spec"]["model"]["embeddingTables"]
    file = job_file(
        model={"embeddingTables": tables, "batchSizePerDevice": 1024},
        trainer={"numNodes": 2, "resourcesPerNode": {"limits": limits}},
        planner={"hostMemoryPerNode": "800Gi"},
    )

    part = on_part(file, size, ROOM).job.spec

    assert part.model.batch_size_per_device * part.trainer.world_size == 16 * 1024
    assert (part.trainer.num_nodes, part.trainer.devices_per_node) == (nodes, per_node)
    found = part.trainer.limits
    assert (found["nvidia.com/gpu"], found["rdma/hca"]) == (per_node, 1)
    if per_node < 8:
        assert found["cpu"] == f"{30_000 * per_node // 8}m"
        assert found["memory"] == per_node * 8 * 2**30
        assert part.planner.host_memory_per_node == per_node * 100 * 2**30
    else:
        assert (found["cpu"], found["memory"]) == ("30", "64Gi")
        assert part.planner.host_memory_per_node == "800Gi"


def test_processes_without_gpus_are_counted() -> None:
    """One for each device of the part."""
    part = on_part(job_file(trainer={"numProcPerNode": 4}), 2, Room(num_nodes=1, devices_per_node=4)).job.spec

    assert part.trainer.devices_per_node == 2
    assert part.model.batch_size_per_device == 2 * 8192


def test_devices_that_do_not_divide_a_step_are_no_part() -> None:
    """Rounding would change the samples of a step."""
    tables = job_data()["spec"]["model"]["embeddingTables"]

    with pytest.raises(CommandError, match="4 devices do not divide the 6 samples of a step"):
        on_part(job_file(model={"embeddingTables": tables, "batchSizePerDevice": 6}), 4, ROOM)


def test_a_file_of_tables_is_found_from_the_new_folder() -> None:
    """As its path is relative to the job's."""
    file = job_file(model={"embeddingTablesFrom": {"file": "tables.csv"}})

    moved = moved_to(file, Path("sweep"))

    assert moved.document["spec"]["model"]["embeddingTablesFrom"] == {"file": "../jobs/tables.csv"}
    assert moved_to(job_file(), Path("sweep")).document == job_data()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"trainer": {"command": ["train"]}}, "spec.trainer.command: a trainer of your own is not known to take"),
        ({"planRef": {"name": "plan", "key": "plan.json"}}, "spec.planRef: a plan is for one model"),
        (
            {"model": {"embeddingTablesFrom": {"configMapKeyRef": {"name": "tables", "key": "tables.csv"}}}},
            "spec.model.embeddingTablesFrom: the tables are in a ConfigMap of the cluster",
        ),
        ({"checkpoint": {"folder": "mine"}}, "spec.checkpoint.folder: all variants would keep their state in one"),
    ],
)
def test_a_job_whose_variants_cannot_differ_is_refused(spec: dict[str, Any], words: str) -> None:
    """By the field."""
    with pytest.raises(CommandError, match=words):
        require_sweepable(job_file(**spec))
