"""Images of one static program, written as an archive without any image builder."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

from neuroshard_cluster.commands import run
from neuroshard_cluster.components import COREDNS, KUBERNETES, Component
from neuroshard_cluster.folders import Home
from neuroshard_cluster.node import SANDBOX_IMAGE

NOBODY = "65532:65532"


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def write(archive: Path, *, tag: str, program: Path, folder: str = "", user: str = NOBODY) -> None:
    """Write an image `tag` with nothing in it but `program`, in `folder` and run by `user`, into `archive`.

    The program is found by its name alone as well, for its folder is the image's PATH.
    """
    place = f"{folder}/{program.name}" if folder else program.name
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as files:
        _add(files, place, program.read_bytes(), mode=0o755)
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": [f"/{place}"], "User": user, "Env": [f"PATH=/{folder}"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "one static program"}],
    }
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": ["layer.tar"]}]
    unfinished = archive.with_suffix(".new")
    with tarfile.open(unfinished, mode="w") as files:
        _add(files, "layer.tar", layer.getvalue())
        _add(files, "config.json", json.dumps(config).encode())
        _add(files, "manifest.json", json.dumps(manifest).encode())
    unfinished.rename(archive)


def program_image(component: Component, home: Home) -> Path:
    """Return the archive of `localhost/<component>:<version>` with its one program."""
    (program,) = component.binaries
    archive = home.images / f"{component.name}-{component.digest()}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        write(archive, tag=image_name(component), program=component.target(home) / program)
    return archive


def image_name(component: Component) -> str:
    """Return the name of a component's image."""
    return f"localhost/{component.name}:{component.version}"


def pause_image(home: Home) -> Path:
    """Return the archive of the program that holds a pod's namespaces, compiled from Kubernetes' own source."""
    archive = home.images / f"pause-{KUBERNETES.digest()}.tar"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        write(archive, tag=SANDBOX_IMAGE, program=pause_program(home))
    return archive


def pause_program(home: Home) -> Path:
    """Return the compiled program that holds a pod's namespaces."""
    folder = KUBERNETES.target(home)
    program = folder / "pause"
    if not program.exists():
        run(["gcc", "-Os", "-static", "-DVERSION=1", "-o", program, folder / "pause.c"])
    return program


def system_images(home: Home) -> list[Path]:
    """Return the archives that every cluster needs."""
    return [pause_image(home), program_image(COREDNS, home)]
