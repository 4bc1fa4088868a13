"""Groups of devices that each hold all tables and average them (2-D sharding): who is in which, and over which links.

With m groups of g devices, a device exchanges lookups and pooled embeddings within its group alone, and averages its
shards with its m - 1 copies in the other groups. So the tables' part of a plan is one for g devices; all groups are
alike.

layout       group i of m              copies of a shard                        what that favors
contiguous   devices i g to (i + 1) g  i g apart, in other nodes where g        the exchanges of a step: a group has
                                       fills whole nodes                        whole nodes, or part of one
strided      devices i, i + m, ...     neighbors, inside a node where m is at   the averages: they stay inside a node
                                       most its devices
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from neuroshard_api.documents.counts import PositiveCount
from neuroshard_api.documents.document import Value
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.documents.topology import Topology

LEAST_GROUP = 2
"""Devices: TorchRec shards over two or more."""
AVERAGED_OPTIMIZERS = (Optimizer.SGD, Optimizer.ROWWISE_ADAGRAD, Optimizer.ADAGRAD)
"""Optimizers whose state TorchRec averages. Source: DMPCollection._cache_sync_tensors."""

SyncSteps = Annotated[int, Field(ge=1, le=1_000_000)]


class GroupLayout(StrEnum):
    """Which devices form a group."""

    CONTIGUOUS = "contiguous"
    """Devices with consecutive numbers."""
    STRIDED = "strided"
    """Devices as far apart as there are groups."""


class Replication(Value):
    """Groups of a plan. The plan's shards are those of one group, with its devices numbered from 0."""

    num_groups: Annotated[int, Field(ge=2, le=4096)]
    layout: GroupLayout
    sync_every_steps: SyncSteps = 1
    """Steps from one average of weights and optimizer state over all copies to the next."""
    whole_ms: Annotated[float, Field(ge=0)] | None = None
    """Predicted cost of the best plan over all devices without groups. If unset: the plan has no price."""
    group_lower_bound_ms: Annotated[float, Field(ge=0)] | None = None
    """No plan of one group costs less under the same cost model, averages left out. If unset: the plan has no price."""

    def of(self, topology: Topology) -> "Grouping":
        """Return the groups of all devices, of which `replication_problem` finds no fault."""
        found = grouping(topology, topology.num_devices // self.num_groups, self.layout)
        assert found is not None, "plans are checked for groups that fill their nodes"
        return found


def moment_scale(optimizer: Optimizer, num_groups: int) -> int:
    """Return the sum of squared gradients that groups keep, over that of one model on all their samples.

    A group's gradient is a mean over its own samples, fewer by the number of groups. The gradient of a row that one
    sample looks up is that many times larger in this sample's group, its square that number squared, and the mean of
    the squares over all groups is larger by the number; so is that of noise. Adagrad divides by the root. Rates larger
    by that root give one model's steps (scaled moments, arXiv 2508.03854). SGD keeps no sum.
    """
    return 1 if optimizer is Optimizer.SGD else num_groups


class ReplicationChoices(Value):
    """Groups that a search may form. Plans without groups are always searched too."""

    group_sizes: Annotated[tuple[PositiveCount, ...], Field(min_length=1, max_length=16)] | None = None
    """Devices of a group. If unset: all that divide the nodes, or are divided by them."""
    layouts: Annotated[tuple[GroupLayout, ...], Field(min_length=1)] = tuple(GroupLayout)
    sync_every_steps: SyncSteps = 1
    """Steps between averages; above 1 the copies of a table differ in between."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouping:
    """One way to form groups of all devices."""

    layout: GroupLayout
    num_groups: int
    group: Topology
    """Devices and links of each group."""
    copies: Topology
    """The devices that hold copies of one shard, and their links."""


def grouping(topology: Topology, group_size: int, layout: GroupLayout) -> Grouping | None:
    """Return groups of that size. None: they are not nodes of equally many devices each."""
    num_nodes, per_node = topology.num_domains, topology.devices_per_domain
    num_groups, rest = divmod(topology.num_devices, group_size)
    if rest or group_size < LEAST_GROUP or num_groups == 1:
        return None
    if layout is GroupLayout.STRIDED:
        if per_node % num_groups:
            return None
        group, copies = (num_nodes, per_node // num_groups), (1, num_groups)
    elif group_size % per_node == 0:
        group, copies = (group_size // per_node, per_node), (num_groups, 1)
    elif per_node % group_size == 0:
        group, copies = (1, group_size), (num_nodes, per_node // group_size)
    else:
        return None
    spread = topology.model_copy(update={"rack": None})  # copies are as far apart as a group is large
    return Grouping(layout=layout, num_groups=num_groups, group=_part(topology, *group), copies=_part(spread, *copies))


def groupings(topology: Topology, choices: ReplicationChoices) -> Iterator[Grouping]:
    """Yield the permitted groups of all devices, large ones first.

    Raises:
        ValueError: a size forms no group in any permitted layout; the message begins with the field.
    """
    sizes = choices.group_sizes
    if sizes is None:
        sizes = tuple(size for size in range(topology.num_devices // 2, 1, -1) if topology.num_devices % size == 0)
    for index, size in enumerate(sizes):
        found = [each for layout in choices.layouts if (each := grouping(topology, size, layout)) is not None]
        if not found and choices.group_sizes is not None:
            raise ValueError(f"group_sizes[{index}]: {_size_problem(topology, size, choices.layouts)}")
        yield from found


def group_members(num_groups: int, group_size: int, layout: GroupLayout) -> tuple[tuple[int, ...], ...]:
    """Return the devices of each group, in the order of their numbers within it."""
    if layout is GroupLayout.CONTIGUOUS:
        return tuple(tuple(range(first * group_size, (first + 1) * group_size)) for first in range(num_groups))
    return tuple(tuple(range(first, num_groups * group_size, num_groups)) for first in range(num_groups))


def averaging_problem(optimizers: Sequence[Optimizer]) -> str | None:
    """Return the optimizer whose state TorchRec does not average, and those to use instead. None: it averages all."""
    other = next((each for each in optimizers if each not in AVERAGED_OPTIMIZERS), None)
    if other is None:
        return None
    return f"TorchRec averages no state of {other.value}; hint: use one of {', '.join(AVERAGED_OPTIMIZERS)}"


def replication_problem(replication: Replication, topology: Topology, optimizers: Sequence[Optimizer]) -> str | None:
    """Return the reason that TorchRec cannot form or average a plan's groups; it begins with the field. None: it can.

    Args:
        replication: of the plan.
        topology: all devices.
        optimizers: of the tables.
    """
    problem = averaging_problem(optimizers)
    if problem is not None:
        return f"num_groups: {problem}, or plan without groups"
    if topology.host_memory is not None:
        return (
            "num_groups: groups average device memory alone, and the topology has host_memory"
            "; hint: leave one of them out"
        )
    size, rest = divmod(topology.num_devices, replication.num_groups)
    if rest or grouping(topology, size, replication.layout) is None:
        return (
            f"layout: {replication.num_groups} {replication.layout} groups are not equal parts of "
            f"{topology.num_domains} nodes of {topology.devices_per_domain} devices; hint: give other groups or nodes"
        )
    return None


def training_differences(replication: Replication, optimizers: Sequence[Optimizer]) -> Iterator[str]:
    """Yield warnings of a plan's groups in which copies train otherwise than one model, with optimizers of tables."""
    with_state = next((each for each in optimizers if each is not Optimizer.SGD), None)
    if with_state is not None:
        rate = moment_scale(with_state, replication.num_groups) ** 0.5
        yield (
            f"replication: sums of squared gradients of {with_state.value} grow with the groups; NeuroShard's trainer "
            f"multiplies the tables' rate by {rate:.3g}, a trainer of your own must do so too; compare the model's "
            "quality, or plan without groups"
        )
    if replication.sync_every_steps > 1:
        yield (
            f"replication.sync_every_steps: copies of a table differ for {replication.sync_every_steps} steps between "
            "averages; compare the model's quality, or set 1"
        )


def _part(topology: Topology, num_nodes: int, devices_per_node: int) -> Topology:
    whole, rack = topology.by_domains(), topology.slower_rack
    if rack is not None and num_nodes % rack.num_nodes and rack.num_nodes % num_nodes:
        whole = whole.model_copy(update={"rack": None})  # groups begin in the middle of racks
    return whole.with_nodes(num_nodes).model_copy(update={"devices_per_node": devices_per_node})


def _size_problem(topology: Topology, size: int, layouts: Sequence[GroupLayout]) -> str:
    shape = f"{topology.num_domains} nodes of {topology.devices_per_domain} devices"
    if size < LEAST_GROUP:
        return f"is {size}, groups have {LEAST_GROUP} devices or more"
    if topology.num_devices % size or size == topology.num_devices:
        return f"groups of {size} devices do not divide {shape}; hint: give a proper divisor of {topology.num_devices}"
    return (
        f"{' or '.join(layouts)} groups of {size} devices are not equal parts of {shape}"
        f"; hint: give a size that divides a "
        f"node's devices, or that they divide"
    )
