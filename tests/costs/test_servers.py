"""Times of embedding servers: what decides them, by numbers that are worked out by hand."""

import numpy as np
import pytest
from neuroshard_api.documents.plan_parts import CollectiveCost, PlanCost
from neuroshard_api.documents.presets import load_presets
from neuroshard_api.documents.servers import ServerPool
from neuroshard_api.documents.topology import Link
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_costs.servers import (
    TURN_MS,
    ServerTraffic,
    exchange_work_ms,
    exchanges,
    hidden_ahead_ms,
    lookup_ms,
)
from neuroshard_costs.simulator.device import DeviceSimulator
from support import builders

LINK = Link(bandwidth_bytes_per_second=1e10, latency_seconds=1e-4)
COSTS = DeviceSimulator(builders.device_type())
CPU = builders.device_type(name="cpu-test")


def test_the_busiest_server_decides_an_exchange_over_a_link() -> None:
    """Two processes of a server share its link: 3 columns of 4 bytes and 1,000,000 samples take 1.2 ms at 10 GB/s."""
    pool = ServerPool(count=2, processes=2, memory_bytes=1, link=LINK, tables=("a",))
    traffic = ServerTraffic(id_bytes=np.array([1e6, 1e6, 0.0, 5e6]), columns=np.array([1.0, 2.0, 0.0, 1.0]))

    found = exchanges(traffic, pool, builders.topology(8, device=CPU), global_batch_size=1_000_000, costs=COSTS)

    assert found.pooled_ms == found.gradients_ms == pytest.approx(0.1 + 1.2)
    assert found.ids_ms == pytest.approx(0.1 + 0.5)


def test_a_trainers_link_may_be_the_slower_one() -> None:
    """One trainer gets what eight servers send, each over a link of its own."""
    pool = ServerPool(count=8, memory_bytes=1, link=LINK, tables=("a",))
    traffic = ServerTraffic(id_bytes=np.ones(8), columns=np.ones(8))
    topology = builders.topology(1, device=CPU)

    found = exchanges(traffic, pool, topology, global_batch_size=1_000_000, costs=COSTS)

    sent_ms = 1e3 * 8 * 4e6 / topology.inter_node.bandwidth_bytes_per_second
    assert found.pooled_ms == pytest.approx(max(0.1 + sent_ms, 0.1 + 0.4))


def test_pooled_embeddings_are_copied_to_gpus_and_gradients_from_them() -> None:
    """Two GPUs get 4 MB each, over a link of 40 GB/s of which 81 % is usable; ids stay in host memory."""
    traffic = ServerTraffic(id_bytes=np.array([1e6]), columns=np.array([100.0]))
    pool = ServerPool(count=1, memory_bytes=1, link=LINK, tables=("a",))
    memory = builders.host_memory(gb_per_second=40)
    on_cpus, on_gpus = (
        exchanges(
            traffic,
            pool,
            builders.topology(2, device=device, host_memory=memory),
            global_batch_size=20_000,
            costs=COSTS,
        )
        for device in (CPU, builders.device_type())
    )

    link_ms, pages_ms = 1e3 * 4e6 / (0.81 * 40e9), 1e3 * 4e6 * 1e-10
    assert on_gpus.ids_ms == on_cpus.ids_ms
    assert on_gpus.gradients_ms - on_cpus.gradients_ms == pytest.approx(link_ms)
    assert on_gpus.pooled_ms - on_cpus.pooled_ms == pytest.approx(link_ms + pages_ms)


def test_a_link_to_host_memory_that_is_not_known_is_the_slowest() -> None:
    """No plan promises more than such GPUs have."""
    traffic = ServerTraffic(id_bytes=np.array([1e6]), columns=np.array([100.0]))
    pool = ServerPool(count=1, memory_bytes=1, link=LINK, tables=("a",))
    times = {
        name: exchanges(
            traffic,
            pool,
            builders.topology(2, device=builders.device_type(name=name)),
            global_batch_size=20_000,
            costs=COSTS,
        ).gradients_ms
        for name in ("of-your-own", *load_presets())
    }

    assert times["of-your-own"] == max(times.values()) > min(times.values())


