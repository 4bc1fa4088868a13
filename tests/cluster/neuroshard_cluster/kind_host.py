"""Checks, before anything is built, that a machine can run kind clusters; each fault comes with a hint."""

import os
import shutil
import tarfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from neuroshard_cluster.cgroups import MOUNT, controllers, hierarchies
from neuroshard_cluster.components import KIND, KUBERNETES
from neuroshard_cluster.engine import Engine
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.preflight import IMAGE_TOOLS, needed_bytes, require_tools

GIB = 2**30
# Bits of Linux capabilities that a node's systemd, kubelet and network need.
CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
CONTROLLERS = ("cpu", "cpuset", "memory", "pids")
# Without images, by what a control plane and a worker took: 0.6 and 0.25 GiB of memory; the rest is for pods.
CONTROL_PLANE_MEMORY_BYTES = 1 * GIB
WORKER_MEMORY_BYTES = GIB // 2
# A node's own copy of the node image's /var, 1.6 GiB as measured, and what it writes besides.
NODE_DISK_BYTES = 2 * GIB
# The node image where it has to be built: the builder's layers, the archive, and the engine's copy, 1.8 GiB each.
NODE_IMAGE_DISK_BYTES = 6 * GIB
# What runs meanwhile may write so much: logs, artifacts of tests, builds of other images.
SPARE_DISK_BYTES = 2 * GIB
PROCESS_STATUS = Path("/proc/self/status")
MEMORY = Path("/proc/meminfo")
MODULES = Path("/lib/modules")


def check_kind_host(engine: Engine, home: Home, *, nodes: int) -> None:
    """Check rights, control groups, memory, disk and Go for a control plane and `nodes` workers.

    Raises:
        HostError: Something is missing; the message names all of it, each with a remedy.
    """
    podman: list[Callable[[], None]] = [
        lambda: require_rights(os.geteuid(), _field(PROCESS_STATUS, "CapBnd", base=16)),
        lambda: require_modules(MODULES),
    ]
    require_all(
        _require_control_groups,
        *(podman if engine.program == "podman" else ()),
        lambda: require_memory(_field(MEMORY, "MemAvailable") * 1024, nodes=nodes),
        lambda: require_go(needed=not KIND.target(home).exists()),
        lambda: require_disk(engine.storage, nodes_bytes(nodes), f"a control plane and {nodes} workers"),
    )


def check_builds(
    engine: Engine, home: Home, *, images: Sequence[str], has_registry: bool, builds_programs: bool
) -> None:
    """Check tools and disk for what is built before nodes start: images and, with `builds_programs`, their programs.

    Raises:
        HostError: Something is missing; the message names all of it, each with a remedy.
    """
    by_docker = has_registry and engine.program == "docker"
    prefix = "docker-" if by_docker else ""
    new = [image for image in images if not any(home.images.glob(f"{prefix}{image}-*.tar"))]
    needed = needed_bytes(new, builds_programs=builds_programs)
    require_all(
        lambda: require_tools(IMAGE_TOOLS if not has_registry or (images and not by_docker) else {}),
        lambda: require_kubectl(home, needed=not builds_programs),
        lambda: require_go(needed=builds_programs),
        lambda: require_disk(engine.storage if by_docker else home.root, needed, "what is built first"),
    )


def require_all(*checks: Callable[[], None]) -> None:
    """Make all checks, and raise a HostError that names all that is missing."""
    problems = []
    for check in checks:
        try:
            check()
        except HostError as error:
            problems.append(str(error))
    if problems:
        raise HostError("\n".join(problems))


def require_go(*, needed: bool) -> None:
    """Check that Go is there if it is needed. Raises HostError."""
    if needed and shutil.which("go") is None:
        raise HostError(
            "kind is built from its Go module, and there is no `go` on PATH\nhint: install Go 1.26 or newer"
        )


