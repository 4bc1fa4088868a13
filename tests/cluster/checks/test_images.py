"""How images are shared by nodes."""

import pytest
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.folders import SOURCES
from neuroshard_cluster.images import TRAINER
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.local import LocalCluster
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.workloads import job, pod_spec, service, spread

pytestmark = pytest.mark.e2e
RANKS = SOURCES / "probe" / "ranks.py"


def test_nodes_share_images_on_disk(cluster: Cluster) -> None:
    """A file of an image that every node was born with is on disk once, linked from every node."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("this provider keeps a copy for each node")
    snapshots = "var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
    stores = [cluster.folder / "nodes" / node / snapshots for node in cluster.nodes()]
    pause = next(path.relative_to(stores[0]) for path in stores[0].glob("*/fs/pause"))

    inodes = {(store / pause).stat().st_ino for store in stores}

    assert len(inodes) == 1


def test_overwriting_an_image_file_stays_in_the_container(cluster: Cluster, namespace: Namespace) -> None:
    """A container that changes a file of its image changes nothing for the next container."""
    node = cluster.nodes()[0]
    for name in ("first", "second"):
        namespace.kubectl.create(job(name, pod_spec("overwrite", nodeName=node)))
        namespace.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=600s")

        assert namespace.kubectl("logs", f"job/{name}").split() == ["0", "1"]


def test_torchrun_across_nodes(cluster: Cluster, namespace: Namespace) -> None:
    """With torchrun on two nodes, four gloo ranks meet through a headless Service and agree on their sums."""
    if not all(cluster.has_image(TRAINER, node) for node in cluster.nodes()):
        pytest.skip("not every node has the image with PyTorch; make cluster-up IMAGES='probe trainer'")
    ranks: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "ranks"},
        "data": {RANKS.name: RANKS.read_text()},
    }
    namespace.kubectl.create(ranks)
    namespace.kubectl.create(service("ranks", headless=True, port=29500))
    # torch waits 60 s for a store that is not there yet, unless a timeout is given.
    meeting = ["--rdzv-backend=c10d", "--rdzv-endpoint=ranks-0.ranks:29500", "--rdzv-conf=read_timeout=600"]
    argv = ["--nnodes=2", "--nproc-per-node=2", *meeting, "/mnt/ranks.py"]
    template = pod_spec(
        *argv,
        image=TRAINER.tag,
        subdomain="ranks",
        affinity=spread("ranks"),
        volumes=[{"name": "ranks", "configMap": {"name": "ranks"}}],
    )
    template["containers"][0]["volumeMounts"] = [{"name": "ranks", "mountPath": "/mnt"}]
    namespace.kubectl.create(job("ranks", template, completions=2, parallelism=2, completionMode="Indexed"))

    namespace.kubectl("wait", "--for=condition=Complete", "job/ranks", "--timeout=600s")

    logs = namespace.kubectl("logs", "--selector=app=ranks", "--tail=-1")
    assert "4 ranks agree" in logs
