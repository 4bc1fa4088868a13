"""What the suite may ask of a cluster, no matter who provides it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from signal import Signals
from typing import Protocol

from neuroshard_cluster.gpus import DEFAULT_POOL
from neuroshard_cluster.images import Image
from neuroshard_cluster.kubectl import Kubectl


class Cluster(Protocol):
    """A running cluster that was made for tests.

    A process is `etcd`, `kube-apiserver`, `kube-controller-manager` or `kube-scheduler`, or, with a node, `kubelet`,
    `containerd` or `kube-proxy`.
    """

    @property
    def name(self) -> str:
        """The cluster's name among those of this machine."""

    @property
    def kubectl(self) -> Kubectl:
        """A client with every right."""

    def up(self, *, nodes: int, images: Sequence[Image], say: Callable[[str], None]) -> None:
        """Bring the cluster up with `nodes` nodes that hold `images`. One that runs gets the images that it lacks."""

    def down(self) -> None:
        """Remove every trace of the cluster, whatever state it is in. Harmless when there is none."""

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON object a line."""

    def nodes(self) -> list[str]:
        """Return the names of the nodes that have a machine behind them."""

    def add_node(self, pool: str = DEFAULT_POOL) -> str:
        """Start a node of a pool of `gpus.POOLS`, wait until it is Ready and has its GPUs, and return its name."""

    def delete_node(self, node: str) -> None:
        """Take a node away for good: its machine ends without a word, then its object is deleted."""

    def break_node(self, node: str) -> None:
        """Stop the kubelet and take the GPUs away; the node turns NotReady by itself."""

    def mend_node(self, node: str) -> None:
        """Undo `break_node` and wait until the node is Ready."""

    def kill_node(self, node: str) -> None:
        """Let a node's machine die without a word: its kubelet and all processes of its pods at once."""

    def revive_node(self, node: str) -> None:
        """Start a killed node again and wait until it is Ready and has its GPUs."""

    def stop(self, process: str, node: str | None = None) -> None:
        """Kill a process and keep it down."""

    def start(self, process: str, node: str | None = None) -> None:
        """Let a stopped process run again; for the API server, wait until it is ready."""

    def restart(self, process: str, node: str | None = None) -> None:
        """Kill a process; it comes back by itself."""

    def send_signal(self, number: Signals, pid: int, node: str) -> None:
        """Send a signal to a process of a pod of `node`; `pid` is the process's on this machine.

        Raises:
            ProcessLookupError: It has ended.
        """

    def build_image(self, image: Image, *, say: Callable[[str], None]) -> Path:
        """Build an image from its Dockerfile and return its archive."""

    def load_images(self, archives: Sequence[Path]) -> None:
        """Bring image archives to every node."""

    def has_image(self, image: Image, node: str) -> bool:
        """Whether a node holds an image."""

    def tag_image(self, image: Image, tag: str, node: str) -> None:
        """Give an image that a node holds another name there."""
