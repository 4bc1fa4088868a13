"""Builds the cluster's programs from the Go modules that `components/*/go.mod` pin; keeps them by hash of inputs."""

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from neuroshard_cluster.commands import run
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import SOURCES, Home

HASH_CHARACTERS = 12
MAJOR_VERSION = re.compile("v[0-9]+")
VERSION_VARIABLES = "k8s.io/component-base/version"


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """A module, and what is taken from it.

    `binaries` maps the name of a program to its Go package, `files` the name of a copy to a path inside `module`.
    """

    name: str
    module: str
    binaries: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    tags: str = ""
    stamps_version: bool = False
    built_with: str = ""
    """The component whose go.mod it shares: what both import is compiled once. If unset: it has its own."""

    @property
    def folder(self) -> Path:
        """Where its go.mod and go.sum are."""
        return SOURCES / "components" / (self.built_with or self.name)

    @property
    def version(self) -> str:
        """The pinned version of its module, as go.mod says it."""
        found = re.search(
            rf"^(?:require)?\s*{re.escape(self.module)} (v\S+)", (self.folder / "go.mod").read_text(), re.MULTILINE
        )
        assert found, f"{self.folder}/go.mod does not require {self.module}"
        return found[1]

    @property
    def go_flags(self) -> list[str]:
        """Reproducible, without debug information; Kubernetes programs know their version, or clients refuse them."""
        stamps = ""
        if self.stamps_version:
            major, minor, _ = self.version.removeprefix("v").split(".")
            values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
            stamps = "".join(f" -X {VERSION_VARIABLES}.{key}={value}" for key, value in values.items())
        return ["-trimpath", "-gcflags=all=-dwarf=false", f"-tags={self.tags}", f"-ldflags=-s -w{stamps}"]

    def target(self, home: Home) -> Path:
        """Return the folder that holds its programs and files once it is built."""
        return home.components / f"{self.name}-{self.digest()}"

    def digest(self) -> str:
        """Return a short hash of everything that the result depends on."""
        files = [self.folder / "go.mod", self.folder / "go.sum", *sorted(self.folder.rglob("*.go"))]
        inputs = [path.read_text() for path in files]
        inputs += [repr(self.go_flags), repr(sorted(self.binaries.items())), repr(sorted(self.files.items()))]
        return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:HASH_CHARACTERS]


KUBERNETES = Component(
    name="kubernetes",
    module="k8s.io/kubernetes",
    binaries={
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
    },
    files={"pause.c": "build/pause/linux/pause.c"},
    stamps_version=True,
)
# What a kind node needs besides; a go.mod of its own, so that the local provider builds nothing for it.
KUBEADM = Component(
    name="kubeadm",
    module="k8s.io/kubernetes",
    binaries={"kubeadm": "k8s.io/kubernetes/cmd/kubeadm"},
    stamps_version=True,
)
CRICTL = Component(
    name="crictl", module="sigs.k8s.io/cri-tools", binaries={"crictl": "sigs.k8s.io/cri-tools/cmd/crictl"}
)
ETCD = Component(
    name="etcd",
    module="go.etcd.io/etcd/server/v3",
    binaries={"etcd": "go.etcd.io/etcd/server/v3"},
    built_with="kubernetes",
)
COREDNS = Component(  # the version that kubeadm of this Kubernetes takes, with a few plugins
    name="coredns", module="github.com/coredns/coredns", binaries={"coredns": "./coredns"}, built_with="kubernetes"
)
CONTAINERD = Component(
    name="containerd",
    module="github.com/containerd/containerd/v2",
    binaries={
        name: f"github.com/containerd/containerd/v2/cmd/{name}"
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    },
    tags="no_btrfs,no_devmapper,no_zfs,no_aufs",
)
CNI = Component(
    name="cni",
    module="github.com/containernetworking/plugins",
    binaries={
        path.rsplit("/", 1)[-1]: f"github.com/containernetworking/plugins/plugins/{path}"
        for path in ("main/ptp", "main/loopback", "ipam/host-local", "meta/portmap")
    },
)
KWOK = Component(
    name="kwok",
    module="sigs.k8s.io/kwok",
    binaries={"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    files={"stages": "kustomize/stage"},
)
KUEUE = Component(
    name="kueue",
    module="sigs.k8s.io/kueue",
    binaries={"manager": "sigs.k8s.io/kueue/cmd/kueue"},  # the name that its chart runs
    files={"chart": "charts/kueue"},
)
JOBSET = Component(
    name="jobset",
    module="sigs.k8s.io/jobset",
    binaries={"manager": "sigs.k8s.io/jobset"},
    files={"chart": "charts/jobset"},
    built_with="kueue",
)
KIND = Component(
    name="kind",
    module="sigs.k8s.io/kind",
    binaries={"kind": "sigs.k8s.io/kind"},
    files={"base": "images/base/files", "image.go": "pkg/apis/config/defaults/image.go"},
)

CORE = (KUBERNETES, ETCD, COREDNS, CONTAINERD, CNI)
ACTIONLINT = Component(
    name="actionlint",
    module="github.com/rhysd/actionlint",
    binaries={"actionlint": "github.com/rhysd/actionlint/cmd/actionlint"},
)
ALL = (*CORE, KWOK, KUEUE, JOBSET, KIND, KUBEADM, CRICTL, ACTIONLINT)


def built(component: Component, home: Home, *, say: Callable[[str], None]) -> Path:
    """Return the folder with the component's programs and files; build it first if these inputs are new.

    Raises:
        HostError: There is no Go on this machine.
        CommandError: The build failed.
    """
    target = component.target(home)
    if target.exists():
        return target
    if shutil.which("go") is None:
        raise HostError(f"{component.name} is built from Go modules, and there is no `go` on PATH; install Go 1.26")
    with home.locked(component.name):
        if not target.exists():  # another one may have built it while we waited
            _build(component, target, say=say)
    return target


def _build(component: Component, target: Path, *, say: Callable[[str], None]) -> None:
    unfinished = target.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    began = time.monotonic()
    # One call for all programs: the link of each is one thread, and the other core compiles meanwhile.
    packages = component.binaries.values()
    argv: list[str | Path] = ["go", "build", "-buildvcs=false", *component.go_flags, "-o", unfinished, *packages]
    run(argv, cwd=component.folder, env=os.environ | {"CGO_ENABLED": "0"})
    for name, package in component.binaries.items():
        (unfinished / program_of(package)).rename(unfinished / name)
    say(f"built {', '.join(component.binaries)} {component.version} in {time.monotonic() - began:.0f} s")
    source = Path(run(["go", "list", "-m", "-f", "{{.Dir}}", component.module], cwd=component.folder).strip())
    for name, path in component.files.items():
        run(["cp", "-r", "--no-preserve=mode", source / path, unfinished / name])
    unfinished.rename(target)


def program_of(package: str) -> str:
    """Return the name that Go gives a package's program: the last word of its path that is not a major version."""
    return next(word for word in reversed(package.split("/")) if not MAJOR_VERSION.fullmatch(word))


def search_path(home: Home, components: tuple[Component, ...] = CORE) -> str:
    """Return a PATH with these components' programs first. They must have been built."""
    folders = [str(component.target(home)) for component in components]
    return ":".join([*folders, os.environ["PATH"]])
