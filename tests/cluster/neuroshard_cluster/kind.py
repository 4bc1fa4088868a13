"""The provider that runs nodes as containers: kind, from the same go.mod pins, on Docker or podman.

With a registry, nodes run kind's own node image and images are built on the bases that Dockerfiles name; without
one, the node image is built here and images are built as the local provider builds them.
"""

import contextlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from signal import Signals

from neuroshard_cluster import components, gpus, node_image
from neuroshard_cluster.cgroups import MOUNT, hierarchies
from neuroshard_cluster.commands import run
from neuroshard_cluster.components import HASH_CHARACTERS
from neuroshard_cluster.dockerfiles import ImageBuilder
from neuroshard_cluster.engine import Engine, engine_of, found_engine
from neuroshard_cluster.errors import CommandError, HostError, UnknownError
from neuroshard_cluster.folders import MANIFESTS, SOURCES, Home
from neuroshard_cluster.image_store import CTR, IMPORT
from neuroshard_cluster.images import Image
from neuroshard_cluster.kind_host import check_builds, check_kind_host, loading_bytes, nodes_bytes, require_disk
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.podman_traces import remove_traces
from neuroshard_cluster.waiting import eventually

CONTEXT_PREFIX = "kind-"
STATIC_PODS = "/etc/kubernetes/manifests"
PARKED = "/etc/kubernetes/parked"
NODE_SERVICES = ("kubelet", "containerd")
READY_WITHIN_S = 180.0
AWAY_WITHIN_S = 90.0  # the kubelet sees to its manifests every 20 s, and lets a static pod end for 30 s
LABEL = "io.x-k8s.kind.cluster"  # what kind labels every node with, and the cluster's name
NETWORK = "kind"  # the name that kind gives to the network of all its clusters
Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeImage:
    """What nodes run: kind's own image from a registry, or `name` built here."""

    name: str | None

    @property
    def options(self) -> list[str]:
        """What `kind create cluster` is given."""
        return [] if self.name is None else [f"--image={self.name}"]


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

    @cached_property
    def _engine(self) -> Engine:
        recorded = self._folder / "engine"
        return engine_of(recorded.read_text(), self._home) if recorded.exists() else found_engine(self._home)

    # Up and down

    def up(self, *, nodes: int, images: Sequence[Image], say: Say) -> None:
        """Make the cluster with `nodes` workers that hold `images`. One that is there gets the images that it lacks.

        Raises:
            HostError: No container engine, or the disk is too small.
        """
        say(f"container engine: {self._engine.program}, for {self._engine.reason}")
        if self._is_made(say):
            archives = [self.build_image(image, say=say) for image in images]
            self._complete()
            self.load_images(archives)
            say(f"cluster {self.name} was up already")
            return
        check_kind_host(self._engine, self._home, nodes=nodes)
        check_builds(
            self._engine,
            self._home,
            images=[each.name for each in images],
            has_registry=self._has_registry,
            builds_programs=not self._has_registry and not node_image.has_programs(self._home),
        )
        cgroup_v1 = hierarchies() != [MOUNT]
        say(f"control groups: version {1 if cgroup_v1 else 2}")
        image = self._node_image(say)
        archives = [self.build_image(each, say=say) for each in images]
        require_disk(
            self._engine.storage,
            nodes_bytes(nodes) + loading_bytes(archives, nodes=nodes),
            f"a control plane and {nodes} workers with {_names(archives)}",
        )
        shutil.rmtree(self._folder, ignore_errors=True)  # of a cluster of this name that someone else removed
        self.audit_log.parent.mkdir(parents=True)
        (self._folder / "engine").write_text(self._engine.program)
        self.audit_log.touch()  # else the API server makes one that only root may read
        config = self._folder / "kind.yaml"
        config.write_text(configuration(self._folder / "audit", workers=nodes, cgroup_v1=cgroup_v1))
        options = [
            f"--name={self.name}",
            f"--config={config}",
            f"--kubeconfig={self.kubectl.kubeconfig}",
            "--wait=180s",
        ]
        self._kind("create", "cluster", *options, *image.options, say=say)
        self._complete()
        self.load_images(archives)

    def _is_made(self, say: Say) -> bool:
        """Whether kind has made the cluster. What it left half-made goes: it writes the kubeconfig last."""
        if not self._containers(self._engine, f"={self.name}"):
            return False
        if self.kubectl.kubeconfig.exists():
            return True
        say(f"cluster {self.name} is half-made; it is deleted and made again")
        self._kind("delete", "cluster", f"--name={self.name}", say=say)
        return False

    def _complete(self) -> None:
        """Wait for all nodes, since kind waits for the control plane alone; give the workers labels and GPUs, once."""
        complete = self._folder / "complete"
        if complete.exists():
            return
        limit = f"--timeout={READY_WITHIN_S:.0f}s"
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", limit, timeout_s=READY_WITHIN_S + 10)
        for node in self.nodes():
            labels = gpus.POOLS[gpus.DEFAULT_POOL].labels()
            self.kubectl("label", "--overwrite", "node", node, *(f"{key}={value}" for key, value in labels.items()))
            self._give_gpus(node)
        complete.touch()

    def down(self) -> None:
        """Delete the cluster, the network that its engine made for it, and its folder. Harmless when there is none.

        Raises:
            HostError: The engine that the cluster was made with does not answer; nothing was removed.
        """
        try:
            engine = self._engine
        except HostError:
            if self._was_made:
                raise
        else:
            if self._containers(engine, f"={self.name}"):
                self._kind("delete", "cluster", f"--name={self.name}")
            if not self._containers(engine) and NETWORK in engine.run("network", "ls", "--format={{.Name}}").split():
                with contextlib.suppress(CommandError):  # a container that is not kind's uses it
                    engine.run("network", "rm", NETWORK)
                remove_traces(engine)
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _was_made(self) -> bool:
        """Whether an `up` got so far that its engine may have containers of this cluster."""
        return (self._folder / "engine").exists() or self.kubectl.kubeconfig.exists()

    @staticmethod
    def _containers(engine: Engine, value: str = "") -> list[str]:
        """Return the containers of kind's clusters, or those whose label has a value."""
        return engine.run("ps", "--all", "--quiet", f"--filter=label={LABEL}{value}").split()

    def _kind(self, *words: str | Path, say: Say = lambda _: None) -> str:
        program = components.built(components.KIND, self._home, say=say) / "kind"
        return run(["env", *(f"{key}={value}" for key, value in self._engine.environment.items()), program, *words])

    def _node_image(self, say: Say) -> NodeImage:
        if self._has_registry:
            say("node image: kind's own")
            return NodeImage(name=None)
        name = node_image.name()
        say(f"node image: {name}, since no registry answers with kind's own")
        archive = node_image.node_image(self._home, say=say)
        if not self._engine.has_image(name):
            self._engine.run("load", "--quiet", f"--input={archive}")
        self._remove_older(name)
        return NodeImage(name=name)

    def _remove_older(self, name: str) -> None:
        """Remove node images of other inputs from the engine: each takes 1.8 GiB."""
        for found in self._engine.run("images", "--format={{.Repository}}:{{.Tag}}").split():
            if found.startswith(f"{node_image.NAME}:") and found != name:
                with contextlib.suppress(CommandError):  # nodes of another cluster run it
                    self._engine.run("rmi", found)

    @cached_property
    def _has_registry(self) -> bool:
        return self._engine.pulled(node_image.kinds_own(self._home, say=lambda _: None))

    # Nodes

    def nodes(self) -> list[str]:
        """Return the names of the workers."""
        workers = self.kubectl.list("nodes", selector="!node-role.kubernetes.io/control-plane")
        return [worker["metadata"]["name"] for worker in workers]

    def add_node(self, pool: str = gpus.DEFAULT_POOL) -> str:
        """Refuse: kind cannot add a node to a cluster that it has made."""
        raise HostError(f"kind cannot add a node of pool {pool}; make the cluster with more: make cluster-up NODES=4")

    def delete_node(self, node: str) -> None:
        """Take a node away for good."""
        self._engine.run("rm", "--force", "--volumes", self._known(node))
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

    def kill_node(self, node: str) -> None:
        """Let a node's machine die without a word: its kubelet and all processes of its pods at once."""
        self._engine.run("kill", self._known(node))

    def revive_node(self, node: str) -> None:
        """Start a killed node again and wait until it is Ready and has its GPUs."""
        self._engine.run("start", self._known(node))
        self.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s")
        self._give_gpus(node)

    def _give_gpus(self, node: str) -> None:
        pool = gpus.POOLS[self.kubectl.get("node", node)["metadata"]["labels"][gpus.POOL_LABEL]]
        self.kubectl.patch("node", node, pool.status_patch(), subresource="status")

    # Processes

    def stop(self, process: str, node: str | None = None) -> None:
        """Stop a node's service, or move a control plane's static pod out of the kubelet's sight.

        For the API server, wait until it is not ready any more: its process ends some time after its manifest is gone.
        """
        if node is None:
            self._in_control_plane("mkdir", "--parents", PARKED)
            self._in_control_plane("mv", f"{STATIC_PODS}/{process}.yaml", f"{PARKED}/{process}.yaml")
            if process == "kube-apiserver":
                eventually("the API server is not ready any more", self._api_is_away, within_s=AWAY_WITHIN_S)
        else:
            self._service("stop", process, node)

    def start(self, process: str, node: str | None = None) -> None:
        """Undo `stop`; for the API server, wait until it is ready."""
        if node is None:
            self._in_control_plane("mv", f"{PARKED}/{process}.yaml", f"{STATIC_PODS}/{process}.yaml")
            self._await_ready(process)
        else:
            self._service("start", process, node)

    def restart(self, process: str, node: str | None = None) -> None:
        """Kill a process; it comes back by itself. For the API server, wait until it is ready."""
        if node is None:
            self._in_control_plane("pkill", "--signal=KILL", "--exact", process[:15])
            self._await_ready(process)
        else:
            self._service("restart", process, node)

    def _await_ready(self, process: str) -> None:
        if process == "kube-apiserver":
            eventually("the API server is ready", lambda: self.kubectl("get", "--raw=/readyz"), within_s=READY_WITHIN_S)

    def _api_is_away(self) -> bool:
        try:
            self.kubectl("get", "--raw=/readyz")
        except CommandError:
            return True
        return False

    def _service(self, verb: str, process: str, node: str) -> None:
        if process not in NODE_SERVICES:
            raise UnknownError(f"kind runs no service {process!r} on a node; there are {', '.join(NODE_SERVICES)}")
        self._engine.run("exec", self._known(node), "systemctl", verb, process)

    def send_signal(self, number: Signals, pid: int, node: str) -> None:
        """Send a signal to a process of a pod from within its node: on this machine only root may."""
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except FileNotFoundError as error:
            raise ProcessLookupError(f"process {pid} has ended") from error
        self._engine.run("exec", self._known(node), "kill", f"-{number.value}", pid_in_node(status))

    def _in_control_plane(self, *argv: str) -> None:
        self._engine.run("exec", f"{self.name}-control-plane", *argv)

    def _known(self, node: str) -> str:
        if node not in self.nodes():
            raise UnknownError(f"cluster {self.name} has no node {node!r}; it has {', '.join(self.nodes())}")
        return node

    # Images

    def build_image(self, image: Image, *, say: Say) -> Path:
        """Build an image and return its archive: with the engine where a registry has the base, else without it."""
        if not self._has_registry or self._engine.program != "docker":
            return ImageBuilder(self._home, say=say).build(
                image.dockerfile, context=image.context, tag=image.tag, target=image.target
            )
        say(f"building {image.tag}")
        options = ["--build-arg=DEVICE=cpu", f"--tag={image.tag}", f"--file={image.dockerfile}"]
        options += [f"--target={image.target}"] if image.target else []
        with self._home.locked(f"docker-{image.name}"):
            self._engine.run("build", *options, image.context)
            return self._saved(image)

    def _saved(self, image: Image) -> Path:
        """Return the archive of an image that Docker has built, named after its content and kept next to the others."""
        digest = self._engine.run("image", "inspect", "--format={{.Id}}", image.tag).strip().removeprefix("sha256:")
        archive = self._home.images / f"docker-{image.name}-{digest[:HASH_CHARACTERS]}.tar"
        if not archive.exists():
            archive.parent.mkdir(parents=True, exist_ok=True)
            unfinished = archive.with_suffix(".new")
            self._engine.run("save", f"--output={unfinished}", image.tag)
            for older in archive.parent.glob(f"docker-{image.name}-*.tar"):
                older.unlink()
            unfinished.rename(archive)
        return archive

    def load_images(self, archives: Sequence[Path]) -> None:
        """Bring image archives to every worker that lacks them; the control plane runs none of their pods.

        Unlike after `kind load image-archive`, a node keeps the unpacked layers only: half the space on disk.

        Raises:
            HostError: The disk is too small.
        """
        lacking = [(node, each) for node in self.nodes() for each in archives if not self._loaded(node, each).exists()]
        new = sorted({archive for _, archive in lacking})
        if new:
            nodes = len({node for node, _ in lacking})
            require_disk(self._engine.storage, loading_bytes(new, nodes=nodes), f"{_names(new)} on {nodes} workers")
        for node, archive in lacking:
            self._engine.run("exec", "--interactive", node, *IMPORT, "-", stdin=archive)
            note = self._loaded(node, archive)
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()

    def has_image(self, image: Image, node: str) -> bool:
        """Whether a node holds an image."""
        return image.tag in self._engine.run("exec", self._known(node), *CTR, "images", "ls", "--quiet").split()

    def tag_image(self, image: Image, tag: str, node: str) -> None:
        """Give an image that a node holds another name there."""
        self._engine.run("exec", self._known(node), *CTR, "images", "tag", image.tag, tag)

    def _loaded(self, node: str, archive: Path) -> Path:
        """The file that says a node has this archive: its name says what is in the archive, and when it was made."""
        return self._folder / "loaded" / node / f"{archive.name}-{archive.stat().st_mtime_ns}"


def pid_in_node(status: str) -> str:
    """Return the pid that a pod's process has in its node, from its `/proc/PID/status` on this machine.

    Its line `NSpid` lists the pids from this machine inward; a container of a pod has the last one.
    """
    pids = next(line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:"))
    return pids[-2]


def _names(archives: Sequence[Path]) -> str:
    return ", ".join(archive.stem for archive in archives) or "no images"


def configuration(audit: Path, *, workers: int, cgroup_v1: bool) -> str:
    """Return kind's configuration of a control plane and `workers` workers whose audit log goes to the folder `audit`.

    With `cgroup_v1` the kubelets run on control groups of version 1, which they refuse by default.
    """
    text = (SOURCES / "kind" / "cluster.yaml").read_text() + "  - role: worker\n" * workers
    if cgroup_v1:
        text += "kubeadmConfigPatches:\n  - |\n    kind: KubeletConfiguration\n    failCgroupV1: false\n"
    return text.replace("AUDIT_POLICY", str(MANIFESTS)).replace("AUDIT_LOGS", str(audit))