def require_kubectl(home: Home, *, needed: bool) -> None:
    """Check that there is a client, built here or installed, if none is going to be built. Raises HostError."""
    if needed and not KUBERNETES.target(home).exists() and shutil.which("kubectl") is None:
        raise HostError("there is no `kubectl` on PATH\nhint: install it; nodes are kind's own, so none is built here")


def _require_control_groups() -> None:
    hierarchies()
    require_controllers(controllers(MOUNT))


def require_rights(user: int, bounding_set: int) -> None:
    """Check that this is root with the capabilities that nodes need; `bounding_set` is a mask of capability bits.

    Raises:
        HostError: It is another user, or the machine withholds a capability.
    """
    if user != 0:
        raise HostError(
            f"kind with podman needs root here, and this is user {user}"
            "\nhint: run the same command as root, or start a Docker engine that this user may use"
        )
    missing = sorted(name for name, bit in CAPABILITIES.items() if not bounding_set >> bit & 1)
    if missing:
        raise HostError(
            f"this machine withholds {', '.join(missing)}, without which no node starts"
            "\nhint: run in a virtual machine or a privileged container"
        )


def require_controllers(found: Collection[str]) -> None:
    """Check that control groups can limit what kubelets limit.

    Raises:
        HostError: They cannot.
    """
    missing = sorted(set(CONTROLLERS) - set(found))
    if missing:
        raise HostError(
            f"the control groups of this machine have no controller {', '.join(missing)}; kubelets do not start without"
            "\nhint: enable it on the kernel's command line, such as cgroup_enable=memory, or in the parent container"
        )


def require_modules(folder: Path) -> None:
    """Check that there is a folder of kernel modules, which kind mounts into every node; it may be empty.

    Raises:
        HostError: There is none.
    """
    if not folder.is_dir():
        raise HostError(
            f"there is no {folder}, which kind mounts into its nodes; a kernel without modules needs an empty one"
            f"\nhint: mkdir --parents {folder}, or make kind-packages, which does"
        )


def require_memory(available_bytes: int, *, nodes: int) -> None:
    """Check that the control plane and `nodes` workers fit into the memory that is free.

    Raises:
        HostError: They do not.
    """
    needed = CONTROL_PLANE_MEMORY_BYTES + nodes * WORKER_MEMORY_BYTES
    if available_bytes < needed:
        raise HostError(
            f"{available_bytes / GIB:.1f} GiB of memory are free, and {nodes} workers need {needed / GIB:.1f} GiB"
            "\nhint: make a smaller cluster (NODES=1), or end other programs"
        )


def require_disk(folder: Path, needed_bytes: int, what: str) -> None:
    """Check that `what` fits on the disk of `folder`, with some space to spare.

    Raises:
        HostError: The disk is too small; the message says what is needed.
    """
    needed = needed_bytes + SPARE_DISK_BYTES
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise HostError(
            f"{folder} has {free / GIB:.1f} GiB free (needed for {what}: {needed / GIB:.1f} GiB)"
            "\nhint: free some space, move NEUROSHARD_CLUSTER_HOME or Docker's data-root, use fewer workers or images"
            " (KIND_NODES=1 IMAGES=probe), or CLUSTER=local, whose nodes share one copy"
        )


def nodes_bytes(nodes: int) -> int:
    """Return the disk space of a control plane and `nodes` workers without images."""
    return (1 + nodes) * NODE_DISK_BYTES


def loading_bytes(archives: Sequence[Path], *, nodes: int) -> int:
    """Return the disk space that each of `nodes` workers takes to load these images one after the other.

    A worker keeps a layer that images share once, and holds the layers of the image that it is loading twice.
    """
    layers: dict[tuple[str, int], int] = {}
    for archive in archives:
        with tarfile.open(archive) as members:
            layers |= {(member.name, member.size): member.size for member in members if member.isfile()}
    return nodes * sum(layers.values()) + max((archive.stat().st_size for archive in archives), default=0)


def _field(file: Path, name: str, *, base: int = 10) -> int:
    lines = (line.split() for line in file.read_text().splitlines())
    return next(int(words[1], base) for words in lines if words and words[0] == f"{name}:")
