import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from neuroshard_cluster.folders import SOURCES

Install = Callable[..., subprocess.CompletedProcess[str]]
SCRIPT = SOURCES / "kind" / "install-packages"


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Return a function that runs the script as user 1000 on a machine without packages and with these programs."""
    for name in ("bash", "timeout", "sh"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))

    def run(**programs: str) -> subprocess.CompletedProcess[str]:
        for name, script in {"id": "echo 1000", "dpkg": "exit 1", **programs}.items():
            (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
            (tmp_path / name).chmod(0o755)
        return subprocess.run([SCRIPT], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)

    return run


def test_docker_with_a_registry_needs_no_package_and_no_root(install: Install) -> None:
    """A hosted runner has Docker, is not root, and its packages conflict with Debian's runc."""
    done = install(docker="exit 0")

    assert done.returncode == 0
    assert "nothing is missing" in done.stdout


def test_docker_without_a_registry_needs_what_builds_images(install: Install) -> None:
    """The engine stays as it is: neither podman nor runc is asked for."""
    done = install(docker='[ "$1" = info ]')

    assert done.returncode == 1
    assert "apt-get install" in done.stderr
    assert {"buildah", "debootstrap"} <= set(done.stderr.split())
    assert not {"podman", "runc"} & set(done.stderr.split())


def test_without_docker_podman_is_the_engine(install: Install) -> None:
    """The reason is printed, and the command for root can be pasted."""
    done = install(docker="exit 1")

    assert "podman, since no Docker engine answers" in done.stdout
    assert {"podman", "netavark", "conmon", "runc", "buildah"} <= set(done.stderr.split())


def test_packages_that_are_there_are_not_installed_again(install: Install) -> None:
    """A second run changes nothing, also without root."""
    done = install(docker="exit 1", dpkg="exit 0")

    assert done.returncode == 0
    assert "all packages are there" in done.stdout
