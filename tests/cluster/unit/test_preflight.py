import os
import shutil
from pathlib import Path

import pytest
from neuroshard_cluster import preflight
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.preflight import GIB, check_host, needed_bytes, require_disk, require_tools


def test_missing_tools_are_named_with_their_packages() -> None:
    """The message can be pasted into a shell."""
    with pytest.raises(
        HostError, match=r"not on PATH: ip, runc; on Debian: apt-get install iproute2 runc, or make cluster-packages"
    ):
        require_tools({"ip": "iproute2", "runc": "runc", "gcc": "gcc"}, found=["gcc"])


def test_without_root_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without root gets a hint at kind."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(HostError, match=r"needs root.*CLUSTER=kind"):
        check_host(Home(root=tmp_path), images=[])


def test_all_that_is_missing_is_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools that build images, which come last, are asked for before the half hour that the programs take."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in {"buildah", "debootstrap", "go"} else tool)

    with pytest.raises(HostError) as raised:
        check_host(Home(root=tmp_path), images=["probe"])

    assert "needs root" in str(raised.value)
    assert "not on PATH: buildah, debootstrap;" in str(raised.value)
    assert "there is no `go` on PATH" in str(raised.value)


def test_tools_for_images_are_not_asked_for_without_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without images builds none."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool in {"buildah", "debootstrap"} else tool)

    with pytest.raises(HostError) as raised:
        check_host(Home(root=tmp_path), images=[])

    assert "not on PATH" not in str(raised.value)


def test_a_go_that_is_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own message would come after minutes, or it would try to fetch another one."""
    monkeypatch.setattr(shutil, "which", lambda tool: tool)
    monkeypatch.setattr(preflight, "run", lambda _: "go1.25.9 X:nodwarf5\n")

    with pytest.raises(HostError, match=r"need Go 1\.\d+\.\d+ \(found go1\.25\.9 X:nodwarf5\); install it"):
        check_host(Home(root=tmp_path), images=[])

    assert preflight.go_version("1.26.10") > preflight.go_version("1.26.6")


def test_a_small_disk_is_named_before_the_build(tmp_path: Path) -> None:
    """The images with PyTorch take most of it; what is built already takes nothing more."""
    free = shutil.disk_usage(tmp_path).free

    assert needed_bytes([], builds_programs=False) == 0
    assert needed_bytes(["probe"], builds_programs=True) == 13 * GIB
    assert needed_bytes(["operator", "trainer"], builds_programs=False) == 17 * GIB
    require_disk(tmp_path / "new", free // 2)
    with pytest.raises(HostError, match=r"a first build needs \d+ GiB, .* set NEUROSHARD_CLUSTER_HOME"):
        require_disk(tmp_path / "new", free * 2)
