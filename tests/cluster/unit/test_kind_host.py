import io
import shutil
import tarfile
from collections import namedtuple
from pathlib import Path

import pytest
from neuroshard_cluster import cgroups, kind_host
from neuroshard_cluster.cgroups import controllers
from neuroshard_cluster.engine import Engine
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.kind_host import (
    CAPABILITIES,
    CONTROLLERS,
    GIB,
    check_builds,
    check_kind_host,
    loading_bytes,
    require_controllers,
    require_disk,
    require_memory,
    require_modules,
    require_rights,
)

ALL_CAPABILITIES = sum(1 << bit for bit in CAPABILITIES.values())
Usage = namedtuple("Usage", ["total", "used", "free"])  # noqa: PYI024 - what shutil returns


def test_a_withheld_capability_is_named() -> None:
    """A sandbox that drops a capability is distinguished from one without root."""
    with pytest.raises(HostError, match=r"withholds CAP_NET_ADMIN, .*\nhint: "):
        require_rights(0, ALL_CAPABILITIES & ~(1 << CAPABILITIES["CAP_NET_ADMIN"]))


def test_podman_without_root_is_refused() -> None:
    """Nodes of a rootless podman have other limits than those that these clusters were run with."""
    with pytest.raises(HostError, match=r"needs root here, and this is user 1000\nhint: "):
        require_rights(1000, ALL_CAPABILITIES)


def test_root_with_every_needed_capability_is_enough() -> None:
    """CAP_SYS_RESOURCE, which some machines withhold, is not among them."""
    require_rights(0, ALL_CAPABILITIES)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"cgroup.controllers": "cpuset cpu memory pids"}, {"cpuset", "cpu", "memory", "pids"}),
        ({"cpu,cpuacct/cgroup.procs": "", "memory/cgroup.procs": ""}, {"cpu", "cpuacct", "memory"}),
    ],
    ids=["version 2", "version 1"],
)
def test_controllers_are_found_in_both_versions_of_control_groups(
    tmp_path: Path, files: dict[str, str], found: set[str]
) -> None:
    """Version 2 lists them in a file, version 1 has a folder for each or for several."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert controllers(tmp_path) == found


def test_a_missing_controller_is_named() -> None:
    """A kubelet without it ends minutes later, in a log inside of a node."""
    require_controllers([*CONTROLLERS, "io"])
    with pytest.raises(HostError, match=r"no controller memory, pids; .*\nhint: .*cgroup_enable"):
        require_controllers(["cpu", "cpuset"])


def test_a_machine_without_control_groups_is_told_to_mount_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint is the command that mounts version 2."""
    monkeypatch.setattr(cgroups, "MOUNT", tmp_path)

    with pytest.raises(HostError, match=r"no control groups .*\nhint: mount -t cgroup2"):
        cgroups.hierarchies()


def test_a_kernel_without_modules_needs_an_empty_folder(tmp_path: Path) -> None:
    """Kind mounts the folder into every node, and an engine refuses to mount what is not there."""
    require_modules(tmp_path)
    with pytest.raises(HostError, match=r"hint: mkdir --parents .*/modules"):
        require_modules(tmp_path / "modules")


def test_too_little_memory_is_told_with_the_need() -> None:
    """Three workers and a control plane take 2.5 GiB before any pod runs."""
    require_memory(int(2.5 * GIB), nodes=3)
    with pytest.raises(HostError, match=r"2\.4 GiB of memory are free, and 3 workers need 2\.5 GiB\nhint: .*NODES=1"):
        require_memory(int(2.4 * GIB), nodes=3)


def image_archive(path: Path, **layers: int) -> Path:
    """Return an archive with layers of these sizes under these names."""
    with tarfile.open(path, "w") as archive:
        for name, size in layers.items():
            layer = tarfile.TarInfo(name)
            layer.size = size
            archive.addfile(layer, io.BytesIO(bytes(size)))
    return path


def test_a_disk_that_is_too_small_is_named_with_the_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is needed counts 2 GiB to spare, and the hint names ways to need less."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total=100 * GIB, used=90 * GIB, free=10 * GIB))

    require_disk(tmp_path / "not" / "made" / "yet", 8 * GIB, "two workers")
    with pytest.raises(
        HostError, match=r"has 10\.0 GiB free \(needed for four workers: 18\.0 GiB\)\nhint: .*CLUSTER=local"
    ):
        require_disk(tmp_path, 16 * GIB, "four workers")


