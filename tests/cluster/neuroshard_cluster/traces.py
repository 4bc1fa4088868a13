"""What a cluster can leave on a machine, recorded before `up` and compared after `down`.

`python -m neuroshard_cluster.traces record FILE` and `compare FILE`; the comparison exits with 1 if anything was added.
The cache of programs and images stays by design and is not compared, nor what the engine has of it.
"""

import argparse
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from neuroshard_cluster.cgroups import MOUNT, Owner
from neuroshard_cluster.commands import run
from neuroshard_cluster.engine import RUN_ROOT, found_engine
from neuroshard_cluster.errors import ClusterError, HostError
from neuroshard_cluster.folders import Home, default_home
from neuroshard_cluster.podman_traces import remove_traces

PROCESSES = Path("/proc")
LINKS = Path("/sys/class/net")
NAMESPACE_TYPES = ("cgroup", "ipc", "mnt", "net", "pid", "uts")
TABLES = ("filter", "nat", "mangle", "raw")
RUN_FOLDERS = (RUN_ROOT, Path("/run/netns"), Path("/run/libpod"), Path("/run/docker/netns"), Path("/run/crun"))
# A process that is about to end, of this cluster or of anyone else, is not left behind.
SETTLES_WITHIN_S = 20.0
PAUSE_S = 1.0
# Images that stay in the engine so that the next `up` need not build or pull them: ours, and kind's node image.
CACHED = re.compile(r"localhost/neuroshard/|(docker\.io/)?kindest/node(:|@)")
Traces = Mapping[str, frozenset[str]]


def machine_traces(home: Home) -> Traces:
    """Return the traces on the machine now, by kind, without asking the container engine.

    What control groups assign to a local cluster that has a folder is left out: it is up, and comes and goes by itself.
    """
    memberships = (PROCESSES / "self" / "cgroup").read_text()
    others = [Owner(name=path.name).path for path in home.clusters.glob("*")]
    kinds: Mapping[str, Callable[[], Iterator[str]]] = {
        "processes in other pid namespaces": lambda: contained_processes(PROCESSES, others),
        "namespaces": lambda: namespaces(PROCESSES, others),
        "mounts": lambda: mounts((PROCESSES / "self" / "mountinfo").read_text()),
        "control groups": lambda: control_groups(MOUNT, memberships, others),
        "network links": lambda: (path.name for path in LINKS.iterdir()),
        "packet filter rules": packet_filter_rules,
        "folders of /run": lambda: (str(path) for path in RUN_FOLDERS if path.exists()),
        "cluster folders": lambda: (path.name for path in home.clusters.glob("*")),
    }
    return {kind: frozenset(found()) for kind, found in kinds.items()}


def engine_traces(home: Home) -> Traces:
    """Return the engine's containers, networks, volumes, and images by name; nothing where no engine is.

    Asking podman leaves traces, which are removed again.
    """
    try:
        engine = found_engine(home)
    except HostError:
        return {}
    listings = {
        "containers": ("ps", "--all", "--format={{.Names}}"),
        "networks": ("network", "ls", "--format={{.Name}}"),
        "volumes": ("volume", "ls", "--format={{.Name}}"),
        "images": ("images", "--format={{.Repository}}:{{.Tag}}"),
    }
    found = {f"{engine.program} {kind}": frozenset(engine.run(*words).split()) for kind, words in listings.items()}
    remove_traces(engine)
    return {kind: frozenset(name for name in names if not CACHED.match(name)) for kind, names in found.items()}


def added(before: Traces, after: Traces) -> dict[str, list[str]]:
    """Return the traces that were added since, by kind; kinds without an addition are empty."""
    return {kind: sorted(found - before.get(kind, frozenset())) for kind, found in after.items()}


def contained_processes(folder: Path, others: Collection[str] = ()) -> Iterator[str]:
    """Yield the processes of other pid namespaces than this one, with their programs.

    Args:
        folder: `/proc`.
        others: control groups whose processes are left out.
    """
    own = (folder / "self" / "ns" / "pid").readlink()
    for process in _processes(folder, others):
        with contextlib.suppress(OSError):  # it ended meanwhile
            if (process / "ns" / "pid").readlink() != own:
                yield f"{process.name} {(process / 'comm').read_text().strip()}"


