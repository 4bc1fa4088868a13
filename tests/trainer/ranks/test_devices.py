"""The choice of a device, for machines of every kind: what CUDA offers is given, no GPU is needed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.ranks import devices
from neuroshard_trainer.ranks.devices import (
    Cuda,
    chosen_device,
    require_planned_nodes,
    unlike_devices,
    why_gpu_is_needed,
)
from support.trainer.trainer_builders import job_data, plan_of

H100 = "NVIDIA H100 80GB HBM3"
OLD_DRIVER = "The NVIDIA driver on your system is too old (found version 12040)."
GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


def cuda_of(**fields: Any) -> Cuda:
    """Return a node of eight H100 with a driver that fits, but for the given fields."""
    good = {"built_for": "13.0", "problem": None, "devices": (H100,) * 8, "driver": "580.65.06", "nccl": "2.27.5"}
    return Cuda(**{**good, **fields})


def job_of(**trainer: Any) -> DLRMTrainingJob:
    """Return a job with these fields of its trainer."""
    return DLRMTrainingJob.from_data(job_data(trainer=trainer))


WITHOUT = {"devices": (), "nccl": None}


@pytest.mark.parametrize(
    ("cuda", "expected"),
    [
        (
            cuda_of(problem=OLD_DRIVER, driver="550.54.15", **WITHOUT),
            "the NVIDIA driver 550.54.15 does not serve CUDA 13.0, which torch was built for",
        ),
        (
            cuda_of(problem="Found no NVIDIA driver on your system.", driver=None, **WITHOUT),
            "Found no NVIDIA driver on your system.; hint: install an NVIDIA driver for CUDA 13",
        ),
        (cuda_of(built_for=None, problem="not compiled with CUDA", driver=None, **WITHOUT), "torch was built for CPUs"),
        (cuda_of(**WITHOUT), "no GPU is visible; hint: check CUDA_VISIBLE_DEVICES"),
    ],
    ids=["driver too old", "no driver", "torch for CPUs", "nothing visible"],
)
@pytest.mark.parametrize("choice", ["auto", "cuda"])
def test_a_job_for_gpus_is_never_trained_on_a_cpu_silently(choice: Any, cuda: Cuda, expected: str) -> None:
    """The sentence has the reason, the remedy, and the option that allows the CPU."""
    with pytest.raises(InputError) as error:
        chosen_device(choice, cuda, local_rank=0, needs_gpu="spec.trainer.resourcesPerNode asks for 8 GPUs per node")

    assert expected in str(error.value)
    assert "hint: --device cpu trains on the CPU" in str(error.value)
    assert chosen_device("cpu", cuda, local_rank=0, needs_gpu="the job") == CPU


def test_the_cpu_is_taken_where_nothing_asks_for_a_gpu() -> None:
    """By the default choice only."""
    without = cuda_of(problem="Found no NVIDIA driver on your system.", driver=None, **WITHOUT)

    assert chosen_device("auto", without, local_rank=0, needs_gpu=None) == CPU
    with pytest.raises(InputError, match="--device cuda, but Found no NVIDIA driver"):
        chosen_device("cuda", without, local_rank=0, needs_gpu=None)


def test_each_process_has_a_gpu() -> None:
    """The one of its local rank; a process that sees fewer GPUs than its node has processes is refused."""
    assert chosen_device("auto", cuda_of(), local_rank=3, needs_gpu=None) == torch.device("cuda", 3)
    with pytest.raises(InputError, match=r"local rank 1 has no GPU to itself, there are 1; .*srun --gpus-per-task"):
        chosen_device("auto", cuda_of(devices=(H100,)), local_rank=1, needs_gpu=None)


@pytest.mark.parametrize(
    ("job", "source", "expected"),
    [
        (job_of(resourcesPerNode={"limits": {"nvidia.com/gpu": 8}}), "simulated:h100", "asks for 8 GPUs per node"),
        (job_of(), f"measured:{H100}", f"the plan was made from costs of measured:{H100}"),
        (job_of(), "simulated:h100-80gb", None),
        (job_of(), "cpu:AMD EPYC", None),
    ],
    ids=["the job asks for GPUs", "the costs were measured on one", "simulated costs", "a CPU's costs"],
)
def test_what_needs_a_gpu(job: DLRMTrainingJob, source: str, expected: str | None) -> None:
    """A job with a limit of GPUs, and a plan whose costs were measured on one."""
    plan = plan_of()
    plan = plan.model_copy(update={"bundle": plan.bundle.model_copy(update={"source": source})})

    found = why_gpu_is_needed(job, plan)

    assert (found or "").endswith(expected or "")
    assert (found is None) == (expected is None)


def test_nodes_unlike_the_plans_are_refused_on_gpus() -> None:
    """A plan names each shard's GPU by the size of a node; on CPUs only the prediction suffers."""
    plan = plan_of(world_size=2)
    planned = plan.request.topology.devices_per_node

    assert require_planned_nodes(plan, local_world_size=planned, device=GPU) is None
    with pytest.raises(InputError, match=f"is for {planned} devices per node, this node has 4 processes; hint: start"):
        require_planned_nodes(plan, local_world_size=4, device=GPU)
    assert "measured times will differ" in str(require_planned_nodes(plan, local_world_size=4, device=CPU))


def test_unequal_devices_and_slices_are_named() -> None:
    """Plans are for equal, whole devices."""
    assert unlike_devices([H100] * 4) is None
    assert "NVIDIA A100-SXM4-80GB on rank 2" in str(unlike_devices([H100, H100, "NVIDIA A100-SXM4-80GB", H100]))
    assert "is a slice of a GPU" in str(unlike_devices([f"{H100} MIG 1g.10gb"]))


def test_the_versions_are_one_line() -> None:
    """Torch, CUDA, driver, NCCL, and the GPUs by kind."""
    assert cuda_of().versions() == (f"torch {torch.__version__}, CUDA 13.0, driver 580.65.06, NCCL 2.27.5, 8 x {H100}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023\n", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n", "580.65.06"),
        ("something else\n", None),
        (None, None),
    ],
    ids=["proprietary", "open", "unknown", "no driver"],
)
def test_the_drivers_version_is_read_from_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, expected: str | None
) -> None:
    """Also where CUDA itself cannot be started, which is when it matters."""
    file = tmp_path / "version"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(devices, "DRIVER_VERSION_FILE", file)

    assert Cuda.here().driver == expected


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_machine_without_a_gpu_says_so() -> None:
    """In torch's own words."""
    here = Cuda.here()

    assert not here.is_usable
    assert here.problem
