"""Device presets: published data sheets as documents. Holds numbers, computes nothing."""

import tomllib
from difflib import get_close_matches
from functools import lru_cache
from importlib.resources import files

from pydantic import TypeAdapter

from neuroshard_api.documents.counts import PositiveCount
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.topology import DeviceType, HostLink, HostMemory, Link, Rack, Topology, equal_racks


class DevicePreset(Value):
    """A kind of device as it is usually built into nodes."""

    device: DeviceType
    intra_node: Link
    """The usual link between devices of a node."""
    inter_node: Link
    """The usual network between nodes, per device."""
    devices_per_node: PositiveCount
    host_link: HostLink
    """The usual link to the memory of the node."""
    rack: Rack | None = None
    """Nodes of the usual rack, where their link is faster than the network between racks. If unset: there is none."""

    @property
    def is_rack_a_domain(self) -> bool:
        """Whether the usual rack's link is as fast as that inside a node."""
        return self.rack is not None and self.topology(num_nodes=self.rack.num_nodes).nodes_per_domain > 1

    def topology(
        self, *, num_nodes: int = 1, devices_per_node: int | None = None, host_memory_bytes: int | None = None
    ) -> Topology:
        """Return equal nodes of this device.

        Args:
            num_nodes: nodes.
            devices_per_node: None: as many as usual.
            host_memory_bytes: of each node, for tables. None: tables are in device memory alone.
        """
        return Topology(
            num_nodes=num_nodes,
            devices_per_node=self.devices_per_node if devices_per_node is None else devices_per_node,
            device=self.device,
            intra_node=self.intra_node,
            inter_node=self.inter_node,
            rack=equal_racks(self.rack, num_nodes),
            host_memory=None
            if host_memory_bytes is None
            else HostMemory(bytes_per_node=host_memory_bytes, link=self.host_link),
        )


@lru_cache(maxsize=1)
def load_presets() -> dict[str, DevicePreset]:
    """Return all presets by name, in the order of presets/devices.toml."""
    path = files("neuroshard_api") / "presets" / "devices.toml"
    raw = tomllib.loads(path.read_text(encoding="utf-8"))["preset"]  # which loads sooner than YAML's library
    presets = TypeAdapter(list[DevicePreset]).validate_python(raw)
    return {preset.device.name: preset for preset in presets}


def preset(name: str) -> DevicePreset:
    """Return one preset. Raises ValueError that has the nearest name, or all of them."""
    presets = load_presets()
    if name not in presets:
        typed = name.lower().replace("_", "-")
        near = [each for each in presets if each.startswith(typed)] if typed else []
        near = near or get_close_matches(typed, presets, n=1)
        nearest = f"did you mean {' or '.join(near)}? Otherwise " if near else ""
        raise ValueError(
            f"device type {name!r} is not known; hint: {nearest}choose one of {', '.join(presets)}, "
            "or describe the device by numbers in a topology file"
        )
    return presets[name]
