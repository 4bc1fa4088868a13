"""Checks, before anything is built, what the machine must offer; names all that is missing, and the remedy."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from neuroshard_cluster.cgroups import hierarchies
from neuroshard_cluster.commands import run
from neuroshard_cluster.components import CORE
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import Home

# Program -> Debian package.
TOOLS = {
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "openssl": "openssl",
    "gcc": "gcc",
    "conntrack": "conntrack",
}
IMAGE_TOOLS = {"buildah": "buildah", "debootstrap": "debootstrap", "setpriv": "util-linux", "apt-get": "apt"}
GO_LINE = re.compile(r"^go (\S+)$", re.MULTILINE)
GIB = 2**30
# What a first build writes, as measured in docs/guides/testing.md: programs and Go's caches; the base with one image;
# all layers and archives of the images with PyTorch, which share them.
PROGRAMS_BYTES = 11 * GIB
IMAGES_BYTES = 2 * GIB
PYTORCH_BYTES = 15 * GIB
WITH_PYTORCH = {"profiler", "trainer"}
NAMESPACES = ("mnt", "net", "pid", "uts", "ipc")
# A node has a /var and a /run of its own, in which the home folder would be hidden.
HIDDEN_ON_NODES = (Path("/var"), Path("/run"))


def require_tools(tools: dict[str, str], found: Iterable[str] | None = None) -> None:
    """Check that every program in `tools` is installed; `found` replaces the look at PATH.

    Raises:
        HostError: Some are missing.
    """
    present = {tool for tool in tools if shutil.which(tool)} if found is None else set(found)
    missing = sorted(set(tools) - present)
    if missing:
        packages = " ".join(sorted({tools[tool] for tool in missing}))
        raise HostError(
            f"not on PATH: {', '.join(missing)}; on Debian: apt-get install {packages}, or make cluster-packages"
        )


def check_host(home: Home, *, images: Sequence[str]) -> None:
    """Check rights, tools, kernel features, and disk for a local cluster with these images.

    Raises:
        HostError: Something is missing; the message names all of it.
    """
    to_build = [name for name in images if not any(home.images.glob(f"{name}-*.tar"))]
    builds_programs = not all(component.target(home).exists() for component in CORE)
    checks: list[Callable[[], None]] = [
        _require_root,
        lambda: require_tools({**TOOLS, **(IMAGE_TOOLS if images else {})}),
        lambda: _require_go(needed=builds_programs),
        _require_kernel,
        lambda: _require_visible(home),
        lambda: require_disk(home.root, needed_bytes(to_build, builds_programs=builds_programs)),
    ]
    problems = [problem for check in checks if (problem := _problem(check))]
    if problems:
        raise HostError("\n".join(problems))


def needed_bytes(images: Sequence[str], *, builds_programs: bool) -> int:
    """Return the disk space that building these images, and the programs, takes."""
    pytorch = PYTORCH_BYTES if WITH_PYTORCH & set(images) else 0
    return (PROGRAMS_BYTES if builds_programs else 0) + (IMAGES_BYTES if images else 0) + pytorch


def require_disk(folder: Path, needed: int) -> None:
    """Check the free space of a folder's file system. Raises HostError."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise HostError(
            f"{folder}: a first build needs {needed / GIB:.0f} GiB, {free / GIB:.1f} GiB are free;"
            " set NEUROSHARD_CLUSTER_HOME to a folder on a larger disk"
        )


def _problem(check: Callable[[], object]) -> str:
    try:
        check()
    except HostError as error:
        return str(error)
    return ""


def _require_root() -> None:
    if os.geteuid() != 0:
        raise HostError(
            f"a local cluster needs root, and this is user {os.geteuid()}; run it as root, or install Docker and use"
            " CLUSTER=kind"
        )


def _require_go(*, needed: bool) -> None:
    if not needed:
        return
    wanted = wanted_go()
    name = ".".join(map(str, wanted))
    if shutil.which("go") is None:
        raise HostError(f"the programs are built from Go modules, and there is no `go` on PATH; install Go {name}")
    found = run(["go", "env", "GOVERSION"]).strip()
    if go_version(found.removeprefix("go")) < wanted:
        raise HostError(f"the programs need Go {name} (found {found}); install it")


def wanted_go() -> tuple[int, ...]:
    """Return the newest version of Go that a component's go.mod asks for."""
    texts = ((component.folder / "go.mod").read_text() for component in CORE)
    return max(go_version(found[1]) for text in texts if (found := GO_LINE.search(text)))


def go_version(text: str) -> tuple[int, ...]:
    """Return the numbers at the start of a version, such as 1.26.6 of `1.26.6 X:nodwarf5`."""
    return tuple(int(number) for number in re.findall(r"\d+", text.split(maxsplit=1)[0]))


def _require_kernel() -> None:
    lacking = [name for name in NAMESPACES if not Path(f"/proc/self/ns/{name}").exists()]
    if lacking:
        raise HostError(f"this kernel has no {', '.join(lacking)} namespaces; use CLUSTER=kind on another machine")
    if "overlay" not in Path("/proc/filesystems").read_text():
        raise HostError(
            "this kernel does not know the overlay file system, which images are made of; `modprobe overlay`"
        )
    hierarchies()


def _require_visible(home: Home) -> None:
    hiding = [folder for folder in HIDDEN_ON_NODES if home.root.resolve().is_relative_to(folder)]
    if hiding:
        raise HostError(
            f"{home.root} is below {hiding[0]}, which every node replaces; set NEUROSHARD_CLUSTER_HOME elsewhere"
        )
