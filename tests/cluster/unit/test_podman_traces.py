from collections.abc import Sequence
from pathlib import Path

import pytest
from neuroshard_cluster import podman_traces
from neuroshard_cluster.engine import Engine
from neuroshard_cluster.podman_traces import leftover_rules, remove_groups, remove_traces

LISTED = """-P POSTROUTING ACCEPT
-N NETAVARK-HOSTPORT-DNAT
-N NETAVARK-HOSTPORT-MASQ
-N OTHER
-A POSTROUTING -j NETAVARK-HOSTPORT-MASQ
-A POSTROUTING -j OTHER
-A NETAVARK-HOSTPORT-MASQ -m comment --comment "netavark portfw masq mark" -j MASQUERADE
"""


def test_jumps_are_deleted_before_the_chains_that_they_lead_to() -> None:
    """The kernel refuses to delete a chain that a rule still names, and chains of others are left alone."""
    assert list(leftover_rules(LISTED)) == [
        ["-D", "POSTROUTING", "-j", "NETAVARK-HOSTPORT-MASQ"],
        ["-F", "NETAVARK-HOSTPORT-DNAT"],
        ["-F", "NETAVARK-HOSTPORT-MASQ"],
        ["-X", "NETAVARK-HOSTPORT-DNAT"],
        ["-X", "NETAVARK-HOSTPORT-MASQ"],
    ]


def test_a_table_that_podman_never_used_stays_as_it_is() -> None:
    """Without podman's chains there is nothing to delete."""
    assert not list(leftover_rules("-P INPUT ACCEPT\n-N OTHER\n-A INPUT -j OTHER\n"))


def test_empty_control_groups_go_from_the_bottom(tmp_path: Path) -> None:
    """A group can only be removed once no group is below it; one that is in use stays."""
    (tmp_path / "parent" / "libpod-a" / "deep").mkdir(parents=True)
    in_use = tmp_path / "parent" / "libpod-b"
    in_use.mkdir()
    (in_use / "process").touch()

    remove_groups(tmp_path / "parent")

    assert [path.name for path in (tmp_path / "parent").iterdir()] == ["libpod-b"]


def test_nothing_goes_while_a_container_of_another_home_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its podman is not asked, for its storage is not known; its monitor's command line tells where it runs."""
    asked: list[str] = []
    monkeypatch.setattr(podman_traces, "PROCESSES", tmp_path)

    def run(argv: Sequence[object]) -> str:
        asked.append(str(argv[0]))
        return ""

    monkeypatch.setattr(podman_traces, "run", run)
    monkeypatch.setattr(Engine, "run", lambda *_: "")
    monkeypatch.setattr(podman_traces, "MOUNT", tmp_path / "groups")
    monkeypatch.setattr(podman_traces, "NETWORK_NAMESPACES", tmp_path / "netns")
    monkeypatch.setattr(podman_traces, "RUN_ROOT", tmp_path / "run")
    process = tmp_path / "41210"
    process.mkdir()
    words = ["/usr/bin/conmon", "--persist-dir", f"{tmp_path}/run/89abcdef/overlay-containers/c", "-c"]
    (process / "cmdline").write_text("\0".join(words))
    overlay = tmp_path / "run" / "89abcdef" / "overlay"
    overlay.mkdir(parents=True)
    engine = Engine(program="podman", reason="", environment={})

    remove_traces(engine)
    while_it_runs = list(asked)
    (process / "cmdline").write_text("sleep\0" + words[2])
    remove_traces(engine)

    assert while_it_runs == ["podman"]
    assert asked[1:] == ["podman", "iptables", "iptables", "rm"]
