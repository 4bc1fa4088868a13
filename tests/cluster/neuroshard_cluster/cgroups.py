"""The control groups of one cluster: the kernel's own list of everything that the cluster has started.

A process can lose its parent, its pid file and its starter, but not its control group; so this is what `down` trusts.
Version 1 (a folder for each controller) and version 2 (one folder) differ only in where the folders are.
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from neuroshard_cluster.errors import ClusterError, HostError

MOUNT = Path("/sys/fs/cgroup")
SYSTEM = "system"  # where the cluster's own processes live: version 2 allows processes only in leaves
GIVE_UP_AFTER_S = 20.0


def hierarchies() -> list[Path]:
    """Return the root of each control group hierarchy of this machine.

    Raises:
        HostError: None is mounted.
    """
    if (MOUNT / "cgroup.controllers").exists():
        return [MOUNT]
    found = sorted({path.parent.resolve() for path in MOUNT.glob("*/cgroup.procs")})
    if not found:
        raise HostError(
            f"no control groups are mounted at {MOUNT}; kubelets cannot run without"
            f"\nhint: mount -t cgroup2 none {MOUNT}, or start this machine or container with its control groups mounted"
        )
    return found


def controllers(mount: Path) -> set[str]:
    """Return the resources that control groups below `mount` can limit, in either version."""
    if (mount / "cgroup.controllers").exists():
        return set((mount / "cgroup.controllers").read_text().split())
    return {name for path in mount.glob("*/cgroup.procs") for name in path.parent.name.split(",")}


@dataclass(frozen=True, kw_only=True, slots=True)
class Owner:
    """All control groups of the cluster `name`, in all hierarchies."""

    name: str

    @property
    def path(self) -> str:
        """The group's path below each hierarchy's root."""
        return f"neuroshard-{self.name}"

    def _roots(self) -> list[Path]:
        return [root / self.path for root in hierarchies()]

    def create(self, group: str) -> None:
        """Make the group `group` in every hierarchy, ready to hold processes or a kubelet's own groups."""
        for root in hierarchies():
            folder = root
            for part in (self.path, group):
                if (folder / "cgroup.subtree_control").exists() and root == MOUNT:
                    controllers = (folder / "cgroup.controllers").read_text().split()
                    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
                folder /= part
                folder.mkdir(exist_ok=True)
                for setting in ("cpuset.cpus", "cpuset.mems"):  # version 1 starts them empty, and then takes no process
                    if (root / setting).exists():
                        (folder / setting).write_text((folder.parent / setting).read_text())

    def enter(self, group: str = SYSTEM) -> None:
        """Put the calling process into `group`, and with it whatever it starts from now on."""
        for root in self._roots():
            (root / group / "cgroup.procs").write_text("0")  # "me", in any pid namespace

    def pids(self) -> set[int]:
        """Return the host pids of all processes in any of the groups."""
        found: set[int] = set()
        for root in self._roots():
            for path in root.rglob("cgroup.procs"):
                try:
                    found.update(int(pid) for pid in path.read_text().split())
                except OSError:  # the group went while we looked
                    continue
        return found

    def memory_bytes(self) -> dict[str, int]:
        """Return the memory of all processes by program; a page that several share counts once, in equal parts."""
        sums: dict[str, int] = {}
        for pid in self.pids():
            with contextlib.suppress(OSError):  # the process went while we looked
                program = Path(f"/proc/{pid}/comm").read_text().strip()
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                kibibytes = next((line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")), "0")
                sums[program] = sums.get(program, 0) + int(kibibytes) * 1024
        return sums

    def exists(self) -> bool:
        """Return whether any of the groups is there."""
        return any(root.exists() for root in self._roots())

    def destroy(self) -> None:
        """Kill every process and remove every group. Harmless when there is none.

        Raises:
            ClusterError: Some process or group would not go.
        """
        deadline = time.monotonic() + GIVE_UP_AFTER_S
        while self.exists():
            pids = self.pids()
            if time.monotonic() > deadline:
                raise ClusterError(f"control groups {self.path} would not go; processes left in them: {sorted(pids)}")
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if not pids:
                self._remove_folders()
            time.sleep(0.02)

    def _remove_folders(self) -> None:
        for root in self._roots():
            groups = [path for path in root.rglob("*") if path.is_dir()] if root.exists() else []
            for group in [*sorted(groups, reverse=True), root]:
                try:
                    group.rmdir()
                except OSError:  # a dying process still holds it, or it is gone: the next round tells
                    continue
