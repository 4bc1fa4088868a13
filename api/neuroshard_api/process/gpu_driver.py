"""The NVIDIA driver of this machine, and why torch can use no GPU. Imports no torch."""

import subprocess

_LEAST_DRIVERS = {"13": 580, "12": 525, "11": 450}
"""First driver branch of each CUDA generation, from the compatibility table of NVIDIA's CUDA release notes."""


def driver_version() -> str | None:
    """Return the version of the GPU's driver. None: there is no NVIDIA driver."""
    return next(iter(_of_each_gpu("driver_version")), None)


def gpu_names() -> tuple[str, ...]:
    """Return the products of this machine's GPUs, as the driver names them; empty without a driver."""
    return _of_each_gpu("name")


def least_driver(*, built_for: str, driver: str) -> int | None:
    """Return the first driver branch that a CUDA version needs. None: the driver is of that branch or newer.

    Args:
        built_for: CUDA version of torch's build.
        driver: version of the driver.
    """
    least = _LEAST_DRIVERS.get(built_for.partition(".")[0])
    return least if least is not None and int(driver.partition(".")[0]) < least else None


def _of_each_gpu(field: str) -> tuple[str, ...]:
    """Return a field of nvidia-smi for each GPU; empty where there is no driver that answers."""
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603 - a constant command
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in result.stdout.splitlines() if line.strip())


def why_no_gpu(*, built_for: str | None, driver: str | None) -> str:
    """Return the reason why torch sees no GPU, with a hint.

    Args:
        built_for: CUDA version of torch's build. None: a build without CUDA.
        driver: version of the driver. None: there is none.
    """
    if built_for is None:
        return (
            "there is no GPU that torch can use: this build of torch is without CUDA"
            "; hint: install a CUDA build of torch, or give --device cpu"
        )
    if driver is None:
        return (
            "there is no GPU that torch can use: no NVIDIA driver answers nvidia-smi"
            "; hint: run on a node with GPUs and ask for them (limits of nvidia.com/gpu), or give --device cpu"
        )
    if (least := least_driver(built_for=built_for, driver=driver)) is not None:
        return (
            f"there is no GPU that torch can use: the NVIDIA driver {driver} is too old for torch built for CUDA "
            f"{built_for}, which needs {least} or newer"
            "; hint: update the driver, or install torch and FBGEMM built for an older CUDA"
        )
    return (
        f"there is no GPU that torch can use, though the NVIDIA driver {driver} answers"
        "; hint: check CUDA_VISIBLE_DEVICES, and that the container was given a GPU"
    )
