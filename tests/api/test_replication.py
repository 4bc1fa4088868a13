"""Groups of devices that each hold all tables: which there are, who is in them, and what is refused."""

import random
from math import sqrt
from typing import Any

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.documents.topology import Link, Rack
from neuroshard_api.sharding.replication import (
    GroupLayout,
    ReplicationChoices,
    group_members,
    grouping,
    groupings,
    moment_scale,
)
from support.builders import host_memory, plan, request, table, table_set, topology

CONTIGUOUS, STRIDED = GroupLayout


@pytest.mark.parametrize(
    ("size", "layout", "group", "copies"),
    [
        (8, CONTIGUOUS, (1, 8), (4, 1)),
        (16, CONTIGUOUS, (2, 8), (2, 1)),
        (4, CONTIGUOUS, (1, 4), (4, 2)),
        (16, STRIDED, (4, 4), (1, 2)),
        (4, STRIDED, (4, 1), (1, 8)),
        (2, STRIDED, None, None),
        (12, CONTIGUOUS, None, None),
        (32, CONTIGUOUS, None, None),
        (1, CONTIGUOUS, None, None),
    ],
)
def test_groups_have_nodes_of_their_own(
    size: int, layout: GroupLayout, group: tuple[int, int] | None, copies: tuple[int, int] | None
) -> None:
    """On 4 nodes of 8: nodes and devices per node of a group, and of the devices that hold copies of a shard."""
    found = grouping(topology(32, num_nodes=4), size, layout)

    if found is None:
        assert group is None
        return
    assert (found.group.num_nodes, found.group.devices_per_node) == group
    assert (found.copies.num_nodes, found.copies.devices_per_node) == copies
    assert found.num_groups * found.group.num_devices == 32
    assert found.copies.num_devices == found.num_groups


def test_groups_of_racks_have_the_links_that_they_span() -> None:
    """Half a rack has the rack's link, two racks have both, one and a half the slower; copies are in other racks."""
    plain = topology(48, num_nodes=24)
    link = Link(bandwidth_bytes_per_second=100e9, latency_seconds=15e-6)
    racks = topology(48, num_nodes=24, rack=Rack(num_nodes=4, link=link))
    found = {size: grouping(racks, 2 * size, CONTIGUOUS) for size in (2, 4, 8, 6)}
    parts = {size: each.group for size, each in found.items() if each is not None}
    of_rack = {size: each.rack.num_nodes if each.rack else None for size, each in parts.items()}

    assert of_rack == {2: 2, 4: 4, 8: 4, 6: None}
    assert all(each.inter_node == plain.inter_node for each in parts.values())
    assert all(each.copies.rack is None for each in found.values() if each is not None)


def test_groups_are_parts_of_domains() -> None:
    """A rack with the link of a node is one node for groups, so that half of it is a group."""
    plain = topology(16, num_nodes=8)
    domains = topology(16, num_nodes=8, rack=Rack(num_nodes=4, link=plain.intra_node))
    found = grouping(domains, 4, CONTIGUOUS)

    assert found is not None
    assert (found.group.num_nodes, found.group.devices_per_node) == (1, 4)
    assert (found.copies.num_nodes, found.copies.devices_per_node) == (2, 2)


