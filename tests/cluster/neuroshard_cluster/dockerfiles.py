"""Builds images from Dockerfiles without a container engine, by buildah, on a base made by debootstrap.

A Dockerfile takes its base as `ARG BASE_IMAGE`, so that Docker users build the same file on the base that they choose.
The result is an archive that a cluster loads. Nothing is pushed to or pulled from a registry.
"""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from neuroshard_cluster.commands import contained, run
from neuroshard_cluster.components import HASH_CHARACTERS
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.preflight import IMAGE_TOOLS, require_tools

SUITE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
STAGE = re.compile(r"^FROM (?P<base>\S+)(?: AS (?P<name>[\w-]+))?$")
COPIED = re.compile(r"^COPY --from=(?P<name>[\w-]+) ")
CERTIFICATES = Path("/etc/ssl/certs")


def stages_below(dockerfile: str, target: str | None) -> tuple[str, ...]:
    """Return the named stages that a target is built from, in the order of the file and without the target.

    Args:
        dockerfile: Text of a Dockerfile.
        target: Name of a stage. If unset: the last one.

    Raises:
        HostError: No stage has the name.
    """
    needs: dict[str, set[str]] = {}
    last = ""
    for number, line in enumerate(dockerfile.splitlines()):
        if found := STAGE.match(line):
            last = found["name"] or f"line {number}"
            needs[last] = {found["base"]}
        elif found := COPIED.match(line):
            needs[last].add(found["name"])
    if target is not None and target not in needs:
        raise HostError(f"the Dockerfile has no stage {target!r}, only: {', '.join(needs)}")
    wanted = {target or last}
    for stage in reversed(needs):
        if stage in wanted:
            wanted |= needs[stage]
    return tuple(stage for stage in needs if stage in wanted - {target or last})


class ImageBuilder:
    """buildah with a storage of its own. `say` gets a line for each slow step."""

    def __init__(self, home: Home, *, say: Callable[[str], None]) -> None:
        require_tools(IMAGE_TOOLS)
        self._home = home
        self._folder = home.images
        self._say = say
        self._folder.mkdir(parents=True, exist_ok=True)

    def build(self, dockerfile: Path, *, context: Path, tag: str, target: str | None = None) -> Path:
        """Build `dockerfile` as image `tag` and return its archive; unchanged steps come from the cache.

        Args:
            dockerfile: The recipe; its base is `ARG BASE_IMAGE`.
            context: The folder that its COPY steps read.
            tag: Name of the image.
            target: The stage to build. If unset: the last one.

        Raises:
            CommandError: A step failed; the message has its output.
        """
        # RUN steps reach package registries as this machine does: over its network, trusting what it trusts.
        machine = ["--network=host", f"--volume={CERTIFICATES}:{CERTIFICATES}:ro"]
        values = {"BASE_IMAGE": self._base(), "SSL_CERT_FILE": self._certificates(), "DEVICE": "cpu"}
        arguments = [f"--build-arg={name}={value}" for name, value in values.items()]
        options = [*machine, *arguments, "--layers", "--pull-never", f"--file={dockerfile}"]
        with self._home.locked("builds"):
            for stage in stages_below(dockerfile.read_text(encoding="utf-8"), target):
                # A name keeps the steps of a stage that only gives files to another one.
                self._buildah("build", *options, f"--target={stage}", f"--tag={tag}-{stage}", str(context))
            chosen = [f"--target={target}"] if target else []
            self._buildah("build", *options, *chosen, f"--tag={tag}", str(context))
            # What builds that were killed left, and steps that no image is built on any more, would fill the disk.
            self._buildah("rm", "--all")
            self._buildah("rmi", "--prune")
        return self._archive(tag)

    def _base(self) -> str:
        digest = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:8]
        tag = f"localhost/base:{SUITE}-{digest}"
        if not self._image_id(tag):
            self._say(f"making the base image {tag}")
            rootfs = self._folder / f"rootfs-{os.getpid()}"
            packages = f"--include={','.join(PACKAGES)}"
            run(contained(["debootstrap", "--variant=minbase", packages, SUITE, rootfs, self._mirror()]))
            run(["rm", "-rf", rootfs / "var/cache/apt/archives", rootfs / "var/lib/apt/lists"])
            working = self._buildah("from", "scratch").strip()
            self._buildah("copy", working, str(rootfs), "/")
            self._buildah("config", "--env=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", working)
            self._buildah("commit", "--rm", working, tag)
            run(["rm", "-rf", "--one-file-system", rootfs])
        return tag

    @staticmethod
    def _mirror() -> str:
        """Return the mirror of this machine for the suite's packages."""
        query = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {SUITE}"]
        found = run(query).split()
        if not found:
            raise HostError(f"apt knows no mirror with Debian {SUITE}; add one to its sources and run apt-get update")
        return found[0]

    @staticmethod
    def _certificates() -> str:
        return str(CERTIFICATES / "ca-certificates.crt")

    def _archive(self, tag: str) -> Path:
        """Return the image's archive, which is named after its content. Not compressed: it stays on this machine."""
        name = tag.rsplit("/", 1)[-1].split(":", 1)[0]
        digest = self._image_id(tag).removeprefix("sha256:")[:HASH_CHARACTERS]
        archive = self._folder / f"{name}-{digest}.tar"
        if not archive.exists():
            unfinished = self._folder / f"{name}.{os.getpid()}.new"
            self._buildah("push", tag, f"docker-archive:{unfinished}:{tag}")
            for older in self._folder.glob(f"{name}-*.tar"):
                older.unlink()
            unfinished.rename(archive)
        return archive

    def _image_id(self, tag: str) -> str:
        return self._buildah("images", "--quiet", "--no-trunc", f"--filter=reference={tag}").strip()

    def _buildah(self, verb: str, *arguments: str) -> str:
        storage = [f"--root={self._folder / 'buildah'}", f"--runroot={self._folder / 'buildah-run'}"]
        isolation = ["env", "BUILDAH_ISOLATION=chroot", "STORAGE_DRIVER=overlay"]
        return run(contained([*isolation, "buildah", *storage, verb, *arguments]))
