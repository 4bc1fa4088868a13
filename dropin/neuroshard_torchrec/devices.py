"""The devices that a plan is for: from TorchRec's topology or the process group, and from what cost models know."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from neuroshard_api.documents.counts import MAX_MEMORY_BYTES
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.presets import load_presets, preset
from neuroshard_api.documents.topology import HostMemory, Rack, Topology
from neuroshard_api.process.sizes import format_bytes
from neuroshard_api.sharding.placement_rules import POD_SIZE_VARIABLE, pod_size_problem
from neuroshard_costs.bundle import CostBundle, bundle_at, bundled_bundle
from neuroshard_costs.errors import CostModelError
from neuroshard_costs.own_costs import OwnCosts
from torchrec.distributed.planner.constants import DDR_CAP, HBM_CAP
from torchrec.distributed.planner.types import Topology as TorchRecTopology

from neuroshard_torchrec.arguments import ignored_of
from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.first_rank import logger_of

logger = logger_of(__name__)

_EQUAL_MEMORY = 1.05
"""Times a device's memory: up to it a cap is that memory in round numbers, such as 80 GiB of 79.1."""
COMPUTE_DEVICES = ("cuda", "cpu")
"""That a rank may compute on, in torch's words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedDevices:
    """Devices, links, and the cost models of both."""

    topology: Topology
    bundle: CostBundle | OwnCosts
    compute_device: str
    """What each rank computes on: ``cuda`` or ``cpu``."""
    max_memory_bytes: int | None
    """Memory of a device as TorchRec's topology limits it."""
    host_bytes_per_node: int | None = None
    """Memory of a node as TorchRec's topology counts it, ddr of its devices together. None: it is unknown."""

    warnings: tuple[str, ...] = ()
    """What TorchRec's topology has and the plan does not keep, and what is assumed of it."""

    def with_host_memory(self) -> Topology:
        """Return the devices with the memory of their nodes, over the device's usual link, where it is known."""
        usual = load_presets().get(self.topology.device.name)
        if self.topology.host_memory is not None or usual is None or not self.host_bytes_per_node:
            return self.topology
        memory = HostMemory(bytes_per_node=self.host_bytes_per_node, link=usual.host_link)
        return self.topology.model_copy(update={"host_memory": memory})


@dataclass(frozen=True, kw_only=True, slots=True)
class Caps:
    """Memory of each device, and of the host for it, as a topology of TorchRec limits it; 0: it does not."""

    hbm_bytes: int = 0
    ddr_bytes: int = 0

    @classmethod
    def of(cls, given: TorchRecTopology | Topology | None) -> "Caps":
        """Return the least of a topology's devices: each one holds a part of every table that is cut by rows."""
        if not isinstance(given, TorchRecTopology):
            return cls()
        storages = [each.storage for each in given.devices]
        return cls(
            hbm_bytes=int(min((each.hbm for each in storages), default=0)),
            ddr_bytes=int(min((each.ddr for each in storages), default=0)),
        )

    @classmethod
    def least(cls, caps: "Sequence[Caps]") -> "Caps":
        """Return the least of several ranks: hosts differ by pages, and free memory differs always."""
        return cls(hbm_bytes=min(each.hbm_bytes for each in caps), ddr_bytes=min(each.ddr_bytes for each in caps))


