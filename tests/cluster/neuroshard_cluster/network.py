"""The cluster's addresses and links: everything inside the cluster's own network namespace, and one link to the host.

Inside, all clusters look alike; two of them never meet. The link to the host goes with the namespace, so nothing of
this outlives the cluster's processes.
"""

from neuroshard_cluster.commands import run, succeeds
from neuroshard_cluster.errors import HostError

BRIDGE_IP = "10.251.0.1"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
DNS_SERVICE_IP = "10.96.0.10"
POD_RANGE = "10.244.0.0/16"
MAX_NODES = 64  # kwok's nodes are not counted: they have no network
MAX_CLUSTERS = 250
# A socket whose process was killed keeps its namespace alive until it gives up on its peer: two minutes by default.
SHORT_FAREWELLS = {"net/ipv4/tcp_orphan_retries": "1", "net/ipv4/tcp_fin_timeout": "5"}


def node_ip(index: int) -> str:
    """Return the address of node `index` (from 1) on the bridge between the nodes."""
    return f"10.251.0.{index + 10}"


def pod_range(index: int) -> str:
    """Return the pods' addresses on node `index`."""
    return f"10.244.{index}.0/24"


def link_name(cluster: str) -> str:
    """Return the name of the host's end of the link into `cluster`."""
    return f"ns-{cluster}"


def api_ip(link: int) -> str:
    """Return the address at which the host reaches the API server behind the link of number `link`."""
    return f"10.250.{link}.2"


def link_host(cluster: str, init_pid: int, inside: list[str]) -> int:
    """Join the host to the namespace of `init_pid`; return the link's number, the first whose addresses are free.

    `inside` is the command prefix that enters the cluster. Callers take turns, or two may find the same number.

    Raises:
        HostError: All numbers are taken.
    """
    name = link_name(cluster)
    addresses = run(["ip", "-4", "-oneline", "address"])
    free = [link for link in range(MAX_CLUSTERS) if f" 10.250.{link}." not in addresses]
    if not free:
        raise HostError(f"all of 10.250.0.0 to 10.250.{MAX_CLUSTERS - 1}.0 are in use; take a cluster down first")
    link = free[0]
    run(["ip", "link", "add", name, "type", "veth", "peer", "name", "host", "netns", str(init_pid)])
    run(["ip", "address", "add", f"10.250.{link}.1/30", "dev", name])
    run(["ip", "link", "set", name, "up"])
    run([*inside, "ip", "address", "add", f"{api_ip(link)}/30", "dev", "host"])
    run([*inside, "ip", "link", "set", "host", "up"])
    return link


def unlink_host(cluster: str) -> None:
    """Remove the link. It would go with the namespace, but that lives on while sockets of killed processes time out."""
    if succeeds(["ip", "link", "show", link_name(cluster)]):
        run(["ip", "link", "delete", link_name(cluster)])


def make_bridge(inside: list[str]) -> None:
    """Make the bridge that the nodes plug into; the control plane answers on its address."""
    run([*inside, "ip", "link", "set", "lo", "up"])
    run([*inside, "ip", "link", "add", "nodes", "type", "bridge"])
    run([*inside, "ip", "address", "add", f"{BRIDGE_IP}/24", "dev", "nodes"])
    run([*inside, "ip", "link", "set", "nodes", "up"])


def plug_in_node(inside: list[str], index: int) -> None:
    """Make node `index`'s network namespace and its cable; route its pods' addresses to it."""
    netns, cable = f"node{index}", f"cable{index}"
    run([*inside, "ip", "netns", "add", netns])
    run([*inside, "ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", netns])
    run([*inside, "ip", "link", "set", cable, "master", "nodes", "up"])
    run([*inside, "ip", "route", "add", pod_range(index), "via", node_ip(index)])
    others = [other for other in range(1, MAX_NODES + 1) if other != index]
    on_node = [
        "link set lo up",
        f"address add {node_ip(index)}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {BRIDGE_IP}",
        # Until kube-proxy has rules, a pod's call of a Service fails at once and is tried again, instead of after 30 s.
        # The node's own calls get their new address only after they were routed, so they must find a route.
        "rule add priority 100 iif lo lookup main",
        f"rule add priority 101 to {SERVICE_RANGE} unreachable",
        *(f"route add {pod_range(other)} via {node_ip(other)}" for other in others),
    ]
    run([*inside, "ip", "-netns", netns, "-batch", "-"], stdin="\n".join(on_node))


def unplug_node(inside: list[str], index: int) -> None:
    """Undo `plug_in_node`; the cable goes with the namespace."""
    run([*inside, "ip", "route", "del", pod_range(index)])
    run([*inside, "ip", "netns", "del", f"node{index}"])
