"""What is installed here next to what each command needs. Reads the metadata of packages, and imports none of them."""

import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from neuroshard_api.process.generations import (
    KERNEL_BUILDS,
    VersionOf,
    installed_version,
    kernels_hint,
    mixed_generations,
    too_old_for_training,
)
from neuroshard_api.process.gpu_driver import least_driver
from neuroshard_api.process.missing_package import install_hint
from packaging.requirements import Requirement

from neuroshard_cli.command_list import CommandEntry

DISTRIBUTION = "neuroshard-operator"


@dataclass(frozen=True)
class CommandCheck:
    """Whether a command could run here."""

    command: str
    missing: tuple[str, ...]
    """Requirements that no installed package meets, with what was found."""
    install: str | None
    """What installs them. None: nothing is missing."""


def cuda_of_torch() -> str | None:
    """Return the CUDA version that the installed torch is built for. None: a build without CUDA, or no torch.

    Read from the file that torch's build leaves, since importing torch takes seconds.
    """
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    built = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    cuda: str | None = built.get("cuda")
    return cuda


def check_command(entry: CommandEntry, *, version_of: VersionOf = installed_version) -> CommandCheck:
    """Compare what is installed with what a command needs."""
    missing = [] if entry.extra is None else list(_unmet(entry.extra, version_of))
    installs = [install_hint(entry.extra)] if entry.extra is not None and missing else []
    if entry.kernels:
        absent = absent_kernels(version_of)
        missing += absent
        if absent:
            installs.append(kernels_hint(version_of))
    return CommandCheck(entry.name, tuple(missing), "; ".join(installs) or None)


def conflicts(*, version_of: VersionOf = installed_version, cuda: str | None, driver: str | None) -> Iterator[str]:
    """Yield the conflicts between installed packages, each with a hint.

    Args:
        version_of: versions of what is installed.
        cuda: version that torch is built for. None: a build without CUDA.
        driver: version of the NVIDIA driver. None: there is none.
    """
    torch = version_of("torch")
    kernels = {name: version for name in KERNEL_BUILDS if (version := version_of(name)) is not None}
    if len(kernels) > 1:
        yield (
            f"{' and '.join(kernels)} are both installed, and share their import name"
            f"; hint: pip uninstall {' '.join(kernels)}, then install the one for this machine"
        )
    releases = too_old_for_training(version_of) or mixed_generations(version_of)
    if releases is not None:
        yield releases
    if driver is None or torch is None:
        return
    if cuda is None:
        yield (
            f"there is an NVIDIA driver ({driver}), and torch {torch} is built without CUDA: training uses the CPU"
            "; hint: install a CUDA build of torch"
        )
    elif (least := least_driver(built_for=cuda, driver=driver)) is not None:
        yield (
            f"the NVIDIA driver {driver} is too old for torch built for CUDA {cuda}, which needs {least} or newer"
            "; hint: update the driver, or install torch and FBGEMM built for an older CUDA"
        )
    if cuda is not None and tuple(kernels) == KERNEL_BUILDS[1:]:
        yield (
            f"there is an NVIDIA driver ({driver}), and FBGEMM's kernels are those for CPUs ({KERNEL_BUILDS[1]})"
            f"; hint: pip uninstall {KERNEL_BUILDS[1]}, then pip install --no-deps {KERNEL_BUILDS[0]}"
        )


def _unmet(extra: str, version_of: VersionOf) -> Iterator[str]:
    """Yield the requirements of the distribution with an extra that no installed package meets."""
    pending, seen = [extra], {extra}
    yielded = set()
    while pending:
        current = pending.pop()
        for requirement in map(Requirement, metadata.requires(DISTRIBUTION) or ()):
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": current}):
                continue
            if requirement.name == DISTRIBUTION:
                pending += sorted(requirement.extras - seen)
                seen |= requirement.extras
                continue
            found = version_of(requirement.name)
            if found is not None and requirement.specifier.contains(found, prereleases=True):
                continue
            needed = f"{requirement.name}{requirement.specifier}"
            if needed not in yielded:
                yielded.add(needed)
                yield needed if found is None else f"{needed} (found {found})"


def absent_kernels(version_of: VersionOf = installed_version) -> list[str]:
    """Return the packages of kernels that a training needs and that are not installed."""
    absent = [] if version_of("torchrec") else ["torchrec"]
    if not any(map(version_of, KERNEL_BUILDS)):
        absent.append(" or ".join(KERNEL_BUILDS))
    return absent
