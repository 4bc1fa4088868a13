"""Looks, before anything is started, for what the machine must offer; says what is missing and how to get it."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from neuroshard_cluster.cgroups import hierarchies
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import Home

# Program -> Debian package.
TOOLS = {
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "openssl": "openssl",
    "gcc": "gcc",
    "conntrack": "conntrack",
}
NAMESPACES = ("mnt", "net", "pid", "uts", "ipc")
# A node has a /var and a /run of its own, in which the home folder would be hidden.
HIDDEN_ON_NODES = (Path("/var"), Path("/run"))


def require_tools(tools: dict[str, str], found: Iterable[str] | None = None) -> None:
    """Check that every program in `tools` is installed; `found` replaces the look at PATH.

    Raises:
        HostError: Some are missing.
    """
    present = {tool for tool in tools if shutil.which(tool)} if found is None else set(found)
    missing = sorted(set(tools) - present)
    if missing:
        packages = " ".join(sorted({tools[tool] for tool in missing}))
        raise HostError(f"not on PATH: {', '.join(missing)}; on Debian: apt-get install {packages}")


def check_host(home: Home) -> None:
    """Check rights, tools and kernel features for a local cluster.

    Raises:
        HostError: Something is missing.
    """
    if os.geteuid() != 0:
        raise HostError(
            f"a local cluster needs root, and this is user {os.geteuid()}; run it as root, or install Docker and use"
            " CLUSTER=kind"
        )
    require_tools(TOOLS)
    lacking = [name for name in NAMESPACES if not Path(f"/proc/self/ns/{name}").exists()]
    if lacking:
        raise HostError(f"this kernel has no {', '.join(lacking)} namespaces; use CLUSTER=kind on another machine")
    if "overlay" not in Path("/proc/filesystems").read_text():
        raise HostError(
            "this kernel does not know the overlay file system, which images are made of; `modprobe overlay`"
        )
    hierarchies()
    hiding = [folder for folder in HIDDEN_ON_NODES if home.root.resolve().is_relative_to(folder)]
    if hiding:
        raise HostError(
            f"{home.root} is below {hiding[0]}, which every node replaces; set NEUROSHARD_CLUSTER_HOME elsewhere"
        )
