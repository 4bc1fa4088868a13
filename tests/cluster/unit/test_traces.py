import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from neuroshard_cluster import traces
from neuroshard_cluster.engine import Engine
from neuroshard_cluster.folders import Home
from neuroshard_cluster.traces import added, contained_processes, control_groups, mounts, namespaces, table

V1_MEMBERSHIPS = "2:memory:/sessions/one\n1:pids:/\n"


def groups(root: Path, *paths: str) -> Path:
    """Make control groups below a root and return it."""
    for path in paths:
        (root / path).mkdir(parents=True, exist_ok=True)
    return root


def test_what_was_there_before_is_no_trace() -> None:
    """Only additions count; what went away meanwhile is not this cluster's matter."""
    before = {"mounts": frozenset({"proc at /proc", "tmpfs at /tmp"}), "network links": frozenset({"lo"})}
    after = {"mounts": frozenset({"proc at /proc", "overlay at /x"}), "network links": frozenset({"lo"})}

    assert added(before, after) == {"mounts": ["overlay at /x"], "network links": []}


def test_the_table_names_what_is_left() -> None:
    """One row for each kind of trace, also for those of which nothing is left."""
    rows = table({"mounts": frozenset({"a", "b"})}, {"mounts": [], "network links": ["ns-dev"]}).splitlines()

    assert rows[2:] == ["| mounts | 2 | none |", "| network links | 0 | ns-dev |"]


def test_a_process_in_another_pid_namespace_is_found(tmp_path: Path) -> None:
    """Containers of any engine and nodes of any provider have one of their own."""
    add_processes(tmp_path, {"self": "pid:[1]", "10": "pid:[1]", "11": "pid:[2]"})

    assert list(contained_processes(tmp_path)) == ["11 kubelet"]
    assert set(namespaces(tmp_path)) == {"pid:[1]", "pid:[2]"}


def test_a_cluster_that_is_up_leaves_no_trace_of_itself(tmp_path: Path) -> None:
    """Several clusters run side by side, and pods of the others start meanwhile."""
    add_processes(tmp_path, {"self": "pid:[1]", "11": "pid:[2]"}, group="neuroshard-dev/dev-1")
    add_processes(tmp_path, {"12": "pid:[3]"}, group="libpod_parent/x")
    root = groups(tmp_path / "groups", "pids/neuroshard-dev/dev-1", "pids/neuroshard-e2e")

    assert list(contained_processes(tmp_path, ["neuroshard-dev"])) == ["12 kubelet"]
    assert set(namespaces(tmp_path, ["neuroshard-dev"])) == {"pid:[3]"}
    assert set(control_groups(root, "1:pids:/\n", ["neuroshard-dev"])) == {".", "pids", "pids/neuroshard-e2e"}


def add_processes(folder: Path, spaces: Mapping[str, str], group: str = "") -> None:
    """Add processes with a pid namespace each to a folder like `/proc`."""
    for name, namespace in spaces.items():
        (folder / name / "ns").mkdir(parents=True)
        (folder / name / "ns" / "pid").symlink_to(namespace)
        (folder / name / "comm").write_text("kubelet\n")
        (folder / name / "cgroup").write_text(f"2:memory:/\n1:pids:/{group}\n")


def test_a_new_namespace_of_a_real_process_is_seen() -> None:
    """The kernel's own list, with a process that has just left this process's user and host name namespaces."""
    before = frozenset(namespaces(traces.PROCESSES))
    child = subprocess.Popen(
        ["unshare", "--user", "--uts", "sh", "-c", "echo in; read end"],
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        if child.stdout.readline() != "in\n":
            pytest.skip("this machine lets nobody make namespaces")
        new = frozenset(namespaces(traces.PROCESSES)) - before
    finally:
        child.communicate("end\n")

    assert any(name.startswith("uts:") for name in new)


def test_a_mount_is_named_by_type_and_place() -> None:
    """Optional fields before the separator vary in number."""
    text = "36 35 98:0 /m /run/x rw shared:1 master:2 - ext4 /dev/a rw\n37 36 0:4 / /proc rw - proc proc rw\n"

    assert list(mounts(text)) == ["ext4 at /run/x", "proc at /proc"]


def test_groups_of_other_sessions_are_no_traces(tmp_path: Path) -> None:
    """The groups next to this process's own come and go with anyone else who uses the machine."""
    root = groups(tmp_path, "memory/sessions/one", "memory/sessions/two", "memory/libpod_parent/x", "pids/docker/y")

    found = set(control_groups(root, V1_MEMBERSHIPS))

    assert {"memory/libpod_parent/x", "pids/docker/y", "memory/sessions"} <= found
    assert not {"memory/sessions/one", "memory/sessions/two"} & found


def test_a_group_at_the_top_hides_no_other(tmp_path: Path) -> None:
    """Engines and clusters make theirs there, in both versions."""
    root = groups(tmp_path, "own", "neuroshard-dev/system")

    assert "neuroshard-dev/system" in set(control_groups(root, "0::/own\n"))


def test_a_comparison_that_finds_something_ends_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is what `make cluster-traces` ends with."""
    monkeypatch.setattr(traces, "SETTLES_WITHIN_S", 0)
    monkeypatch.setattr(traces, "engine_traces", lambda _: {})
    monkeypatch.setattr(traces, "default_home", lambda: Home(root=tmp_path))
    monkeypatch.setattr(traces, "machine_traces", lambda home: {"cluster folders": _folders(home)})
    file = str(tmp_path / "recorded.json")

    assert traces.main(["record", file]) == 0
    assert traces.main(["compare", file]) == 0
    (tmp_path / "clusters" / "kind-dev").mkdir(parents=True)
    assert traces.main(["compare", file]) == 1
    assert "| cluster folders | 0 | kind-dev |" in capsys.readouterr().out


def _folders(home: Home) -> frozenset[str]:
    return frozenset(path.name for path in home.clusters.glob("*"))


def test_images_that_are_kept_for_the_next_cluster_are_no_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has them after the first `up` on a machine; what else it has by then was left."""
    cached = ["localhost/neuroshard/kind-node:0123", "docker.io/kindest/node:v1", "kindest/node:v1"]
    images = [*cached, "docker.io/other:1"]
    engine = Engine(program="docker", reason="", environment={})
    monkeypatch.setattr(traces, "found_engine", lambda _: engine)
    monkeypatch.setattr(Engine, "run", lambda _, verb, *__: "\n".join(images) if verb == "images" else "")

    assert traces.engine_traces(Home(root=tmp_path))["docker images"] == {"docker.io/other:1"}
