"""Specification of the choice of a device: bad installations are named in a sentence."""

import pytest
from neuroshard_profiler.devices.visible import device_of, usable_gpus
from neuroshard_profiler.errors import SettingsError
from support.profiler.profiler_builders import SeenGpus

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("gpus", "reason", "hint"),
    [
        (SeenGpus(built_for=None), "this build of torch is without CUDA", "install a CUDA build"),
        (SeenGpus(driver=None), "no NVIDIA driver answers", "limits of nvidia.com/gpu"),
        (
            SeenGpus(driver="570.86.15"),
            "the NVIDIA driver 570.86.15 is too old for torch built for CUDA 13.0, which needs 580 or newer",
            "update the driver, or install torch and FBGEMM built for an older CUDA",
        ),
        (SeenGpus(built_for="12.8", driver="535.1"), "though the NVIDIA driver 535.1 answers", "CUDA_VISIBLE_DEVICES"),
        (SeenGpus(names=("H100", "A100")), "the GPUs of this node differ: A100, H100", "those of one kind visible"),
        (SeenGpus(names=("H100 MIG 3g.40gb",) * 2), "the visible GPUs are MIG slices", "whole GPUs, or one slice"),
    ],
    ids=["build", "no driver", "old driver", "hidden", "unequal", "slices"],
)
def test_gpus_that_cannot_be_used_are_explained(gpus: SeenGpus, reason: str, hint: str) -> None:
    """The reason, what was found, and the remedy."""
    with pytest.raises(SettingsError) as caught:
        usable_gpus(gpus)

    sentence, remedy = str(caught.value).split("; hint: ")
    assert reason in sentence
    assert hint in remedy


def test_a_gpu_that_was_asked_for_is_never_a_cpu() -> None:
    """Without a device of that kind there is an error instead of a profile of another one."""
    with pytest.raises(SettingsError, match="there is no GPU that torch can use"):
        device_of("cuda", gpus=SeenGpus(driver=None))


def test_a_node_with_a_driver_is_never_taken_for_a_cpu() -> None:
    """Where nothing is asked for, GPUs that cannot be used are an error, not a reason to profile one core."""
    with pytest.raises(SettingsError, match="too old"):
        device_of(None, gpus=SeenGpus(driver="550.54"))


def test_a_machine_without_a_driver_is_a_cpu() -> None:
    """Where nothing is asked for."""
    assert device_of(None, gpus=SeenGpus(driver=None)).kind == "cpu"


def test_a_process_without_a_gpu_is_refused() -> None:
    """More processes than GPUs were started."""
    with pytest.raises(SettingsError, match=r"there is no GPU 2: torch can use 2 here"):
        device_of("cuda", index=2, gpus=SeenGpus(names=("H100", "H100")))


def test_one_slice_is_a_device() -> None:
    """A job of one device needs no exchange."""
    assert usable_gpus(SeenGpus(names=("H100 MIG 3g.40gb",))) == ("H100 MIG 3g.40gb",)
