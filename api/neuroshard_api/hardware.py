"""What a profile was measured on, and whether it still holds for a machine."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.bundle import Source
from neuroshard_api.document import Document
from neuroshard_api.topology import DeviceType, Link, Topology


class Hardware(Document):
    """``hardware.json`` beside a bundle: the device, its links as they were measured, and the versions below them."""

    schema_name: ClassVar[str] = "hardware/v1"

    schema_version: Literal["hardware/v1"] = "hardware/v1"
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of all that decides whether the profile holds: product, memory, driver, links, library versions,
    backend."""
    source: Source
    """How the numbers were found: ``measured:<device>``, ``cpu:<model>`` or ``simulated:<device>``."""
    device: DeviceType
    intra_node: Link
    """The link between devices of one node, as the all-to-all found it."""
    inter_node: Link
    """The link between nodes; the device type's usual one where only one node was measured."""
    devices_per_node: Annotated[int, Field(ge=1, le=4096)]
    """Devices of the node that was measured."""
    driver_version: str | None = None
    """None: the device has no driver of its own."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Versions of libraries and clocks, for people."""

    def topology(self, *, num_nodes: int, devices_per_node: int) -> Topology:
        """Return equal nodes of this hardware."""
        return Topology(
            num_nodes=num_nodes,
            devices_per_node=devices_per_node,
            device=self.device,
            intra_node=self.intra_node,
            inter_node=self.inter_node,
        )
