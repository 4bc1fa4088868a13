import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.kind_host import (
    CAPABILITIES,
    GIB,
    require_disk,
    require_memory,
    require_modules,
    require_rights,
)

ALL_CAPABILITIES = sum(1 << bit for bit in CAPABILITIES.values())
Usage = namedtuple("Usage", ["total", "used", "free"])  # noqa: PYI024 - what shutil returns


def test_a_withheld_capability_is_named() -> None:
    """A sandbox that drops a capability is told from one without root."""
    with pytest.raises(HostError, match=r"withholds CAP_NET_ADMIN, .*\nhint: "):
        require_rights(0, ALL_CAPABILITIES & ~(1 << CAPABILITIES["CAP_NET_ADMIN"]))


def test_podman_without_root_is_refused() -> None:
    """Nodes of a rootless podman have other limits than those that these clusters were run with."""
    with pytest.raises(HostError, match=r"needs root here, and this is user 1000\nhint: "):
        require_rights(1000, ALL_CAPABILITIES)


def test_root_with_every_needed_capability_is_enough() -> None:
    """CAP_SYS_RESOURCE, which some machines withhold, is not among them."""
    require_rights(0, ALL_CAPABILITIES)


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


def test_every_worker_counts_with_its_own_copy_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four workers with an image of 4 GiB need 16 GiB, which one worker's disk does not have."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(total=100 * GIB, used=90 * GIB, free=10 * GIB))

    require_disk(tmp_path / "not" / "made" / "yet", [4 * GIB], nodes=1)
    with pytest.raises(HostError, match=r"10\.0 GiB free, .* need 22\.0 GiB\nhint: .*CLUSTER=local"):
        require_disk(tmp_path, [4 * GIB], nodes=4)
