"""Mocked GPUs: the labels that GPU feature discovery sets and the extended resource that a device plug-in offers.

Nothing in the operator knows of the mock: the scheduler counts what the node's status says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RESOURCE = "nvidia.com/gpu"
POOL_LABEL = "neuroshard.dev/pool"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodePool:
    """Nodes of one kind. `gpus` is 0 for a pool without any."""

    name: str
    gpus: int = 0
    product: str = ""
    family: str = ""
    memory_mib: int = 0

    def labels(self) -> dict[str, str]:
        """Return the labels of a node of this pool."""
        pool = {POOL_LABEL: self.name}
        if not self.gpus:
            return pool
        return pool | {
            "nvidia.com/gpu.present": "true",
            "nvidia.com/gpu.product": self.product,
            "nvidia.com/gpu.family": self.family,
            "nvidia.com/gpu.count": str(self.gpus),
            "nvidia.com/gpu.memory": str(self.memory_mib),
            "nvidia.com/gpu.clique": f"{self.name}.0",
            "nvidia.com/cuda.driver-version.full": "580.95.05",
        }

    def status_patch(self) -> Mapping[str, Any]:
        """Return the merge patch of a node's status that gives it its GPUs.

        The kubelet copies a capacity that it does not know to what is allocatable, and keeps it over restarts.
        """
        return status_patch(self.gpus)


def status_patch(gpus: int) -> Mapping[str, Any]:
    """Return the merge patch that leaves a node with `gpus` GPUs."""
    return {"status": {"capacity": {RESOURCE: str(gpus)}, "allocatable": {RESOURCE: str(gpus)}}}


POOLS = {
    pool.name: pool
    for pool in (
        NodePool(name="h200", gpus=8, product="NVIDIA-H200", family="hopper", memory_mib=143771),
        NodePool(name="a100", gpus=8, product="NVIDIA-A100-SXM4-80GB", family="ampere", memory_mib=81920),
        NodePool(name="l4", gpus=4, product="NVIDIA-L4", family="ada-lovelace", memory_mib=23034),
        NodePool(name="cpu"),
    )
}
DEFAULT_POOL = "h200"