def test_every_worker_counts_with_its_own_copy_of_an_image(tmp_path: Path) -> None:
    """Without workers nothing is loaded; each further worker adds the layers again."""
    archive = image_archive(tmp_path / "probe.tar", layer=100_000)
    one, two, three = (loading_bytes([archive], nodes=nodes) for nodes in (1, 2, 3))

    assert two - one == three - two == 100_000


def test_a_layer_that_two_images_share_counts_once(tmp_path: Path) -> None:
    """Profiler and trainer have PyTorch in one layer; only what differs is added."""
    profiler = image_archive(tmp_path / "profiler.tar", torch=100_000, profiler=200)
    trainer = image_archive(tmp_path / "trainer.tar", torch=100_000, trainer=300)

    added = loading_bytes([profiler, trainer], nodes=2) - loading_bytes([profiler], nodes=2)

    assert added == 2 * 300


def test_a_worker_holds_the_image_that_it_is_loading_twice(tmp_path: Path) -> None:
    """Packed and unpacked; images are loaded one after the other, so the largest one decides."""
    large = image_archive(tmp_path / "large.tar", layer=100_000)
    small = image_archive(tmp_path / "small.tar", layer=100)

    assert loading_bytes([large, small], nodes=1) == 100_100 + large.stat().st_size


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a machine with 10 GiB of disk, and without Go, kubectl, or what builds images."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(Engine, "storage", Path("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total=100 * GIB, used=90 * GIB, free=10 * GIB))


def engine(program: str) -> Engine:
    """Return an engine that is never run."""
    return Engine(program=program, reason="", environment={})


@pytest.mark.usefixtures("no_tools")
def test_all_that_a_machine_lacks_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before kind itself is built; the modules' folder is asked for by podman alone."""
    monkeypatch.setattr(kind_host, "MODULES", tmp_path / "modules")
    monkeypatch.setattr(kind_host, "MEMORY", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemAvailable: 1024 kB\n")
    monkeypatch.setattr(kind_host, "hierarchies", lambda: None)
    monkeypatch.setattr(kind_host, "controllers", lambda _: ["cpu", "cpuset"])

    for program, missing in (("podman", 1), ("docker", 0)):
        with pytest.raises(HostError) as raised:
            check_kind_host(engine(program), Home(root=tmp_path), nodes=20)
        text = str(raised.value)
        assert text.count("hint: mkdir") == missing
        for part in ("no controller memory, pids", "GiB of memory are free", "no `go` on PATH", "10.0 GiB free"):
            assert part in text


@pytest.mark.usefixtures("no_tools")
def test_what_builds_images_and_programs_is_asked_for_where_no_registry_answers(tmp_path: Path) -> None:
    """Programs, base, and PyTorch take half an hour and 28 GiB; what is missing is reported before."""
    with pytest.raises(HostError) as raised:
        check_builds(
            engine("podman"), Home(root=tmp_path), images=["trainer"], has_registry=False, builds_programs=True
        )

    text = str(raised.value)
    assert "buildah, debootstrap" in text
    assert "no `go` on PATH" in text
    assert "needed for what is built first: 30.0 GiB" in text
    assert "kubectl" not in text


@pytest.mark.usefixtures("no_tools")
def test_docker_with_a_registry_needs_a_client_alone(tmp_path: Path) -> None:
    """It builds the images itself and runs kind's own nodes; an image that is built takes no more space."""
    home = Home(root=tmp_path)
    home.images.mkdir()
    (home.images / "docker-trainer-0123.tar").touch()

    with pytest.raises(HostError) as raised:
        check_builds(engine("docker"), home, images=["trainer"], has_registry=True, builds_programs=False)

    assert str(raised.value).startswith("there is no `kubectl` on PATH")
    assert len(str(raised.value).splitlines()) == 2


@pytest.mark.parametrize(("images", "times"), [(["probe"], 1), ([], 0)])
@pytest.mark.usefixtures("no_tools")
def test_podman_with_a_registry_builds_images_as_the_local_provider_does(
    tmp_path: Path, images: list[str], times: int
) -> None:
    """And is asked for nothing that builds images where there are none to build."""
    with pytest.raises(HostError) as raised:
        check_builds(engine("podman"), Home(root=tmp_path), images=images, has_registry=True, builds_programs=False)

    assert str(raised.value).count("buildah, debootstrap") == times
