"""What all checks need: the probe's image on every node."""

import pytest
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.images import PROBE


@pytest.fixture(scope="session", autouse=True)
def _probe_image(cluster: Cluster) -> None:
    cluster.load_images([cluster.build_image(PROBE, say=print)])
