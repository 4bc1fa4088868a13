"""The container engine that kind runs nodes with: a Docker that answers, else podman, which needs no daemon.

podman gets a storage and settings of its own below the home folder, so that the user's images stay untouched and
deleting the home forgets everything. An engine never pulls an image except kind's own node image.
"""

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from neuroshard_cluster.commands import run, succeeds
from neuroshard_cluster.errors import CommandError, HostError
from neuroshard_cluster.folders import Home

PACKAGES = ("podman", "netavark", "aardvark-dns", "conmon", "runc", "iptables")
SYSTEMD = Path("/run/systemd/system")
RUN_ROOT = Path("/run/neuroshard-podman")
# Whether a registry answers is known by then: a pull of a node image that has begun takes longer and is not cut off.
REGISTRY_ANSWERS_WITHIN_S = 20.0
STORAGE = """[storage]
driver = "overlay"
graphroot = "{root}/storage"
runroot = "{run_root}"
"""
# Without default ulimits and a limit of processes, a machine without CAP_SYS_RESOURCE can start containers too.
CONTAINERS = """[containers]
default_ulimits = []
pids_limit = 0
[engine]
cgroup_manager = "{cgroup_manager}"
events_logger = "file"
runtime = "runc"
volume_path = "{root}/volumes"
static_dir = "{root}/static"
[network]
network_backend = "netavark"
network_config_dir = "{root}/networks"
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """One engine: its program, why it was chosen, and the environment in which it and kind find each other."""

    program: str
    reason: str
    environment: Mapping[str, str]

    def run(self, *words: str | Path, stdin: Path | None = None, timeout_s: float | None = None) -> str:
        """Run `docker words...` or `podman words...`, reading the file `stdin`, and return its output.

        Raises:
            CommandError: The engine failed; the message is its own.
        """
        return run([self.program, *words], stdin=stdin, env=os.environ | self.environment, timeout_s=timeout_s)

    @property
    def storage(self) -> Path:
        """The folder with images and containers, which need not be on the home folder's disk."""
        field = "{{.DockerRootDir}}" if self.program == "docker" else "{{.Store.GraphRoot}}"
        return Path(self.run("info", f"--format={field}").strip())

    def has_image(self, name: str) -> bool:
        """Whether an image of that name is in the engine's storage."""
        return bool(self.run("images", "--quiet", f"--filter=reference={name}").strip())

    def pulled(self, name: str) -> bool:
        """Whether an image is there, pulled now if a registry has it; False without one.

        Raises:
            CommandError: A registry has it, and the pull failed.
        """
        if self.has_image(name):
            return True
        try:
            self.run("manifest", "inspect", name, timeout_s=REGISTRY_ANSWERS_WITHIN_S)
        except CommandError:
            return False
        self.run("pull", "--quiet", name)
        return True


def docker_answers() -> bool:
    """Whether a Docker engine is there and may be used."""
    return shutil.which("docker") is not None and succeeds(["docker", "info"])


def found_engine(home: Home) -> Engine:
    """Return the engine to use: Docker if it answers, else podman.

    Raises:
        HostError: Neither is there; the message names the packages.
    """
    if docker_answers():
        return Engine(program="docker", reason="it answers", environment={})
    why_not = "Docker does not answer" if shutil.which("docker") else "there is no Docker"
    if shutil.which("podman") is None:
        raise HostError(
            f"kind needs a container engine: {why_not}, and there is no podman\n"
            f"hint: start Docker, or on Debian: apt-get install --no-install-recommends {' '.join(PACKAGES)}"
        )
    return Engine(program="podman", reason=why_not, environment=podman_environment(home.root / "podman"))


def engine_of(program: str, home: Home) -> Engine:
    """Return the engine `docker` or `podman` that a cluster was made with, whatever else answers by now.

    Raises:
        HostError: It does not answer.
    """
    answers = docker_answers() if program == "docker" else shutil.which(program) is not None
    if not answers:
        raise HostError(
            f"the cluster was made with {program}, which does not answer; its containers may still be there"
            f"\nhint: start {program} and try again; where it is gone for good, delete the folder in {home.clusters}"
        )
    environment = {} if program == "docker" else podman_environment(home.root / "podman")
    return Engine(program=program, reason="the cluster was made with it", environment=environment)


def run_root(root: Path) -> Path:
    """Return the folder of what runs with the storage below `root`: two storages with one would mix up their mounts."""
    return RUN_ROOT / hashlib.sha256(str(root).encode()).hexdigest()[:8]


def podman_environment(root: Path) -> dict[str, str]:
    """Write settings for a storage below `root`; return the environment that makes podman and kind use them."""
    root.mkdir(parents=True, exist_ok=True)
    cgroup_manager = "systemd" if SYSTEMD.exists() else "cgroupfs"
    (root / "storage.conf").write_text(STORAGE.format(root=root, run_root=run_root(root)))
    (root / "containers.conf").write_text(CONTAINERS.format(root=root, cgroup_manager=cgroup_manager))
    return {
        "CONTAINERS_STORAGE_CONF": str(root / "storage.conf"),
        "CONTAINERS_CONF": str(root / "containers.conf"),
        "KIND_EXPERIMENTAL_PROVIDER": "podman",
    }
