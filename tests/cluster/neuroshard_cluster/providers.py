"""Chooses who makes a cluster, and refuses any cluster that was not made for tests."""

from collections.abc import Mapping
from pathlib import Path

import yaml
from neuroshard_cluster import kind, local
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.engine import docker_answers
from neuroshard_cluster.errors import UnknownError
from neuroshard_cluster.folders import Home

PROVIDERS = ("auto", "kind", "local")


def open_cluster(name: str, *, provider: str, home: Home) -> Cluster:
    """Return the cluster `name`, which need not be running. `auto` is kind if a Docker engine answers, else local.

    Raises:
        UnknownError: There is no such provider, or the name cannot be a cluster's.
    """
    if provider not in PROVIDERS:
        raise UnknownError(f"CLUSTER={provider} is not a provider; use {', '.join(PROVIDERS)}")
    if provider == "kind" or (provider == "auto" and docker_answers()):
        return kind.KindCluster(name, home)
    return local.LocalCluster(name, home)


def require_test_context(kubeconfig: Path, home: Home) -> None:
    """Check that a kubeconfig leads to a cluster made for tests: ours by its place and name, or one named kind-*.

    Raises:
        UnknownError: It does not; nothing may be run against it.
    """
    if not kubeconfig.exists():
        raise UnknownError(f"{kubeconfig} is not there; run `make cluster-up` first")
    document: Mapping[str, str] = yaml.safe_load(kubeconfig.read_text())
    context = str(document.get("current-context"))
    ours = context.startswith(local.CONTEXT_PREFIX) and kubeconfig.resolve().is_relative_to(home.clusters.resolve())
    if not ours and not context.startswith(kind.CONTEXT_PREFIX):
        raise UnknownError(
            f"context {context!r} of {kubeconfig} was not made by these tests and is not named kind-*; it is left alone"
        )
