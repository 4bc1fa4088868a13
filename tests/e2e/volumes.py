"""Checkpoints on a volume that all nodes of a cluster on this machine share."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.local import LocalCluster
from neuroshard_cluster.plugin import Namespace


def skip_without_shared_folder(cluster: Cluster) -> None:
    """Skip the test where nodes have no folder in common; so does `shared_volume`."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("this provider's nodes share no folder")


@contextlib.contextmanager
def shared_volume(cluster: Cluster, namespace: Namespace, folder: Path) -> Iterator[str]:
    """Make a claim of a volume that all nodes share, a folder of this machine, and return its name."""
    skip_without_shared_folder(cluster)
    folder.mkdir()
    folder.chmod(0o777)
    claim = {"namespace": namespace.name, "name": "checkpoints"}
    common: Mapping[str, Any] = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {"capacity": {"storage": "1Gi"}, "hostPath": {"path": str(folder)}, "claimRef": claim, **common}
    wanted = {"volumeName": namespace.name, "resources": {"requests": {"storage": "1Gi"}}, **common}
    cluster.kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": namespace.name}, "spec": volume}
    )
    namespace.kubectl.apply(
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "checkpoints"}, "spec": wanted}
    )
    try:
        yield "checkpoints"
    finally:
        cluster.kubectl.delete("persistentvolume", namespace.name, "--wait=false")


def newest_step(folder: Path) -> int:
    """Return the step of the newest whole checkpoint; 0 without one."""
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("**/checkpoints/step-*")), default=0)
