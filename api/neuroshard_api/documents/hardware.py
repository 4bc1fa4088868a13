"""What a profile was measured on, and whether it still holds for a machine."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from neuroshard_api.documents.bundle import Source
from neuroshard_api.documents.counts import MAX_MILLISECONDS
from neuroshard_api.documents.document import Document, DocumentError
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.topology import DeviceType, Link, Topology, equal_racks


class Hardware(Document):
    """``hardware.json`` next to a bundle: the device, its links as they were measured, and the versions below them."""

    schema_name: ClassVar[str] = "hardware/v1"

    schema_version: Literal["hardware/v1"] = "hardware/v1"
    fingerprint: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of all that decides whether the profile holds: product, memory, driver, links, library versions,
    backend."""
    source: Source
    """How the numbers were found: ``measured:<device>``, ``cpu:<model>`` or ``simulated:<device>``."""
    device: DeviceType
    intra_node: Link | None = None
    """The link between devices of one node, as the all-to-all found it. None: only one device was measured."""
    inter_node: Link | None = None
    """The link between nodes, as the all-to-all found it. None: only one node was measured."""
    network_of: str | None = None
    """Device type whose usual links stand in for those that were not measured. None: the device's own type."""
    devices_per_node: Annotated[int, Field(ge=1, le=4096)]
    """Devices of the node that was measured."""
    driver_version: str | None = None
    """None: the device has no driver of its own."""
    core_loop_ms: Annotated[float, Field(gt=0, le=MAX_MILLISECONDS)] | None = None
    """Processor time of a fixed loop (`process.core_speed`) next to the measured calls. None: no processor was
    measured."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Versions of libraries and clocks, for people."""

    def topology(self, *, num_nodes: int, devices_per_node: int) -> Topology:
        """Return equal nodes of this hardware.

        A level that was not measured gets the usual link of ``network_of``, whose racks these are too: where they are
        domains, with the measured link of a node. Two nodes that were measured with more than the usual link between
        racks are of one rack. Where no link is known, a level over which nothing passes gets the other level's numbers.

        Raises:
            DocumentError: a link is needed and neither measured nor known.
        """
        usual = load_presets().get(self.network_of or self.device.name)
        intra = self.intra_node or (usual.intra_node if usual else None)
        inter = self.inter_node or (usual.inter_node if usual else None)
        rack = None if usual is None else equal_racks(usual.rack, num_nodes)
        if usual is not None and rack is not None:
            if usual.is_rack_a_domain and intra is not None:
                rack = rack.model_copy(update={"link": intra})
            if inter is not None and inter.bandwidth_bytes_per_second > usual.inter_node.bandwidth_bytes_per_second:
                inter = usual.inter_node  # the two nodes that were measured are in one rack
        missing = [
            (field, where)
            for field, link, is_spanned, where in (
                ("intra_node", intra, devices_per_node > 1, "two devices of a node"),
                ("inter_node", inter, num_nodes > 1, "two nodes"),
            )
            if is_spanned and link is None
        ]
        if missing:
            field, where = missing[0]
            problem = (
                f"{field}: was not measured, and no usual one is known for the device {self.device.name!r}; "
                f"profile on {where}, or name a device type whose link is like this one"
            )
            raise DocumentError("hardware", [problem])
        nothing_passes = Link(
            bandwidth_bytes_per_second=self.device.memory_bandwidth_bytes_per_second, latency_seconds=0.0
        )
        return Topology(
            num_nodes=num_nodes,
            devices_per_node=devices_per_node,
            device=self.device,
            intra_node=intra or inter or nothing_passes,
            inter_node=inter or intra or nothing_passes,
            rack=rack,
        )
