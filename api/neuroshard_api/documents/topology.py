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


class Topology(Document):
    """Equal nodes of equal devices: a fast link inside a node, a slower one between nodes.

    Devices are numbered node by node: device ``d`` sits in node ``d // devices_per_node``.
    """

    schema_name: ClassVar[str] = "topology/v1"

    schema_version: Literal["topology/v1"] = "topology/v1"
    num_nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    devices_per_node: Annotated[int, Field(ge=1, le=4096)]
    device: DeviceType
    intra_node: Link
    inter_node: Link
    host_memory: HostMemory | None = None
    """If unset: no table may be stored in host memory."""

    @property
    def num_devices(self) -> int:
        """Devices in all nodes."""
        return self.num_nodes * self.devices_per_node
