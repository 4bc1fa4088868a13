"""The NVIDIA driver of this machine, and why torch can use no GPU. Imports no torch."""

import subprocess

_LEAST_DRIVERS = {"13": 580, "12": 525, "11": 450}
"""First driver branch of each CUDA generation, from the compatibility table of NVIDIA's CUDA release notes."""


def driver_version() -> str | None:
    """Return the version of the GPU's driver. None: there is no NVIDIA driver."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 - a constant command
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.splitlines()[0].strip() if result.stdout.strip() else None


def why_no_gpu(*, built_for: str | None, driver: str | None) -> str:
    """Return the reason why torch sees no GPU, with a hint.

    Args:
        built_for: CUDA version of torch's build. None: a build without CUDA.
        driver: version of the driver. None: there is none.
    """
    if built_for is None:
        return (
            "there is no GPU that torch can use: this build of torch is without CUDA\n"
            "hint: install a CUDA build of torch, or give --device cpu"
        )
    if driver is None:
        return (
            "there is no GPU that torch can use: no NVIDIA driver answers nvidia-smi\n"
            "hint: run on a node with GPUs and ask for them (limits of nvidia.com/gpu), or give --device cpu"
        )
    least = _LEAST_DRIVERS.get(built_for.partition(".")[0])
    if least is not None and int(driver.partition(".")[0]) < least:
        return (
            f"there is no GPU that torch can use: the NVIDIA driver {driver} is too old for torch built for CUDA "
            f"{built_for}, which needs {least} or newer\n"
            "hint: update the driver, or install torch and FBGEMM built for an older CUDA"
        )
    return (
        f"there is no GPU that torch can use, though the NVIDIA driver {driver} answers\n"
        "hint: check CUDA_VISIBLE_DEVICES, and that the container was given a GPU"
    )