def planned_devices(
    given: TorchRecTopology | Topology | None,
    *,
    device_type: str | None,
    bundle: Path | OwnCosts | None,
    ranks: Sequence[int] | None = None,
    caps: Caps | None = None,
) -> PlannedDevices:
    """Return the devices and their cost models.

    Processes, domains, and memory are those of TorchRec's topology, else of the process group and of the device.
    Links and the device's speed are the preset's or those of a topology of ours: TorchRec's bandwidths are defaults
    that nobody measured.

    Args:
        given: None: as many devices as the process group has processes, LOCAL_WORLD_SIZE of them on each node.
        device_type: a preset of `neuroshard devices`. None: the bundle's device, else this process's GPU.
        bundle: directory of cost models, a name of bundled ones, or a cost model of the user's own. None: the device's.
        ranks: that the devices are of, in the world. None: all of the world's.
        caps: that all ranks have agreed on. None: those of the topology.

    Raises:
        DropInError: the device is not known, or the cost models are of another one or cannot be read.
    """
    models: CostBundle | OwnCosts
    try:
        if isinstance(bundle, OwnCosts):
            models = bundle
        elif bundle is not None:
            models = bundle_at(bundle)
        else:
            models = bundled_bundle(_device_name(given, device_type))
    except CostModelError as error:
        raise DropInError(str(error)) from error
    if isinstance(given, Topology):
        topology, compute_device, memory = given, "cpu" if given.device.is_cpu else "cuda", None
        host_bytes = None
    else:
        world, per_node = _processes(given, ranks)
        topology = _preset_topology(device_type or models.manifest.device.name, world, per_node, _pod_size(given))
        compute_device = given.compute_device if given is not None else "cuda" if torch.cuda.is_available() else "cpu"
        if compute_device not in COMPUTE_DEVICES:
            raise DropInError(
                f"topology: computes on {compute_device!r}, and plans are for {' and '.join(COMPUTE_DEVICES)}; "
                "hint: plan with TorchRec's planner"
            )
        agreed = caps or Caps.of(given)
        memory = agreed.ddr_bytes if compute_device == "cpu" else agreed.hbm_bytes
        if given is not None and memory <= 0:
            raise DropInError(
                f"topology: {cap_of(compute_device)} must be at least 1 byte (found {memory})"
                "; hint: give a device's memory, or none"
            )
        host_bytes = min(agreed.ddr_bytes * per_node, MAX_MEMORY_BYTES) or None
    problem = models.device_problem(topology.device)
    if problem is not None:
        where = models.manifest.name if isinstance(bundle, OwnCosts) else bundle or "device_type"
        raise DropInError(f"{where}: {problem}; hint: give the cost models of the device")
    warnings = [] if isinstance(bundle, OwnCosts) else list(_warnings(given, topology))
    cap, default = cap_of(compute_device), DDR_CAP if compute_device == "cpu" else HBM_CAP
    if memory == default < topology.device.memory_bytes:
        warnings.append(
            f"topology: has TorchRec's default {cap} of {format_bytes(default)}; all of a {topology.device.name}, "
            f"{format_bytes(topology.device.memory_bytes)}, counts; hint: give another {cap} to plan for less"
        )
        memory = topology.device.memory_bytes
    if memory and memory != default and memory > _EQUAL_MEMORY * topology.device.memory_bytes:
        warnings.append(
            f"topology: its {cap} is {format_bytes(memory)}; a {topology.device.name} has "
            f"{format_bytes(topology.device.memory_bytes)}, which count"
        )
    return PlannedDevices(
        topology=topology,
        bundle=models,
        compute_device=compute_device,
        host_bytes_per_node=host_bytes,
        max_memory_bytes=min(memory, topology.device.memory_bytes) if memory else None,
        warnings=tuple(warnings),
    )


def cap_of(compute_device: str) -> str:
    """Return the argument of TorchRec's topology that limits a device's memory."""
    return "ddr_cap" if compute_device == "cpu" else "hbm_cap"


def _warnings(given: TorchRecTopology | Topology | None, planned: Topology) -> tuple[str, ...]:
    """Name settings of links and devices in TorchRec's topology that are not its defaults; own cost models use them."""
    if not isinstance(given, TorchRecTopology):
        return ()
    own = ignored_of(given)
    found = []
    for kind in ("hbm", "ddr"):
        sizes = sorted({getattr(each.storage, kind) for each in given.devices})
        if len(sizes) > 1:
            found.append(
                f"topology: its devices have {format_bytes(sizes[0])} to {format_bytes(sizes[-1])} of {kind}; all are "
                "planned with the least"
            )
    if not own:
        return tuple(found)
    found.append(
        f"topology: {', '.join(own)}: without effect, as links and speed are those of {planned.device.name}; "
        "hint: give a neuroshard_api.documents.topology.Topology, whose links count"
    )
    return tuple(found)


def require_devices_of(topology: Topology, ranks: Sequence[int]) -> None:
    """Do nothing if a process group has a process for each device, and as many on each node; else raise DropInError.

    A group of several times as many holds the tables in each of its parts, as DMPCollection does (2-D sharding).

    Args:
        topology: that is planned for.
        ranks: of the group, in the world; nodes have LOCAL_WORLD_SIZE of the world's, where a launcher set it.
    """
    groups, rest = divmod(len(ranks), topology.num_devices)
    if groups > 1 and not rest:
        logger.info(
            "the plan is of one of %d groups of %d processes; hand it to DMPCollection with sharding_group_size=%d",
            groups,
            topology.num_devices,
            topology.num_devices,
        )
        return
    if len(ranks) != topology.num_devices:
        raise DropInError(
            f"topology: has {topology.num_devices} devices, the process group has {len(ranks)} processes"
            "; hint: start one per device, or a multiple, with DMPCollection's groups of one per device"
        )
    if "LOCAL_WORLD_SIZE" not in os.environ:
        return
    found = _per_node(ranks, _variable("LOCAL_WORLD_SIZE", len(ranks)))
    if found != topology.devices_per_node:
        raise DropInError(
            f"topology: has {topology.devices_per_node} devices on each node, the process group has {found} processes "
            f"on each"
            f"; hint: give a topology of the nodes that the launcher started: TorchRec's with local_world_size={found}"
        )


