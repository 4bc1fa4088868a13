"""The provider for machines with Docker: kind, from the same go.mod pins, with `kind.yaml` beside this package."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from neuroshard_cluster import components, gpus
from neuroshard_cluster.commands import run, succeeds
from neuroshard_cluster.errors import HostError, UnknownError
from neuroshard_cluster.folders import MANIFESTS, SOURCES, Home
from neuroshard_cluster.images import Image
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.waiting import eventually

CONTEXT_PREFIX = "kind-"
STATIC_PODS = "/etc/kubernetes/manifests"
PARKED = "/etc/kubernetes/parked"
NODE_SERVICES = ("kubelet", "containerd")
READY_WITHIN_S = 180.0


def docker_answers() -> bool:
    """Tell whether a Docker engine is there and may be used."""
    return shutil.which("docker") is not None and succeeds(["docker", "info"])


class KindCluster:
    """One kind cluster, running or not. Its nodes are fixed when it is made."""

    def __init__(self, name: str, home: Home) -> None:
        self.name = name
        self._home = home
        self._folder = home.clusters / f"kind-{name}"

    @property
    def kubectl(self) -> Kubectl:
        """A client with every right."""
        program = components.KUBERNETES.target(self._home) / "kubectl"
        return Kubectl(kubeconfig=self._folder / "kubeconfig", program=str(program if program.exists() else "kubectl"))

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, which the control plane's container shares with this machine."""
        return self._folder / "audit" / "audit.log"

    def up(self, *, nodes: int, images: Sequence[Image], say: Callable[[str], None]) -> None:
        """Make the cluster with `nodes` workers that hold `images`. One that is there gets the images again.

        Raises:
            HostError: No Docker engine answers.
        """
        if not docker_answers():
            raise HostError("no Docker engine answers; start it, or use CLUSTER=local as root on Linux")
        kind = self._kind(say)
        if self.name in run([kind, "get", "clusters"]).split():
            self.load_images([self.build_image(image, say=say) for image in images])
            say(f"cluster {self.name} was up already")
            return
        (self._folder / "audit").mkdir(parents=True, exist_ok=True)
        config = self._folder / "kind.yaml"
        text = (SOURCES / "kind.yaml").read_text() + "  - role: worker\n" * nodes
        config.write_text(
            text.replace("AUDIT_POLICY", str(MANIFESTS)).replace("AUDIT_LOGS", str(self._folder / "audit"))
        )
        options = [
            f"--name={self.name}",
            f"--config={config}",
            f"--kubeconfig={self.kubectl.kubeconfig}",
            "--wait=180s",
        ]
        run([kind, "create", "cluster", *options])
        for node in self.nodes():
            self.kubectl(
                "label", "node", node, *(f"{k}={v}" for k, v in gpus.POOLS[gpus.DEFAULT_POOL].labels().items())
            )
            self._give_gpus(node)
        self.load_images([self.build_image(image, say=say) for image in images])

    def down(self) -> None:
        """Delete the cluster and its folder. Harmless when there is none."""
        if docker_answers():
            run([self._kind(lambda _: None), "delete", "cluster", f"--name={self.name}"])
        shutil.rmtree(self._folder, ignore_errors=True)

    def _kind(self, say: Callable[[str], None]) -> Path:
        return components.built(components.KIND, self._home, say=say) / "kind"

    def nodes(self) -> list[str]:
        """Return the names of the workers."""
        workers = self.kubectl.list("nodes", selector="!node-role.kubernetes.io/control-plane")
        return [worker["metadata"]["name"] for worker in workers]

    def add_node(self, pool: str = gpus.DEFAULT_POOL) -> str:
        """Refuse: kind cannot add a node to a cluster that it has made."""
        raise HostError(f"kind cannot add a node of pool {pool}; make the cluster with more: make cluster-up NODES=4")

    def delete_node(self, node: str) -> None:
        """Take a node away for good."""
        run(["docker", "rm", "--force", self._known(node)])
        self.kubectl.delete("node", node)

    def break_node(self, node: str) -> None:
        """Stop the kubelet and take the GPUs away; the node turns NotReady by itself."""
        self.stop("kubelet", node)
        self.kubectl.patch("node", node, gpus.status_patch(0), subresource="status")

    def mend_node(self, node: str) -> None:
        """Undo `break_node` and wait until the node is Ready."""
        self.start("kubelet", node)
        self.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s")
        self._give_gpus(node)

    def _give_gpus(self, node: str) -> None:
        pool = gpus.POOLS[self.kubectl.get("node", node)["metadata"]["labels"][gpus.POOL_LABEL]]
        self.kubectl.patch("node", node, pool.status_patch(), subresource="status")

    def stop(self, process: str, node: str | None = None) -> None:
        """Stop a node's service, or move a control plane's static pod out of the kubelet's sight."""
        if node is None:
            self._in_control_plane("mkdir", "--parents", PARKED)
            self._in_control_plane("mv", f"{STATIC_PODS}/{process}.yaml", f"{PARKED}/{process}.yaml")
        else:
            self._service("stop", process, node)

    def start(self, process: str, node: str | None = None) -> None:
        """Undo `stop`; for the API server, wait until it is ready."""
        if node is None:
            self._in_control_plane("mv", f"{PARKED}/{process}.yaml", f"{STATIC_PODS}/{process}.yaml")
        else:
            self._service("start", process, node)
        if process == "kube-apiserver":
            eventually("the API server is ready", lambda: self.kubectl("get", "--raw=/readyz"), within_s=READY_WITHIN_S)

    def restart(self, process: str, node: str | None = None) -> None:
        """Kill a process; it comes back by itself."""
        if node is None:
            self._in_control_plane("pkill", "--signal=KILL", "--exact", process[:15])
        else:
            self._service("restart", process, node)

    def _service(self, verb: str, process: str, node: str) -> None:
        if process not in NODE_SERVICES:
            raise UnknownError(f"kind runs no service {process!r} on a node; there are {', '.join(NODE_SERVICES)}")
        run(["docker", "exec", self._known(node), "systemctl", verb, process])

    def _in_control_plane(self, *argv: str) -> None:
        run(["docker", "exec", f"{self.name}-control-plane", *argv])

    def _known(self, node: str) -> str:
        if node not in self.nodes():
            raise UnknownError(f"cluster {self.name} has no node {node!r}; it has {', '.join(self.nodes())}")
        return node

    def build_image(self, image: Image, *, say: Callable[[str], None]) -> Path:
        """Build an image with Docker, on the base that its Dockerfile names, and return its archive."""
        say(f"building {image.tag}")
        archive = self._folder / f"{image.name}.tar"
        run(
            [
                "docker",
                "build",
                "--build-arg=DEVICE=cpu",
                f"--tag={image.tag}",
                f"--file={image.dockerfile}",
                image.context,
            ]
        )
        run(["docker", "save", f"--output={archive}", image.tag])
        return archive

    def load_images(self, archives: Sequence[Path]) -> None:
        """Bring image archives to every node."""
        for archive in archives:
            run([self._kind(lambda _: None), "load", "image-archive", archive, f"--name={self.name}"])
