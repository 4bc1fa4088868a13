"""Releases of torch, FBGEMM, and TorchRec that belong together. Reads the metadata of packages, and imports none.

Each release of the three is built for the others of its generation: FBGEMM's libraries link torch's, and TorchRec calls
names of FBGEMM that one release has and the next has elsewhere. What is mixed fails late and in its own words, such
as an undefined symbol or a missing attribute, so it is named at the start.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata

KERNEL_BUILDS = ("fbgemm-gpu", "fbgemm-gpu-cpu")
"""The distributions that bring FBGEMM's kernels: for GPUs, and for CPUs alone."""

VersionOf = Callable[[str], str | None]
"""From the name of a distribution to its installed version. None: it is not installed."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Releases, major and minor, that are tested together."""

    torch: str
    fbgemm: str
    torchrec: str

    def __str__(self) -> str:
        return f"torch {self.torch} with {KERNEL_BUILDS[0]} {self.fbgemm} and torchrec {self.torchrec}"


TESTED = (
    Generation(torch="2.14", fbgemm="1.9", torchrec="1.9"),
    Generation(torch="2.13", fbgemm="1.8", torchrec="1.8"),
)
"""Newest first: that of `constraints.txt`, and that of `make test-torchrec-1.8`."""
TRAINER_TORCHREC = (1, 9)
"""Oldest TorchRec that the trainer runs with: 1.8 builds no data_parallel tables whose collectives wait, and 1.6 lacks
the method altogether."""


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution. None: it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def mixed_generations(version_of: VersionOf = installed_version) -> str | None:
    """Return a sentence with a hint where the installed releases are not of one tested generation. None: they are.

    Packages that are not installed are of any generation.
    """
    torch, torchrec = version_of("torch"), version_of("torchrec")
    kernels = {name: version for name in KERNEL_BUILDS if (version := version_of(name)) is not None}
    found = {"torch": torch, **kernels, "torchrec": torchrec}
    if any(
        (torch is None or _release(torch) == each.torch)
        and (torchrec is None or _release(torchrec) == each.torchrec)
        and all(_release(version) == each.fbgemm for version in kernels.values())
        for each in TESTED
    ):
        return None
    listed = [f"{name} {version}" for name, version in found.items() if version is not None]
    together = f"{', '.join(listed[:-1])} and {listed[-1]} are" if len(listed) > 1 else f"{listed[0]} is"
    return (
        f"{together} not of one release that was tested, and may fail or measure wrongly"
        f"; hint: install {', or '.join(map(str, TESTED))}"
    )


def too_old_for_training(version_of: VersionOf = installed_version) -> str | None:
    """Return a sentence with a hint where TorchRec lacks what the trainer calls. None: it has it, or is not here."""
    torchrec = version_of("torchrec")
    if torchrec is None or _numbers(torchrec) >= TRAINER_TORCHREC:
        return None
    return (
        f"torchrec {torchrec} is installed, the trainer needs {'.'.join(map(str, TRAINER_TORCHREC))} or newer"
        f"; hint: install {TESTED[0]}"
    )


def kernels_hint(version_of: VersionOf = installed_version) -> str:
    """Return the command that installs TorchRec and FBGEMM for the installed torch, or those of the newest generation.

    Without their dependencies: TorchRec asks for ``fbgemm-gpu``, which does not load where there is no driver.
    """
    torch = version_of("torch")
    fitting = next((each for each in TESTED if torch is not None and _release(torch) == each.torch), TESTED[0])
    gpu, cpu = KERNEL_BUILDS
    return f"pip install --no-deps torchrec~={fitting.torchrec}.0 {cpu}~={fitting.fbgemm}.0 (with a GPU: {gpu})"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdecimal() else 0 for part in version.split(".")[:2])


def _release(version: str) -> str:
    return ".".join(version.split(".")[:2])
