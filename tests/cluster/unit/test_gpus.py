import pytest
from neuroshard_cluster.gpus import POOLS, RESOURCE, NodePool


@pytest.mark.parametrize("pool", POOLS.values(), ids=lambda pool: pool.name)
def test_labels_and_status_agree(pool: NodePool) -> None:
    """A node's label counts the GPUs that its status offers, and a node without any has no GPU label."""
    offered = pool.status_patch()["status"]["capacity"][RESOURCE]

    assert pool.labels().get("nvidia.com/gpu.count", "0") == offered
    assert ("nvidia.com/gpu.present" in pool.labels()) == (pool.gpus > 0)
