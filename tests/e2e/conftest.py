"""What every end-to-end test needs: the operator on the cluster, with the images of this checkout."""

from collections.abc import Iterator

import pytest
from e2e.operator_release import Release, installed
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.plugin import Namespace


@pytest.fixture(scope="session")
def release(cluster: Cluster) -> Release:
    """The operator, installed once for all tests; anyone who changes it puts it back."""
    return installed(cluster)


@pytest.fixture
def operator(release: Release, namespace: Namespace) -> Iterator[Release]:
    """The running operator, and a namespace next to it."""
    yield release
    logs = release.logs()
    about = [line for line in logs.splitlines() if namespace.name in line or "Traceback" in line]
    namespace.artifacts.mkdir(parents=True, exist_ok=True)
    (namespace.artifacts / "operator.log").write_text("\n".join(about))
