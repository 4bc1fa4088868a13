"""The node image of kind where no registry has one: kind's base files, our pinned programs and kubeadm's images.

It is built once by the same builder as the rooms' images and kept under a hash of everything that it is made of.
"""

import hashlib
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from neuroshard_cluster import components, dockerfiles, tiny_images
from neuroshard_cluster.commands import run
from neuroshard_cluster.components import (
    CNI,
    CONTAINERD,
    COREDNS,
    CRICTL,
    ETCD,
    HASH_CHARACTERS,
    KIND,
    KUBEADM,
    KUBERNETES,
)
from neuroshard_cluster.dockerfiles import ImageBuilder
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.folders import SOURCES, Home
from neuroshard_cluster.kind_host import NODE_IMAGE_DISK_BYTES, require_disk

RECIPE = SOURCES / "kind"
# What puts the parts together: which programs and static pods there are, and how an image of one program is written.
CODE = (Path(__file__), Path(tiny_images.__file__))
PARTS = (KUBERNETES, KUBEADM, ETCD, COREDNS, CONTAINERD, CNI, CRICTL, KIND)
NAME = "localhost/neuroshard/kind-node"
# Programs that kubeadm runs from an image of their own, and where they come from.
STATIC_PODS = {
    "kube-apiserver": KUBERNETES,
    "kube-controller-manager": KUBERNETES,
    "kube-scheduler": KUBERNETES,
    "etcd": ETCD,
    "coredns": COREDNS,
}
NODE_PROGRAMS = (
    (CONTAINERD, ("containerd", "containerd-shim-runc-v2", "ctr")),
    (CRICTL, ("crictl",)),
    (KUBEADM, ("kubeadm",)),
    (KUBERNETES, ("kubelet", "kubectl")),
    (CNI, ("host-local", "loopback", "ptp", "portmap")),
)
OWN = re.compile(r'^const Image = "([^@"]+)', re.MULTILINE)
SANDBOX = re.compile(r'^\s*sandbox_image = "(.+)"$', re.MULTILINE)
Say = Callable[[str], None]


def digest() -> str:
    """Return a short hash of all that the node image is made of: recipe, programs, base, and what joins them."""
    inputs = [part.digest() for part in PARTS]
    inputs += [f"{path.relative_to(RECIPE)}\0{path.read_text()}" for path in sorted(RECIPE.glob("*/*"))]
    inputs += [_base(), *(path.read_text() for path in CODE)]
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()[:HASH_CHARACTERS]


def _base() -> str:
    return " ".join((dockerfiles.SUITE, *dockerfiles.PACKAGES))


def name() -> str:
    """Return the image's name, which says what is in it."""
    return f"{NAME}:{digest()}"


def has_programs(home: Home) -> bool:
    """Whether all that a node runs is built."""
    return all(part.target(home).exists() for part in PARTS)


def kinds_own(home: Home, *, say: Say) -> str:
    """Return the node image that the pinned kind takes from a registry."""
    source = components.built(KIND, home, say=say) / "image.go"
    found = OWN.search(source.read_text())
    if found is None:
        raise CommandError("kind's source names no default node image; its pinned version has changed")
    return found[1]


def node_image(home: Home, *, say: Say) -> Path:
    """Return the archive of the node image; build it first if its inputs are new.

    Raises:
        HostError: A tool to build it is missing, or the disk is too small.
        CommandError: A step failed; the message has its output.
    """
    archive = home.images / f"kind-node_{digest()}.tar"
    with home.locked("kind-node"):
        if not archive.exists():
            require_disk(home.root, NODE_IMAGE_DISK_BYTES, "building the node image")
            _build(archive, home, say=say)
    return archive


