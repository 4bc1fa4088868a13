"""The image store that all nodes share: each image is imported and unpacked once, and a node gets it as hard links.

Imports run in a containerd without Kubernetes' plugin, in namespaces of their own (`python -m` this module, contained).
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from neuroshard_cluster.commands import BOUND_TO_CALLER, contained, python_module, run
from neuroshard_cluster.components import search_path
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.waiting import WITHIN_S

CTR = ("ctr", "--namespace", "k8s.io")
# Layers are kept unpacked only: a large image is on disk once, not twice.
IMPORT = (*CTR, "images", "import", "--local", "--discard-unpacked-layers")
CONFIG = """
version = 3
root = "{store}"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri"]
"""


class ImageStore:
    """A containerd root folder that no containerd uses, except while an import runs.

    An archive is known by its name, which says what is in it. `imported/` has one empty file for each.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._root = home.images / "store"
        self._imported = home.images / "imported"

    def add(self, archives: Sequence[Path]) -> list[Path]:
        """Import the archives that are not in the store yet; return those.

        Raises:
            CommandError: containerd would not start, or would not take an archive.
        """
        with self._home.locked("images"):
            new = missing(archives, self._imported)
            if new:
                environment = os.environ | {"PATH": search_path(self._home)}
                run(contained(python_module("image_store", self._root, *new)), env=environment)
            note(new, self._imported)
        return new

    def clone(self, root: Path, imported: Path) -> None:
        """Make `root` a containerd root with the same images, taking no space on disk but for its databases.

        `imported` becomes the list of what is in it.
        """
        with self._home.locked("images"):
            root.parent.mkdir(parents=True, exist_ok=True)
            run(["cp", "--archive", self._imported, imported])
            run([*BOUND_TO_CALLER, "cp", "--archive", "--link", self._root, root])
            for database in self._root.rglob("*.db"):
                copy = root / database.relative_to(self._root)
                copy.unlink()
                run(["cp", "--archive", database, copy])


def missing(archives: Sequence[Path], imported: Path) -> list[Path]:
    """Return the archives that the list `imported` does not have."""
    return [archive for archive in archives if not (imported / archive.name).exists()]


def note(archives: Sequence[Path], imported: Path) -> None:
    """Put the archives on the list `imported`."""
    imported.mkdir(parents=True, exist_ok=True)
    for archive in archives:
        (imported / archive.name).touch()


def import_into(root: Path, archives: list[str]) -> None:
    """Be the contained import: run containerd on `root` until it has taken all archives."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"], check=True)
    config = Path("/run/config.toml")
    config.write_text(CONFIG.format(store=root))
    log = Path("/run/log").open("w")  # noqa: SIM115 - as long as containerd
    server = subprocess.Popen(["containerd", "-c", str(config)], stdout=log, stderr=log)
    deadline = time.monotonic() + WITHIN_S
    while subprocess.run([*CTR, "version"], capture_output=True, check=False).returncode:
        if time.monotonic() > deadline or server.poll() is not None:
            raise CommandError(f"containerd did not start: {Path('/run/log').read_text()[-1000:]}")
        time.sleep(0.05)
    for archive in archives:
        run([*IMPORT, archive])
    run([*CTR, "content", "prune", "references"])
    server.terminate()
    server.wait()
    os.sync()


if __name__ == "__main__":
    import_into(Path(sys.argv[1]), sys.argv[2:])
