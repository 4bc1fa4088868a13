import os
from pathlib import Path

import pytest
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.preflight import check_host, require_tools


def test_missing_tools_are_named_with_their_packages() -> None:
    """The message can be pasted into a shell."""
    with pytest.raises(HostError, match=r"not on PATH: ip, runc; on Debian: apt-get install iproute2 runc"):
        require_tools({"ip": "iproute2", "runc": "runc", "gcc": "gcc"}, found=["gcc"])


def test_without_root_the_way_out_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without root is told of kind."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)

    with pytest.raises(HostError, match=r"needs root.*CLUSTER=kind"):
        check_host(Home(root=tmp_path))