def _build(archive: Path, home: Home, *, say: Say) -> None:
    builder = ImageBuilder(home, say=say)
    for part in PARTS:
        components.built(part, home, say=say)
    context = home.images / f"kind-node_{digest()}.context"
    shutil.rmtree(context, ignore_errors=True)
    try:
        tags = kubeadm_images(home)
        proxy = _proxy_image(builder, context / "kube-proxy", tag=tags.pop("kube-proxy"), home=home)
        node = context / "node"
        _assemble(node, home)
        for program, path in _image_archives(node / "images", tags, home):
            say(f"packed {program} as {path.name}")
        shutil.copy(proxy, node / "images" / "kube-proxy.tar")
        say("building the node image")
        built = builder.build(RECIPE / "node" / "Dockerfile", context=node, tag=name())
        for older in home.images.glob("kind-node_*.tar"):
            older.unlink()
        built.rename(archive)
    finally:
        shutil.rmtree(context, ignore_errors=True)


def kubeadm_images(home: Home) -> dict[str, str]:
    """Return the image that kubeadm wants for each program, by the program's name."""
    listed = run(
        [KUBEADM.target(home) / "kubeadm", "config", "images", "list", f"--kubernetes-version={KUBERNETES.version}"]
    )
    return {tag.rsplit("/", 1)[-1].split(":", 1)[0]: tag for tag in listed.split()}


def _proxy_image(builder: ImageBuilder, context: Path, *, tag: str, home: Home) -> Path:
    programs = context / "programs"
    programs.mkdir(parents=True)
    for program in ("kube-proxy", "kubectl"):
        shutil.copy(KUBERNETES.target(home) / program, programs)
    shutil.copy(RECIPE / "kube-proxy" / "podnet", context)
    return builder.build(RECIPE / "kube-proxy" / "Dockerfile", context=context, tag=tag)


def _assemble(node: Path, home: Home) -> None:
    """Put programs, kind's base files, manifests and the version into the node image's build context."""
    (node / "programs").mkdir(parents=True)
    for part, programs in NODE_PROGRAMS:
        for program in programs:
            shutil.copy(part.target(home) / program, node / "programs")
    shutil.copytree(KIND.target(home) / "base", node / "base")
    manifests = node / "manifests"
    manifests.mkdir()
    network = (RECIPE / "node" / "default-cni.yaml").read_text()
    (manifests / "default-cni.yaml").write_text(network.replace("KUBE_PROXY_IMAGE", kubeadm_images(home)["kube-proxy"]))
    shutil.copy(RECIPE / "node" / "default-storage.yaml", manifests)
    (node / "version").write_text(KUBERNETES.version)


def _image_archives(folder: Path, tags: Mapping[str, str], home: Home) -> Iterator[tuple[str, Path]]:
    folder.mkdir()
    for program, part in STATIC_PODS.items():
        archive = folder / f"{program}.tar"
        tiny_images.write(
            archive, tag=tags[program], program=part.target(home) / program, folder="usr/local/bin", user="0"
        )
        yield program, archive
    archive = folder / "pause.tar"
    tiny_images.write(archive, tag=sandbox_image(home), program=tiny_images.pause_program(home))
    yield "pause", archive


def sandbox_image(home: Home) -> str:
    """Return the image that holds a pod's namespaces, as the node's containerd is configured."""
    text = (KIND.target(home) / "base" / "etc" / "containerd" / "config.toml").read_text()
    found = SANDBOX.search(text)
    if found is None:
        raise CommandError("kind's containerd configuration names no sandbox_image; its pinned version has changed")
    return found[1]


def recipe() -> Iterator[str]:
    """Return the image's name and its inputs, a line for each; nothing is built."""
    yield name()
    for part in PARTS:
        yield f"  {part.name} {part.version} {part.digest()}"
    for path in sorted(RECIPE.glob("*/*")):
        yield f"  {path.relative_to(RECIPE)} {hashlib.sha256(path.read_bytes()).hexdigest()[:HASH_CHARACTERS]}"
    yield f"  base of Debian {_base()}"
    for path in CODE:
        yield f"  {path.name} {hashlib.sha256(path.read_bytes()).hexdigest()[:HASH_CHARACTERS]}"


if __name__ == "__main__":
    for line in recipe():
        sys.stdout.write(line + "\n")
