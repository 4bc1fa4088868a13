from pathlib import Path

from neuroshard_cluster.podman_traces import leftover_rules, remove_groups

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
