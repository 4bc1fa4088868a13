import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from neuroshard_cluster.engine import RUN_ROOT, Engine, engine_of, found_engine, podman_environment
from neuroshard_cluster.errors import CommandError, HostError
from neuroshard_cluster.folders import Home

AddProgram = Callable[[str, str], None]


@pytest.fixture
def add_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AddProgram:
    """Return a function that puts a shell script on a PATH without any engine, under a program's name."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "env"):
        (folder / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(folder))

    def add(name: str, script: str) -> None:
        program = folder / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return add


def test_a_docker_that_answers_is_chosen_before_podman(tmp_path: Path, add_program: AddProgram) -> None:
    """Docker is what kind is used with most; podman on the same machine changes nothing."""
    add_program("docker", "exit 0")
    add_program("podman", "exit 0")

    engine = found_engine(Home(root=tmp_path))

    assert (engine.program, engine.environment) == ("docker", {})


def test_podman_takes_the_place_of_a_docker_that_does_not_answer(tmp_path: Path, add_program: AddProgram) -> None:
    """A client without its engine is not an engine, and the reason says so."""
    add_program("docker", "exit 1")
    add_program("podman", "exit 0")

    engine = found_engine(Home(root=tmp_path))

    assert (engine.program, engine.reason) == ("podman", "Docker does not answer")
    assert engine.environment["KIND_EXPERIMENTAL_PROVIDER"] == "podman"


@pytest.mark.usefixtures("add_program")
def test_without_an_engine_the_packages_are_named(tmp_path: Path) -> None:
    """The hint can be pasted into a shell."""
    with pytest.raises(
        HostError, match=r"(?s)there is no Docker, and there is no podman\nhint: .*apt-get install .*podman"
    ):
        found_engine(Home(root=tmp_path))


def test_podman_keeps_its_images_below_the_home_folder(tmp_path: Path) -> None:
    """The user's own images are not touched, and deleting the home folder deletes ours."""
    environment = podman_environment(tmp_path / "podman")

    assert f'graphroot = "{tmp_path}/podman/storage"' in Path(environment["CONTAINERS_STORAGE_CONF"]).read_text()
    assert f'volume_path = "{tmp_path}/podman/volumes"' in Path(environment["CONTAINERS_CONF"]).read_text()


def engine(program: str) -> Engine:
    """Return an engine with no environment of its own."""
    return Engine(program=program, reason="", environment={})


def test_an_image_that_is_there_is_not_pulled(add_program: AddProgram) -> None:
    """A node image that was loaded by hand serves without a registry."""
    add_program("docker", '[ "$1" = images ] && echo 0123456789ab')

    assert engine("docker").pulled("kindest/node:v1")


def test_an_image_that_no_registry_has_is_reported_as_missing(add_program: AddProgram) -> None:
    """No registry is a state to go on from, not an error."""
    add_program("docker", '[ "$1" = images ] || exit 1')

    assert not engine("docker").pulled("kindest/node:v1")


def test_an_image_that_a_registry_has_is_pulled(tmp_path: Path, add_program: AddProgram) -> None:
    """Where the registry knows the image, the pull runs to its end."""
    log = tmp_path / "log"
    add_program("docker", f'[ "$1" = images ] || echo "$@" >>{log}')

    assert engine("docker").pulled("kindest/node:v1")
    assert log.read_text().splitlines()[-1] == "pull --quiet kindest/node:v1"


def test_a_pull_that_fails_is_an_error(add_program: AddProgram) -> None:
    """The registry answers: a full disk or a limit of pulls must not pass for a machine without one."""
    add_program("docker", 'case "$1" in images|manifest) exit 0;; esac; echo "toomanyrequests" >&2; exit 1')

    with pytest.raises(CommandError, match="toomanyrequests"):
        engine("docker").pulled("kindest/node:v1")


def test_a_cluster_keeps_the_engine_that_it_was_made_with(tmp_path: Path, add_program: AddProgram) -> None:
    """A Docker that was started later knows nothing of a podman cluster."""
    add_program("docker", "exit 0")
    add_program("podman", "exit 0")

    podman = engine_of("podman", Home(root=tmp_path))

    assert podman.program == "podman"
    assert podman.environment["KIND_EXPERIMENTAL_PROVIDER"] == "podman"
    assert engine_of("docker", Home(root=tmp_path)).environment == {}


def test_each_engine_names_the_folder_of_its_storage(add_program: AddProgram) -> None:
    """Docker's is not below the home folder, and often on another disk."""
    add_program("docker", '[ "$1 $2" = "info --format={{.DockerRootDir}}" ] && echo /var/lib/docker')
    add_program("podman", '[ "$1 $2" = "info --format={{.Store.GraphRoot}}" ] && echo /home/podman/storage')

    assert engine("docker").storage == Path("/var/lib/docker")
    assert engine("podman").storage == Path("/home/podman/storage")


def test_two_homes_share_no_folder_of_what_runs(tmp_path: Path) -> None:
    """Podman counts the mounts of layers there, by names that two storages have in common."""
    homes = [tmp_path / name for name in ("one", "two", "one")]
    settings = [Path(podman_environment(home)["CONTAINERS_STORAGE_CONF"]).read_text() for home in homes]
    lines = [next(line for line in text.splitlines() if line.startswith("runroot")) for text in settings]

    assert lines[0] == lines[2] != lines[1]
    assert all(str(RUN_ROOT) in line for line in lines)
