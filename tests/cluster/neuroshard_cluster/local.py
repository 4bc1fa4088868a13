"""The provider that needs no container engine: a cluster as a tree of processes in Linux namespaces.

One pid 1 holds the cluster; the control plane and each node's pid 1 are its children, so the kernel ends everything
with it. What namespaces do not own, the cluster's control groups and its one folder do; `down` removes the three.
"""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import Signals

from neuroshard_cluster import components, control_plane, gpus, network
from neuroshard_cluster.cgroups import SYSTEM, Owner
from neuroshard_cluster.commands import python_module, run, succeeds
from neuroshard_cluster.components import Component
from neuroshard_cluster.dns import await_dns, install_dns
from neuroshard_cluster.dockerfiles import ImageBuilder
from neuroshard_cluster.errors import UnknownError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.image_store import CTR, IMPORT, ImageStore, missing, note
from neuroshard_cluster.images import Image
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.node import NodeSpec
from neuroshard_cluster.pki import Authority
from neuroshard_cluster.preflight import check_host
from neuroshard_cluster.supervisor import declare
from neuroshard_cluster.tiny_images import system_images
from neuroshard_cluster.waiting import eventually

CONTEXT_PREFIX = "neuroshard-local-"
NAME = "[a-z][a-z0-9-]{0,10}[a-z0-9]"  # the link to it is named after it, and the kernel takes 15 characters
Say = Callable[[str], None]


