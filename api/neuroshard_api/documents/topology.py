"""Devices and the links between them."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.counts import MAX_MEMORY_BYTES, PositiveCount
from neuroshard_api.documents.document import Document, Value
from neuroshard_api.sharding.kernels import DeviceKind


class DeviceType(Value):
    """One kind of accelerator, described by the numbers of its data sheet."""

    name: Annotated[str, Field(min_length=1, max_length=128)]
    """Preset name such as ``h100-80gb``, or a name of your own."""
    product: Annotated[str, Field(min_length=1, max_length=128)]
    """Product name as the driver and the node label nvidia.com/gpu.product report it."""
    memory_bytes: Annotated[int, Field(ge=1, le=MAX_MEMORY_BYTES)]
    """Device memory usable by a process."""
    memory_bandwidth_bytes_per_second: Annotated[float, Field(gt=0)]
    """Peak of the data sheet."""
    cache_bytes: Annotated[int, Field(ge=0, le=MAX_MEMORY_BYTES)]
    """Last-level (L2) cache."""
    cache_partitions: PositiveCount = 1
    """Parts of the last-level cache that may each hold a copy of a row that is read everywhere."""
    cache_bandwidth_bytes_per_second: Annotated[float, Field(gt=0)]
    """Read bandwidth of the last-level cache."""
    num_multiprocessors: PositiveCount
    """Streaming multiprocessors (compute units)."""
    clock_hz: Annotated[float, Field(gt=0)]
    """Boost clock of the multiprocessors."""
    source: str
    """Where the numbers come from."""

    @property
    def is_cpu(self) -> bool:
        """Whether processes on the host's cores take the place of accelerators."""
        return self.name.startswith("cpu-")

    @property
    def kind(self) -> DeviceKind:
        """The kind of device, which decides the kernels there are."""
        return "cpu" if self.is_cpu else "cuda"


class Link(Value):
    """What one device can send, and receive at the same time, over one level of the network."""

    bandwidth_bytes_per_second: Annotated[float, Field(gt=0)]
    """Per device and direction."""
    latency_seconds: Annotated[float, Field(ge=0, le=1)]
    """Time of a message without payload."""


class SpannedDevices(Value):
    """Devices that a collective spans, and the links that it passes over."""

    num_nodes: PositiveCount
    devices_per_node: PositiveCount
    intra_node: Link | None = None
    """The link between devices of a node. None: a node has one device, so nothing passed over it."""
    inter_node: Link | None = None
    """The link between nodes. None: there is one node, so nothing passed over it."""

    @model_validator(mode="after")
    def _links_of_spanned_levels(self) -> Self:
        for field in self.spanned_levels:
            if getattr(self, field) is None:
                raise ValueError(f"{field}: must be given, since the exchange passes over it")
        return self

    @property
    def num_devices(self) -> int:
        """Devices of all nodes."""
        return self.num_nodes * self.devices_per_node

    @property
    def spanned_levels(self) -> tuple[str, ...]:
        """Names of the links that something passed over."""
        return ("intra_node",) * (self.devices_per_node > 1) + ("inter_node",) * (self.num_nodes > 1)


class HostLink(Value):
    """The link between a node's memory and each of its devices, all of them at once."""

    to_device_bytes_per_second: Annotated[float, Field(gt=0)]
    """Peak of the data sheet."""
    from_device_bytes_per_second: Annotated[float, Field(gt=0)]
    """The same in the other direction."""


class HostMemory(Value):
    """Memory of each node in which tables may be stored."""

    bytes_per_node: Annotated[int, Field(ge=1, le=MAX_MEMORY_BYTES)]
    """What tables may take of a node's memory: less what processes, data loading, and the system need."""
    link: HostLink


class Rack(Value):
    """Nodes whose link to one another is faster than that between racks: an NVLink domain, or one switch's nodes."""

    num_nodes: Annotated[int, Field(ge=2, le=4096)]
    """Nodes of each rack."""
    link: Link
    """Between nodes of one rack, per device."""


class Topology(Document):
    """Equal nodes of equal devices: a fast link inside a node, a slower one between nodes, and racks in between.

    Devices are numbered node by node, nodes rack by rack: device ``d`` is in node ``d // devices_per_node``, node ``n``
    in rack ``n // rack.num_nodes``. A *domain* is what a link as fast as that inside a node joins: a rack whose link is
    (GB200 NVL72), else a node. Tables that are cut by the rows of a node, and groups of devices, are cut by domain.
    """

    schema_name: ClassVar[str] = "topology/v1"

    schema_version: Literal["topology/v1"] = "topology/v1"
    num_nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    devices_per_node: Annotated[int, Field(ge=1, le=4096)]
    device: DeviceType
    intra_node: Link
    inter_node: Link
    """Between nodes; between racks, where there are racks."""
    rack: Rack | None = None
    """If unset: all nodes have one link to one another."""
    host_memory: HostMemory | None = None
    """If unset: no table may be stored in host memory."""

    @model_validator(mode="after")
    def _equal_racks(self) -> Self:
        if self.rack is not None and self.num_nodes % self.rack.num_nodes:
            raise ValueError(
                f"rack.num_nodes: must divide num_nodes, for racks have equally many (found {self.rack.num_nodes} and "
                f"{self.num_nodes})"
            )
        return self

    @property
    def num_devices(self) -> int:
        """Devices in all nodes."""
        return self.num_nodes * self.devices_per_node

    @property
    def nodes_per_domain(self) -> int:
        """Nodes that a link as fast as that inside a node joins; 1: none does."""
        rack = self.rack
        if rack is None or rack.link.bandwidth_bytes_per_second < self.intra_node.bandwidth_bytes_per_second:
            return 1
        return rack.num_nodes

    @property
    def num_domains(self) -> int:
        """Domains of all nodes."""
        return self.num_nodes // self.nodes_per_domain

    @property
    def devices_per_domain(self) -> int:
        """Devices of each domain."""
        return self.devices_per_node * self.nodes_per_domain

    @property
    def slower_rack(self) -> Rack | None:
        """The racks whose link is slower than that inside a node. None: there are two levels."""
        return self.rack if self.nodes_per_domain == 1 else None

    def by_domains(self) -> "Topology":
        """Return the same devices with each domain as one node, without host memory."""
        return self.model_copy(
            update={
                "num_nodes": self.num_domains,
                "devices_per_node": self.devices_per_domain,
                "rack": self.slower_rack,
                "host_memory": None,
            }
        )

    def with_nodes(self, num_nodes: int) -> "Topology":
        """Return another number of these nodes, in racks as large as those here that have equally many."""
        return self.model_copy(update={"num_nodes": num_nodes, "rack": equal_racks(self.rack, num_nodes)})


def equal_racks(rack: Rack | None, num_nodes: int) -> Rack | None:
    """Return the largest racks, of at most as many nodes, that all have equally many of these nodes. None: of one."""
    if rack is None:
        return None
    size = next(size for size in range(min(rack.num_nodes, num_nodes), 0, -1) if num_nodes % size == 0)
    return rack.model_copy(update={"num_nodes": size}) if size > 1 else None
