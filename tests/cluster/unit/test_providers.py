from pathlib import Path

import pytest
import yaml
from neuroshard_cluster.errors import UnknownError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.kind import KindCluster
from neuroshard_cluster.local import LocalCluster
from neuroshard_cluster.providers import open_cluster, require_test_context


def kubeconfig(path: Path, context: str) -> Path:
    """Write a kubeconfig with a current context."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"current-context": context}))
    return path


def test_a_foreign_context_is_refused(tmp_path: Path) -> None:
    """Tests leave a cluster alone that was not made for them."""
    with pytest.raises(UnknownError, match=r"'production' of .* is left alone"):
        require_test_context(kubeconfig(tmp_path / "config", "production"), Home(root=tmp_path))


def test_our_name_at_another_place_is_refused(tmp_path: Path) -> None:
    """A context that merely has a local cluster's name is not one."""
    with pytest.raises(UnknownError, match="left alone"):
        require_test_context(kubeconfig(tmp_path / "config", "neuroshard-local-dev"), Home(root=tmp_path / "home"))


@pytest.mark.parametrize("context", ["neuroshard-local-dev", "kind-dev"])
def test_clusters_made_for_tests_are_taken(tmp_path: Path, context: str) -> None:
    """A local cluster in its place, and any kind cluster, may be used."""
    home = Home(root=tmp_path)

    require_test_context(kubeconfig(home.clusters / "dev" / "kubeconfig", context), home)


def test_a_missing_cluster_says_how_to_make_one(tmp_path: Path) -> None:
    """Without a kubeconfig the message names the command."""
    with pytest.raises(UnknownError, match="make cluster-up"):
        require_test_context(tmp_path / "none", Home(root=tmp_path))


def test_the_provider_is_chosen_by_name(tmp_path: Path) -> None:
    """Each provider makes its own kind of cluster, and a wrong name lists the right ones."""
    home = Home(root=tmp_path)

    assert isinstance(open_cluster("dev", provider="local", home=home), LocalCluster)
    assert isinstance(open_cluster("dev", provider="kind", home=home), KindCluster)
    with pytest.raises(UnknownError, match="auto, kind, local"):
        open_cluster("dev", provider="minikube", home=home)


@pytest.mark.parametrize("name", ["", "Dev", "a-very-long-name", "../x"])
def test_a_name_must_fit_into_a_link_name(tmp_path: Path, name: str) -> None:
    """The kernel's limit on link names, and no path, is what a cluster's name must keep to."""
    with pytest.raises(UnknownError, match="at most 12"):
        LocalCluster(name, Home(root=tmp_path))