def _device_name(given: TorchRecTopology | Topology | None, device_type: str | None) -> str:
    if device_type is not None:
        return device_type
    if isinstance(given, Topology):
        return given.device.name
    if not torch.cuda.is_available():
        raise DropInError(
            "device_type: is not given, and this process sees no GPU; hint: name the GPU that the plan is for, one of "
            f"{', '.join(load_presets())}, or give a bundle of cost models of this machine"
        )
    product = torch.cuda.get_device_name()
    found = next((name for name, each in load_presets().items() if _plain(each.device.product) == _plain(product)), "")
    if not found:
        raise DropInError(
            f"device_type: there are no cost models of a {product}; hint: measure it with `neuroshard profile` "
            "and give the bundle, or name the nearest device"
        )
    return found


def _plain(product: str) -> str:
    """Return a product's name as driver and node labels both have it."""
    return product.replace(" ", "-").lower()


def _processes(given: TorchRecTopology | None, ranks: Sequence[int] | None) -> tuple[int, int]:
    """Return the number of processes, in all and on each node. Raises DropInError if nodes have unlike numbers."""
    if given is not None:
        return given.world_size, given.local_world_size
    world = dist.get_world_size() if dist.is_initialized() else _variable("WORLD_SIZE", 1)
    per_node = _variable("LOCAL_WORLD_SIZE", world)
    if ranks is None:
        return world, per_node
    return len(ranks), _per_node(ranks, per_node)


def _per_node(ranks: Sequence[int], local_world_size: int) -> int:
    """Return the number of ranks on each of their nodes. Raises DropInError if nodes have unlike numbers."""
    of_nodes = Counter(rank // local_world_size for rank in ranks)
    if len(set(of_nodes.values())) > 1:
        found = ", ".join(map(str, of_nodes.values()))
        raise DropInError(
            f"topology: nodes have {found} processes of the group; hint: give it equally many of each node"
        )
    return len(ranks) // len(of_nodes)


def _variable(name: str, default: int) -> int:
    """Return the count of processes that a launcher has set. Raises DropInError."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text)):
        raise DropInError(
            f"{name}: is {text!r}, not a number of processes; hint: start the script with torchrun, or unset it"
        )
    return int(text)


def _pod_size(given: TorchRecTopology | None) -> int | None:
    """Return the nodes that TorchRec's topology joins by a link as fast as that inside a node. None: it says none.

    Releases before 1.9 have no pods.
    """
    return getattr(given, "_pod_size", None)


_POD_SIZES_OF_PLANS: set[str] = set()
"""Values that this process has given POD_SIZE_VARIABLE."""


def require_pods_of(plan: GivenPlan) -> None:
    """Let TorchRec deal the rows of a node out to the ranks of a planned domain.

    Raises:
        DropInError: the script's environment has domains of another size.
    """
    topology = plan.request.topology
    if os.environ.get(POD_SIZE_VARIABLE) in _POD_SIZES_OF_PLANS:  # of an earlier plan, and not the script's
        del os.environ[POD_SIZE_VARIABLE]
    if topology.nodes_per_domain > 1 and POD_SIZE_VARIABLE not in os.environ:
        os.environ[POD_SIZE_VARIABLE] = str(topology.nodes_per_domain)
        _POD_SIZES_OF_PLANS.add(str(topology.nodes_per_domain))
        logger.info("%s is set to %d, for tables that are cut by node", POD_SIZE_VARIABLE, topology.nodes_per_domain)
    problem = pod_size_problem(plan.tables, topology, os.environ.get(POD_SIZE_VARIABLE))
    if problem is not None:
        raise DropInError(f"topology: {problem}")


def _preset_topology(name: str, world: int, per_node: int, pod_size: int | None) -> Topology:
    nodes, rest = divmod(world, per_node)
    if rest:
        raise DropInError(
            f"topology: {per_node} processes per node do not divide {world} processes; hint: start as many on each node"
        )
    try:
        found = preset(name).topology(num_nodes=nodes, devices_per_node=per_node)
    except ValueError as error:
        raise DropInError(f"{error}; hint: give its Topology as the planner's `topology`") from error
    if pod_size is None:
        return found
    joined = min(pod_size, nodes)
    if joined < 1 or nodes % joined:
        raise DropInError(
            f"topology: pod_size must divide the number of nodes (found {pod_size} and {nodes})"
            "; hint: give each pod as many nodes"
        )
    return found.model_copy(update={"rack": Rack(num_nodes=joined, link=found.intra_node) if joined > 1 else None})
