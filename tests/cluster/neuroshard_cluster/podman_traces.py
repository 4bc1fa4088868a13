"""Removes what podman leaves on a machine after its last container: packet filter chains, mounts, control groups.

Nothing is removed while any container is left, of clusters of any home folder or of the user's own podman.
"""

import contextlib
import shlex
from collections.abc import Iterator
from pathlib import Path

from neuroshard_cluster.cgroups import MOUNT
from neuroshard_cluster.commands import run, succeeds
from neuroshard_cluster.engine import RUN_ROOT, Engine

PROCESSES = Path("/proc")
NETWORK_NAMESPACES = Path("/run/netns")
CHAINS = "NETAVARK"
TABLES = ("nat", "filter")


def remove_traces(engine: Engine) -> None:
    """Remove the traces of an engine that is podman and has no container left; else do nothing."""
    if engine.program != "podman" or engine.run("ps", "--all", "--quiet").strip():
        return
    if run(["podman", "ps", "--all", "--quiet"]).strip() or any(monitors(PROCESSES)):
        return
    for table in TABLES:
        for rule in leftover_rules(run(["iptables", "--table", table, "--list-rules"])):
            run(["iptables", "--wait", "--table", table, *rule])
    if NETWORK_NAMESPACES.is_dir() and not any(NETWORK_NAMESPACES.iterdir()):
        succeeds(["umount", NETWORK_NAMESPACES])  # a bind mount of itself, which nothing but umount tells from a folder
    for folder in (MOUNT / "libpod_parent", *MOUNT.glob("*/libpod_parent")):
        remove_groups(folder)
    for overlay in (RUN_ROOT / "overlay", *RUN_ROOT.glob("*/overlay")):
        succeeds(["umount", "--recursive", overlay])
    if RUN_ROOT.exists():
        run(["rm", "-rf", "--one-file-system", RUN_ROOT])


def monitors(processes: Path) -> Iterator[str]:
    """Yield the pids of podman's monitors of containers of any home folder: one runs as long as its container.

    Args:
        processes: `/proc`.
    """
    for process in processes.glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[0].endswith(b"conmon") and any(word.startswith(bytes(RUN_ROOT)) for word in words):
                yield process.name


def leftover_rules(listed: str) -> Iterator[list[str]]:
    """Yield the words that delete podman's chains from a table, in order: jumps to them, their rules, themselves.

    Args:
        listed: what `iptables --list-rules` printed.
    """
    rules = [shlex.split(line) for line in listed.splitlines()]
    chains = [words[1] for words in rules if words[0] == "-N" and words[1].startswith(CHAINS)]
    for words in rules:
        if words[0] == "-A" and not words[1].startswith(CHAINS) and any(word in chains for word in words):
            yield ["-D", *words[1:]]
    yield from (["-F", chain] for chain in chains)
    yield from (["-X", chain] for chain in chains)


def remove_groups(folder: Path) -> None:
    """Remove a control group and those below it; those that hold a process stay."""
    for path in sorted((found for found in folder.rglob("*") if found.is_dir()), reverse=True):
        with contextlib.suppress(OSError):
            path.rmdir()
    with contextlib.suppress(OSError):
        folder.rmdir()