class LocalCluster:
    """One cluster of this machine, running or not."""

    def __init__(self, name: str, home: Home) -> None:
        if not re.fullmatch(NAME, name):
            raise UnknownError(f"{name!r} cannot be a cluster's name; use at most 12 small letters, digits and hyphens")
        self.name = name
        self._home = home
        self._folder = home.clusters / name
        self._owner = Owner(name=name)
        self._store = ImageStore(home)
        self._processes = self._folder / "processes"
        self._pki = Authority(self._folder / "pki")
        self._programs = ["env", f"PATH={components.search_path(home)}"]

    @property
    def kubectl(self) -> Kubectl:
        """A client with every right."""
        program = str(components.KUBERNETES.target(self._home) / "kubectl")
        return Kubectl(kubeconfig=self._folder / "kubeconfig", program=program)

    @property
    def audit_log(self) -> Path:
        """The API server's audit log."""
        return self._folder / "audit.log"

    @property
    def folder(self) -> Path:
        """Everything that the cluster has written."""
        return self._folder

    # Up and down

    def up(self, *, nodes: int, images: Sequence[Image], say: Say) -> None:
        """Bring the cluster up with `nodes` nodes that hold `images`. One that runs gets the images that it lacks.

        A cluster that was left half-made or half-dead is taken down first.

        Raises:
            HostError: The machine cannot run it.
            TimedOutError: It did not come up; its folder is left for a look.
        """
        archives = self.build(images=images, say=say)
        with self._home.locked(self.name):
            if self._runs():
                self.load_images(archives)
                say(f"cluster {self.name} was up already")
                return
            self._remove()
            began = time.monotonic()
            self._start_control_plane()
            names = [self._start_node(index, gpus.POOLS[gpus.DEFAULT_POOL]) for index in range(1, nodes + 1)]
            self._await_api()
            self._start_controllers()
            install_dns(self.kubectl)
            for name in names:
                self._await_node(name, gpus.POOLS[gpus.DEFAULT_POOL])
            await_dns(self.kubectl)
            (self._folder / "ready").touch()
            say(f"{nodes} nodes Ready in {time.monotonic() - began:.1f} s")

    def build(self, *, images: Sequence[Image], addons: Sequence[Component] = (), say: Say) -> list[Path]:
        """Build the programs of all clusters and of `addons`, and meanwhile the images; return the images' archives.

        Images wait for downloads and the disk, programs for the processor.

        Raises:
            HostError: The machine cannot run a cluster.
            CommandError: A build failed.
        """
        check_host(self._home, images=[image.name for image in images])
        with ThreadPoolExecutor(max_workers=1) as pool:
            needed = (*components.CORE, *addons)
            programs = pool.submit(lambda: [components.built(each, self._home, say=say) for each in needed])
            archives = [self.build_image(image, say=say) for image in images]
            programs.result()
        for archive in self._store.add([*system_images(self._home), *archives]):
            say(f"imported {archive.name}")
        return archives

    def down(self) -> None:
        """Remove every trace of the cluster, whatever state it is in. Harmless when there is none."""
        with self._home.locked(self.name):
            self._remove()

    def _remove(self) -> None:
        self._owner.destroy()
        network.unlink_host(self.name)
        if self._folder.exists():
            run(["rm", "-rf", "--one-file-system", self._folder])

    def _runs(self) -> bool:
        return (self._folder / "ready").exists() and bool(self._owner.pids()) and self._api_is_ready()

    def _start_control_plane(self) -> None:
        self._processes.mkdir(parents=True)
        self._owner.create(SYSTEM)
        namespaces = ["--mount", "--net", "--pid", "--uts", "--ipc", "--mount-proc", "--propagation", "private"]
        supervisor = python_module("supervisor", self._processes, self.name)
        with (self._folder / "log").open("w") as log:
            subprocess.Popen(
                [*self._programs, "unshare", *namespaces, "--fork", "--", *supervisor],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually("the cluster's first process", lambda: self._init_pid(self._processes))
        inside = self._inside()
        run([*inside, "mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"])
        network.make_bridge(inside)
        with self._home.locked("network"):
            link = network.link_host(self.name, self._init_pid(self._processes), inside)
        control_plane.issue_certificates(self._pki, api_ip=network.api_ip(link))
        for identity in control_plane.CLIENTS:
            self._write_kubeconfig(identity)
        self._pki.write_kubeconfig(
            self._folder / "kubeconfig",
            identity="admin",
            server=f"https://{network.api_ip(link)}:{control_plane.API_PORT}",
            context=CONTEXT_PREFIX + self.name,
        )
        declare(self._processes, "etcd", control_plane.etcd(self._folder / "etcd"))
        declare(self._processes, "kube-apiserver", control_plane.kube_apiserver(self._pki, self.audit_log))

    def _start_controllers(self) -> None:
        argv = control_plane.kube_controller_manager(self._pki, self._kubeconfig("kube-controller-manager"))
        declare(self._processes, "kube-controller-manager", argv)
        declare(self._processes, "kube-scheduler", control_plane.kube_scheduler(self._kubeconfig("kube-scheduler")))

    def _kubeconfig(self, identity: str) -> Path:
        return self._folder / f"{identity}.kubeconfig"

    def _write_kubeconfig(self, identity: str) -> None:
        server = control_plane.IN_CLUSTER_SERVER
        self._pki.write_kubeconfig(self._kubeconfig(identity), identity=identity, server=server, context=identity)

    # Nodes

    def nodes(self) -> list[str]:
        """Return the names of the nodes that have a machine behind them."""
        return sorted(path.name for path in (self._folder / "nodes").iterdir())

    def add_node(self, pool: str = gpus.DEFAULT_POOL) -> str:
        """Start a node, wait until it is Ready and has its GPUs, and return its name."""
        if pool not in gpus.POOLS:
            raise UnknownError(f"there is no node pool {pool!r}; there are {', '.join(gpus.POOLS)}")
        taken = {NodeSpec.read(path).index for path in (self._folder / "nodes").iterdir()}
        index = min(set(range(1, network.MAX_NODES + 1)) - taken)
        name = self._start_node(index, gpus.POOLS[pool])
        self._await_node(name, gpus.POOLS[pool])
        return name

    def delete_node(self, node: str) -> None:
        """Take a node away for good."""
        spec = NodeSpec.read(self._node_folder(node))
        self.stop(node)
        shutil.rmtree(self._processes / node)
        network.unplug_node(self._inside(), spec.index)
        run(["rm", "-rf", "--one-file-system", self._node_folder(node)])
        self.kubectl.delete("node", node)

    def break_node(self, node: str) -> None:
        """Stop the kubelet and take the GPUs away; the node turns NotReady by itself."""
        self.stop("kubelet", node)
        self.kubectl.patch("node", node, gpus.status_patch(0), subresource="status")

    def mend_node(self, node: str) -> None:
        """Undo `break_node` and wait until the node is Ready."""
        self.start("kubelet", node)
        self._await_again(node)

    def kill_node(self, node: str) -> None:
        """Let a node's machine die without a word: its kubelet and all processes of its pods at once."""
        self.stop(node)

    def revive_node(self, node: str) -> None:
        """Start a killed node again and wait until it is Ready and has its GPUs."""
        self.start(node)
        self._await_again(node)

    def _await_again(self, node: str) -> None:
        labels = self.kubectl.get("node", node)["metadata"]["labels"]
        self._await_node(node, gpus.POOLS[labels[gpus.POOL_LABEL]])

    def _node_folder(self, node: str) -> Path:
        folder = self._folder / "nodes" / node
        if not (folder / "node.json").exists():
            raise UnknownError(f"cluster {self.name} has no node {node!r}; it has {', '.join(self.nodes())}")
        return folder

    def _start_node(self, index: int, pool: gpus.NodePool) -> str:
        """Declare node `index`; it joins by itself when the API server is there."""
        name = f"{self.name}-{index}"
        folder = self._folder / "nodes" / name
        folder.mkdir(parents=True)
        self._store.clone(folder / "var" / "lib" / "containerd", folder / "imported")
        self._owner.create(name)
        self._pki.issue(name, f"/O=system:nodes/CN=system:node:{name}")
        self._write_kubeconfig(name)
        spec = NodeSpec(
            name=name,
            index=index,
            cgroup=f"{self._owner.path}/{name}",
            kubeconfig=str(self._kubeconfig(name)),
            proxy_kubeconfig=str(self._kubeconfig("kube-proxy")),
            ca_certificate=str(self._pki.certificate),
            plugins=str(components.CNI.target(self._home)),
            labels=",".join(f"{key}={value}" for key, value in pool.labels().items()),
        )
        (folder / "processes").mkdir()
        spec.write(folder)
        network.plug_in_node(self._inside(), index)
        netns = ["nsenter", f"--net=/run/netns/node{index}", "--"]
        namespaces = ["--mount", "--pid", "--uts", "--ipc", "--mount-proc", "--propagation", "private"]
        pid_1 = python_module("node", folder)
        declare(self._processes, name, [*netns, "unshare", *namespaces, "--fork", "--kill-child", "--", *pid_1])
        return name

    def _await_node(self, node: str, pool: gpus.NodePool) -> None:
        def is_ready() -> bool:
            conditions = self.kubectl.get("node", node)["status"].get("conditions", [])
            return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)

        eventually(f"node {node} is Ready", is_ready)
        if pool.gpus:
            self.kubectl.patch("node", node, pool.status_patch(), subresource="status")

    # Processes

    def stop(self, process: str, node: str | None = None) -> None:
        """Kill a process and keep it down."""
        folder = self._process(process, node)
        (folder / "down").touch()
        eventually(f"{process} is down", lambda: not (folder / "pid").exists())

    def start(self, process: str, node: str | None = None) -> None:
        """Let a stopped process run again; for the API server, wait until it is ready."""
        folder = self._process(process, node)
        (folder / "down").unlink(missing_ok=True)
        eventually(f"{process} is up", (folder / "pid").exists)
        if process == "kube-apiserver":
            self._await_api()

    def restart(self, process: str, node: str | None = None) -> None:
        """Kill a process; it comes back by itself."""
        self.stop(process, node)
        self.start(process, node)

    def send_signal(self, number: Signals, pid: int, node: str) -> None:
        """Send a signal to a process of a pod, which this machine runs."""
        self._node_folder(node)  # raises for a node that is not this cluster's
        os.kill(pid, number)

    def _process(self, process: str, node: str | None) -> Path:
        processes = self._processes if node is None else self._node_folder(node) / "processes"
        if not (processes / process / "command.json").exists():
            known = ", ".join(sorted(path.name for path in processes.iterdir()))
            raise UnknownError(f"there is no process {process!r} on {node or self.name}; there are {known}")
        return processes / process

    # Images

    def build_image(self, image: Image, *, say: Say) -> Path:
        """Build an image from its Dockerfile, without Docker, and return its archive."""
        return ImageBuilder(self._home, say=say).build(
            image.dockerfile, context=image.context, tag=image.tag, target=image.target
        )

    def load_images(self, archives: Sequence[Path]) -> None:
        """Bring image archives to the store that new nodes share, and to every node that lacks them."""
        self._store.add(archives)
        for node in self.nodes():
            imported = self._node_folder(node) / "imported"
            for archive in missing(archives, imported):
                run([*self.inside_node(node), *IMPORT, archive])
                note([archive], imported)

    def has_image(self, image: Image, node: str) -> bool:
        """Whether a node holds an image."""
        return image.tag in run([*self.inside_node(node), *CTR, "images", "ls", "--quiet"]).split()

    def tag_image(self, image: Image, tag: str, node: str) -> None:
        """Give an image that a node holds another name there."""
        run([*self.inside_node(node), *CTR, "images", "tag", image.tag, tag])

    # Looking in

    def memory_bytes(self) -> dict[str, int]:
        """Return the memory of everything that the cluster runs by program; the page cache is not counted."""
        return self._owner.memory_bytes()

    def inside_node(self, node: str) -> list[str]:
        """Return the command prefix that enters a node's namespaces."""
        return ["nsenter", "--all", f"--target={self._init_pid(self._node_folder(node))}", "--", *self._programs]

    def _inside(self) -> list[str]:
        return ["nsenter", "--all", f"--target={self._init_pid(self._processes)}", "--"]

    def _init_pid(self, folder: Path) -> int:
        """Return the host's pid of the pid 1 that was started with `folder`, or 0."""
        for pid in self._owner.pids():
            with contextlib.suppress(OSError):
                arguments = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
                status = Path(f"/proc/{pid}/status").read_text()
                inner_pids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
                if str(folder) in arguments and inner_pids[-1] == "1":
                    return pid
        return 0

    def _api_is_ready(self) -> bool:
        kubectl = self.kubectl
        return succeeds([*kubectl.prefix, "--request-timeout=5s", "get", "--raw=/readyz"])

    def _await_api(self) -> None:
        eventually("the API server is ready", self._api_is_ready)
