"""The image store that all nodes share: each image is imported and unpacked once, and a node gets it as hard links.

Imports run in a containerd without Kubernetes' plugin, in namespaces of their own (`python -m` this module, contained).
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from neuroshard_cluster.commands import contained, python_module, run
from neuroshard_cluster.components import search_path
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.folders import Home

CTR = ("ctr", "--namespace", "k8s.io")
STARTS_WITHIN_S = 20.0
CONFIG = """
version = 3
root = "{store}"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]
"""


class ImageStore:
    """A containerd root folder that no containerd uses, except while an import runs."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._root = home.images / "store"
        self._imported = home.images / "imported"

    def add(self, archives: Sequence[Path]) -> list[Path]:
        """Import the archives that have changed since they were last imported; return those.

        Raises:
            CommandError: containerd would not start, or would not take an archive.
        """
        self._imported.mkdir(parents=True, exist_ok=True)
        with self._home.locked("images"):
            new = [archive for archive in archives if self._stamp(archive) != self._known_stamp(archive)]
            if new:
                environment = os.environ | {"PATH": search_path(self._home)}
                run(contained(python_module("image_store", self._root, *new)), env=environment)
            for archive in new:
                (self._imported / archive.name).write_text(self._stamp(archive))
        return new

    def clone(self, target: Path) -> None:
        """Make `target` a containerd root with the same images, taking no space on disk but for its databases."""
        with self._home.locked("images"):
            target.parent.mkdir(parents=True, exist_ok=True)
            run(["cp", "--archive", "--link", self._root, target])
            for database in self._root.rglob("*.db"):
                copy = target / database.relative_to(self._root)
                copy.unlink()
                run(["cp", "--archive", database, copy])

    @staticmethod
    def _stamp(archive: Path) -> str:
        about = archive.stat()
        return f"{about.st_size} {about.st_mtime_ns}"

    def _known_stamp(self, archive: Path) -> str:
        known = self._imported / archive.name
        return known.read_text() if known.exists() else ""


def import_into(root: Path, archives: list[str]) -> None:
    """Be the contained import: run containerd on `root` until it has taken all archives."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"], check=True)
    config = Path("/run/config.toml")
    config.write_text(CONFIG.format(store=root))
    log = Path("/run/log").open("w")  # noqa: SIM115 - as long as containerd
    server = subprocess.Popen(["containerd", "-c", str(config)], stdout=log, stderr=log)
    deadline = time.monotonic() + STARTS_WITHIN_S
    while subprocess.run([*CTR, "version"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline or server.poll() is not None:
            raise CommandError(f"containerd did not start: {Path('/run/log').read_text()[-1000:]}")
        time.sleep(0.05)
    for archive in archives:
        run([*CTR, "images", "import", "--local", archive])
    server.terminate()
    server.wait()
    os.sync()


if __name__ == "__main__":
    import_into(Path(sys.argv[1]), sys.argv[2:])
