"""Where a cluster keeps its things: all of it below one folder, outside the checkout.

    <home>/components/<name>-<hash>/  binaries, built once
    <home>/images/                    image archives, and the store that all nodes share
    <home>/clusters/<name>/           one running cluster: state, logs, keys, kubeconfig
    <home>/locks/                     who may change what

One folder means one file system, which the hard links from the image store into the nodes need.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parent.parent
MANIFESTS = SOURCES / "manifests"


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    """The one folder, and the places of things in it."""

    root: Path

    @property
    def components(self) -> Path:
        """Built binaries, one folder for each hash of inputs."""
        return self.root / "components"

    @property
    def images(self) -> Path:
        """Image archives and the store that nodes are cloned from."""
        return self.root / "images"

    @property
    def clusters(self) -> Path:
        """One folder for each cluster."""
        return self.root / "clusters"

    @contextlib.contextmanager
    def locked(self, what: str) -> Iterator[None]:
        """Let one process at a time, of all that use this home, change `what`. The lock goes with its holder."""
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / what).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def default_home() -> Home:
    """Return `$NEUROSHARD_CLUSTER_HOME`, or the user's cache folder when it is not set."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Home(root=Path(os.environ.get("NEUROSHARD_CLUSTER_HOME") or cache / "neuroshard" / "cluster"))