def test_servers_next_to_several_nodes_have_the_link_between_them() -> None:
    """Unless their own is known."""
    traffic = ServerTraffic(id_bytes=np.array([1e6]), columns=np.array([64.0]))
    topology = builders.topology(2, num_nodes=2)
    unset, given = (
        exchanges(
            traffic,
            ServerPool(count=1, memory_bytes=1, link=link, tables=("a",)),
            topology,
            global_batch_size=1000,
            costs=COSTS,
        )
        for link in (None, topology.inter_node)
    )

    assert unset == given


def test_servers_on_the_trainers_node_exchange_as_its_ranks_do() -> None:
    """One trainer and one server are two ranks, of which the server sends all of its columns to the other."""
    pool = ServerPool(count=1, memory_bytes=1, tables=("a",))
    few, many = (
        exchanges(
            ServerTraffic(id_bytes=np.array([8e4]), columns=np.array([columns])),
            pool,
            builders.topology(1, device=CPU),
            global_batch_size=10_000,
            costs=COSTS,
        )
        for columns in (64.0, 6400.0)
    )

    assert few.pooled_ms < many.pooled_ms
    assert few.ids_ms == many.ids_ms > 0


def test_lookups_are_shared_by_a_process_s_cores() -> None:
    """Twice the cores take half the time, and wider rows more."""
    one, two = (lookup_ms(np.array([1e6]), np.array([256e6]), cores=cores) for cores in (1, 2))
    wide = lookup_ms(np.array([1e6]), np.array([512e6]), cores=1)

    assert one == pytest.approx(2 * two)
    assert (wide > one).all()


def test_lookahead_on_cores_of_its_own_hides_the_shorter_time() -> None:
    """A GPU's trainer exchanges next to the step, which takes the longer of both."""
    assert hidden_ahead_ms(3.0, 10.0) == hidden_ahead_ms(10.0, 3.0) == 3.0


def test_work_of_exchanges_adds_to_a_step_on_the_same_core() -> None:
    """A step of 20 ms with 2 ms of it takes 22; the rest of the servers' 9 ms is hidden."""
    assert hidden_ahead_ms(9.0, 20.0, work_ms=2.0) == pytest.approx(9.0 - 2.0)


def test_a_step_shorter_than_a_turn_hides_nothing_on_the_same_core() -> None:
    """The exchange waits until it has ended; behind a long step of servers it waits for one turn."""
    assert hidden_ahead_ms(9.0, TURN_MS / 2, work_ms=1.0) == 0.0
    assert hidden_ahead_ms(30.0, 10.0, work_ms=1.0) == pytest.approx(10.0 - TURN_MS)


def test_exchanges_take_a_trainer_s_core_by_their_bytes_on_cpus_alone() -> None:
    """Ids travel once, pooled embeddings and gradients as many bytes each, shared by two trainers."""
    collectives = tuple(
        CollectiveCost(kind=kind, family=None, forward_ms=0.0, backward_ms=0.0, num_bytes=num_bytes)
        for kind, num_bytes in ((CollectiveKind.INDICES, 1_000_000), (CollectiveKind.ALL_TO_ALL, 3_000_000))
    )
    one, two = (
        PlanCost(
            total_ms=1.0, source="simulated:test", devices=(builders.device_cost(collectives=collectives),) * count
        )
        for count in (1, 2)
    )
    topology = builders.topology(2, device=CPU)
    work_ms = [exchange_work_ms(each, topology, COSTS) for each in (one, two)]

    of_bytes_ms = 1e3 * 7e6 / 2 / topology.intra_node.bandwidth_bytes_per_second
    assert work_ms[1] - work_ms[0] == pytest.approx(of_bytes_ms)
    assert work_ms[0] > of_bytes_ms
    assert exchange_work_ms(one, builders.topology(2), COSTS) == 0.0