def namespaces(folder: Path, others: Collection[str] = ()) -> Iterator[str]:
    """Yield the namespaces that any process is in; arguments as of `contained_processes`."""
    for process in _processes(folder, others):
        for kind in NAMESPACE_TYPES:
            with contextlib.suppress(OSError):
                yield str((process / "ns" / kind).readlink())


def mounts(table: str) -> Iterator[str]:
    """Yield type and place of each mount of a `mountinfo` table."""
    for line in table.splitlines():
        fields, _, source = line.partition(" - ")
        yield f"{source.split()[0]} at {fields.split()[4]}"


def control_groups(mount: Path, memberships: str, others: Collection[str] = ()) -> Iterator[str]:
    """Yield the control groups of every hierarchy, by their path below the mount.

    Siblings of this process's own group are left out: they belong to other sessions of the machine, which come and go.

    Args:
        mount: where the hierarchies are mounted.
        memberships: this process's `/proc/self/cgroup`.
        others: control groups at the top that are left out, with those below them.
    """
    own = [line.split(":", 2)[1:] for line in memberships.splitlines()]
    # A group at the top of its hierarchy has no session's siblings: there, engines and clusters make theirs.
    nested = [(hierarchy, path.strip("/")) for hierarchy, path in own if "/" in path.strip("/")]
    sessions = {(mount / hierarchy.removeprefix("name=") / path).parent for hierarchy, path in nested}
    for folder, below, _ in os.walk(mount):
        below[:] = [] if Path(folder) in sessions else [name for name in below if name not in others]
        yield str(Path(folder).relative_to(mount))


def packet_filter_rules() -> Iterator[str]:
    """Yield the chains and rules of iptables, table by table."""
    for table in TABLES:
        with contextlib.suppress(ClusterError):  # a kernel need not have all tables
            for rule in run(["iptables", "--table", table, "--list-rules"]).splitlines():
                yield f"{table} {rule}"


def _processes(folder: Path, others: Collection[str]) -> Iterator[Path]:
    for process in folder.iterdir():
        if not re.fullmatch(r"\d+", process.name):
            continue
        with contextlib.suppress(OSError):
            groups = (process / "cgroup").read_text().split("/")
            if not set(groups) & set(others):
                yield process


def left_over(home: Home, before: Traces) -> dict[str, list[str]]:
    """Return the traces added to a machine, once none is left or the time to settle is over."""
    deadline = time.monotonic() + SETTLES_WITHIN_S
    left = added(before, machine_traces(home))
    while any(left.values()) and time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        left = added(before, machine_traces(home))
    return left | added(before, engine_traces(home))


def main(argv: Sequence[str] | None = None) -> int:
    """Record the traces of a machine, or list what was added since: 0 if nothing, else 1."""
    parser = argparse.ArgumentParser(prog="neuroshard_cluster.traces", description=main.__doc__)
    parser.add_argument("verb", choices=["record", "compare"])
    parser.add_argument("file", type=Path)
    options = parser.parse_args(argv)
    home = default_home()
    if options.verb == "record":
        recorded = {
            kind: sorted(found) for kind, found in (*machine_traces(home).items(), *engine_traces(home).items())
        }
        options.file.parent.mkdir(parents=True, exist_ok=True)
        options.file.write_text(json.dumps(recorded, indent=1))
        return 0
    before = {kind: frozenset(found) for kind, found in json.loads(options.file.read_text()).items()}
    left = left_over(home, before)
    sys.stdout.write(table(before, left))
    return 1 if any(left.values()) else 0


def table(before: Traces, left: Mapping[str, Sequence[str]]) -> str:
    """Return the comparison as a Markdown table, a row for each kind of trace."""
    rows = [f"| {kind} | {len(before.get(kind, ()))} | {', '.join(found) or 'none'} |" for kind, found in left.items()]
    return "\n".join(["| what | before `up` | left after `down` |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    sys.exit(main())