@pytest.mark.parametrize("layout", list(GroupLayout))
def test_copies_of_a_shard_are_where_their_links_say(layout: GroupLayout) -> None:
    """Members with one number in their groups are on that many nodes, and that many of each."""
    nodes = topology(16, num_nodes=2)
    for found in groupings(nodes, ReplicationChoices(layouts=(layout,))):
        members = group_members(found.num_groups, found.group.num_devices, layout)
        assert sorted(device for group in members for device in group) == list(range(16))
        for devices, part in ((members[-1], found.group), (tuple(zip(*members, strict=True))[-1], found.copies)):
            on_node = [device // 8 for device in devices]
            assert len(set(on_node)) == part.num_nodes
            assert {on_node.count(node) for node in on_node} == {part.devices_per_node}


@pytest.mark.parametrize(
    ("size", "problem"),
    [
        (1, r"group_sizes\[0\]: is 1, groups have 2 devices or more"),
        (3, r"groups of 3 devices do not divide 2 nodes of 4 devices; hint: give a proper divisor of 8"),
        (8, r"groups of 8 devices do not divide"),
    ],
)
def test_sizes_that_form_no_groups_are_refused(size: int, problem: str) -> None:
    """With what the devices are and what would do."""
    with pytest.raises(ValueError, match=problem):
        list(groupings(topology(8, num_nodes=2), ReplicationChoices(group_sizes=(size,))))


@pytest.mark.parametrize(
    ("fields", "changes", "problem"),
    [
        (
            {},
            {"optimizer": Optimizer.ADAM},
            r"replication.num_groups: TorchRec averages no state of adam; hint: use one of sgd",
        ),
        ({}, {"tables": table_set(table(optimizer=Optimizer.ADAM))}, r"TorchRec averages no state of adam"),
        (
            {},
            {"topology": topology(8, num_nodes=2, host_memory=host_memory())},
            r"replication.num_groups: groups average device",
        ),
        ({"num_groups": 3}, {}, r"replication.layout: 3 contiguous groups are not equal parts of 2 nodes of 4 devices"),
        (
            {"num_groups": 4, "layout": "strided"},
            {"topology": topology(12, num_nodes=2)},
            r"replication.layout: 4 strided groups are not equal parts of 2 nodes of 6 devices; hint: give other",
        ),
        ({"num_groups": 1}, {}, r"replication.num_groups: input should be greater than or equal to 2"),
    ],
)
def test_plans_whose_groups_cannot_be_formed_or_averaged_are_refused(
    fields: dict[str, Any], changes: dict[str, Any], problem: str
) -> None:
    """Anyone who reads the plan: adapter, trainer, operator."""
    asked = request(**{"topology": topology(8, num_nodes=2), **changes})
    raw = plan(asked).model_dump(mode="json", exclude_none=True)
    raw["replication"] = {"num_groups": 2, "layout": "contiguous", **fields}

    with pytest.raises(DocumentError, match=problem):
        Plan.from_data(raw)


def test_a_plan_counts_the_devices_of_all_groups() -> None:
    """Its request has them, and its shards are those of one."""
    one = plan(request(num_devices=4)).model_dump(mode="json", exclude_none=True)
    asked = request(topology=topology(8, num_nodes=2)).model_dump(mode="json", exclude_none=True)
    found = Plan.from_data({**one, "request": asked, "replication": {"num_groups": 2, "layout": "contiguous"}})

    assert (found.num_devices, found.devices_per_node, found.num_nodes) == (8, 4, 2)
    assert found.resolved.topology.num_devices == 4
    assert found.groups == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert Plan.from_json(found.to_json()) == found


@pytest.mark.parametrize("num_groups", [2, 8])
def test_the_scale_of_moments_gives_rows_of_single_samples_one_models_steps(num_groups: int) -> None:
    """Row-wise Adagrad in groups that are averaged after each step, once the sums outgrow a step's own square."""
    drawn = random.Random(0)  # noqa: S311 - draws test data
    scale = moment_scale(Optimizer.ROWWISE_ADAGRAD, num_groups)
    total, one_total = 0.0, 0.0
    moves, one_moves = [], []
    for _ in range(600):
        gradient = drawn.gauss(0.0, 1.0)  # a mean over all samples, of which a group has num_groups times fewer
        one_total += gradient**2
        one_moves.append(abs(gradient) / sqrt(one_total))
        own = num_groups * gradient
        moves.append(abs(sqrt(scale) * own / sqrt(total + own**2)) / num_groups)
        total += own**2 / num_groups

    assert total == pytest.approx(scale * one_total)
    assert sum(moves[300:]) == pytest.approx(sum(one_moves[300:]), rel=0.03)
    assert moment_scale(Optimizer.SGD, num_groups) == 1
