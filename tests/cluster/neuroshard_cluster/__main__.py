"""`python -m neuroshard_cluster`: make, look at, disturb and remove test clusters. `--help` lists the verbs."""

import argparse
import sys
from collections.abc import Callable, Sequence

from neuroshard_cluster import bare_api, gpus
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.components import JOBSET, KUEUE, KWOK, built
from neuroshard_cluster.errors import ClusterError
from neuroshard_cluster.folders import Home, default_home
from neuroshard_cluster.images import IMAGES
from neuroshard_cluster.local import LocalCluster
from neuroshard_cluster.preflight import check_host
from neuroshard_cluster.providers import PROVIDERS, open_cluster, require_test_context

ADDONS = {component.name: component for component in (JOBSET, KUEUE, KWOK)}
DRAIN = ("--ignore-daemonsets", "--delete-emptydir-data", "--force")


def say(line: str) -> None:
    """Print one line now."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def status(cluster: Cluster) -> None:
    """Print the nodes with their GPUs, and what the cluster costs."""
    for node in cluster.kubectl.list("nodes"):
        conditions = node["status"].get("conditions", [])
        ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
        count = node["status"].get("allocatable", {}).get(gpus.RESOURCE, "0")
        pool = node["metadata"]["labels"].get(gpus.POOL_LABEL, "-")
        say(f"{node['metadata']['name']:20} {'Ready' if ready else 'NotReady':9} pool {pool:5} {count} GPUs")
    if isinstance(cluster, LocalCluster):
        say(f"{sum(cluster.memory_bytes().values()) / 2**20:.0f} MiB in use, pods and control plane")
    say(f"export KUBECONFIG={cluster.kubectl.kubeconfig}")


def change_node(cluster: Cluster, verb: str, target: str) -> None:
    """Do one thing to a node; `target` is a pool for `add`, else a node's name."""
    kubectl = cluster.kubectl
    verbs: dict[str, Callable[[], object]] = {
        "add": lambda: say(cluster.add_node(target)),
        "delete": lambda: cluster.delete_node(target),
        "break": lambda: cluster.break_node(target),
        "mend": lambda: cluster.mend_node(target),
        "drain": lambda: say(kubectl("drain", target, *DRAIN)),
        "cordon": lambda: say(kubectl("cordon", target)),
        "uncordon": lambda: say(kubectl("uncordon", target)),
    }
    verbs[verb]()


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="neuroshard_cluster", description=__doc__)
    parser.add_argument("--name", default="dev", help="which of this machine's clusters (default: dev)")
    parser.add_argument("--provider", default="auto", choices=PROVIDERS)
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="bring the cluster up")
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--images", nargs="*", choices=IMAGES, default=[], help="what every node gets")
    host = verbs.add_parser("host", help="check what the local provider needs of this machine")
    host.add_argument("--images", nargs="*", choices=IMAGES, default=[])
    build = verbs.add_parser("build", help="build what `up` of the local provider needs, and start nothing")
    build.add_argument("--images", nargs="*", choices=IMAGES, default=[])
    build.add_argument("--addons", nargs="*", choices=ADDONS, default=[], help="what tests put on top of a cluster")
    verbs.add_parser("build-api", help="build what tests of an API server alone need; needs no root")
    verbs.add_parser("down", help="remove every trace of the cluster")
    verbs.add_parser("status", help="show nodes, GPUs and memory")
    node = verbs.add_parser("node", help="change a node")
    node.add_argument("change", choices=["add", "delete", "break", "mend", "drain", "cordon", "uncordon"])
    node.add_argument("target", help=f"the node; for add a pool: {', '.join(gpus.POOLS)}")
    process = verbs.add_parser("process", help="stop or start a part of the control plane or of a node")
    process.add_argument("change", choices=["stop", "start", "restart"])
    process.add_argument("process", help="kube-apiserver, kube-controller-manager, kubelet, ...")
    process.add_argument("--node")
    image = verbs.add_parser("image", help="build an image and load it into the running cluster")
    image.add_argument("image", choices=IMAGES)
    return parser.parse_args(argv)


def prepare(arguments: argparse.Namespace, home: Home) -> None:
    """Check this machine for the local provider, or build what its clusters or an API server alone need."""
    match arguments.verb:
        case "host":
            check_host(home, images=arguments.images)
        case "build-api":
            for component in bare_api.PROGRAMS:
                built(component, home, say=say)
        case "build":
            images = [IMAGES[name] for name in arguments.images]
            addons = [ADDONS[name] for name in arguments.addons]
            LocalCluster(arguments.name, home).build(images=images, addons=addons, say=say)


def act(arguments: argparse.Namespace, home: Home) -> None:
    """Run the command."""
    if arguments.verb in ("host", "build", "build-api"):
        prepare(arguments, home)
        return
    cluster = open_cluster(arguments.name, provider=arguments.provider, home=home)
    if arguments.verb not in ("up", "down"):
        require_test_context(cluster.kubectl.kubeconfig, home)
    match arguments.verb:
        case "up":
            cluster.up(nodes=arguments.nodes, images=[IMAGES[name] for name in arguments.images], say=say)
            status(cluster)
        case "down":
            cluster.down()
        case "status":
            status(cluster)
        case "node":
            change_node(cluster, arguments.change, arguments.target)
        case "process":
            getattr(cluster, arguments.change)(arguments.process, arguments.node)
        case "image":
            cluster.load_images([cluster.build_image(IMAGES[arguments.image], say=say)])


def main() -> int:
    """Return 0, or 1 after a sentence about what went wrong."""
    try:
        act(parsed(sys.argv[1:]), default_home())
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
