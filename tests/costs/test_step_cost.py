"""The objective: levels of devices in, milliseconds of a step out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import ComputePeak, MemorySettings, Pipeline, PlanRequest
from neuroshard_api.documents.tables import DataType, Pooling
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.exchanges import index_bytes, index_exchange, least_index_bytes, pooled_exchange
from neuroshard_costs.shards import FloatArray
from neuroshard_costs.step_cost import NUM_LEVELS, Collective, StepCost, exchange_of_indices
from neuroshard_planner.workload_store import read_workload
from support.builders import device_type, request, table, tables, topology
from support.depth import generated
from support.planner.exact_costs import ExactCosts
from support.planner.searches import placed, problem_of


def columns(*numbers: float) -> FloatArray:
    """Return the traffic of placements whose widest device has these columns, and no indices."""
    traffic = np.zeros((len(numbers), len(Collective)))
    traffic[:, Collective.POOLED_EMBEDDINGS] = numbers
    return traffic


def test_transfer_never_falls_with_the_largest_dimension_sum() -> None:
    """The knots are made monotone, and the least time is that of even sums."""
    asked = request(*tables(5, embedding_dim=128))
    step_cost = StepCost(asked, ExactCosts(asked.topology.device))

    times = step_cost.pooled_ms(columns(*range(160, 640)))

    assert (np.diff(times) >= 0).all()
    assert step_cost.pooled_ms(step_cost.least_traffic) == times[0]
    ((collective, both),) = step_cost.directions_ms(columns(300.0)[0]).items()
    assert collective is Collective.POOLED_EMBEDDINGS
    assert sum(both) == pytest.approx(float(times[140]))


def test_interpolated_transfers_are_close_to_the_model() -> None:
    """A relative error below a thousandth between the knots."""
    asked = request(*tables(26, embedding_dim=128), num_devices=8)
    costs = ExactCosts(asked.topology.device)
    sums = np.linspace(416.0, 3328.0, 57)

    exact = costs.transfer_ms(sums, pooled_exchange(asked)).sum(axis=1)

    assert np.allclose(StepCost(asked, costs).pooled_ms(columns(*sums)), exact, rtol=1e-3)


def test_one_device_transfers_nothing() -> None:
    """There is no all-to-all to wait for."""
    step_cost = problem_of(request(num_devices=1)).step_cost

    assert step_cost.pooled_ms(step_cost.least_traffic) == 0.0
    assert step_cost.pooled_ms(columns(256.0)).tolist() == [0.0]


def step_cost_of(asked: PlanRequest) -> StepCost:
    """Return the objective of a request under exact costs."""
    return StepCost(asked, ExactCosts(asked.topology.device))


def peaks(**levels: float) -> FloatArray:
    """Return the peaks of a placement; those not given are one millisecond and even traffic of 26 tables of 128."""
    defaults = {"forward": 1.0, "backward": 1.0, "columns": 416.0, "index_bytes": 26 * 8192 * 12.0}
    used = list({**defaults, **levels}.values())
    return np.array([*used, *[0.0] * (NUM_LEVELS - len(used))])


def wide(**fields: Any) -> PlanRequest:
    """Return a request for 26 tables of 128 columns on eight devices."""
    return request(*tables(26, embedding_dim=128), num_devices=8, **fields)


def test_the_price_of_traffic_is_its_share_of_the_step() -> None:
    """What a twentieth more of a peak adds, per unit; compute counts whole."""
    step_cost = step_cost_of(wide())
    before = peaks(columns=800.0)

    prices = step_cost.prices(before)

    added = step_cost.total_ms(peaks(columns=840.0)) - step_cost.total_ms(before)
    assert prices[:2].tolist() == [1.0, 1.0]
    assert prices[2] * 40.0 == pytest.approx(float(added))


def test_without_a_pipeline_the_step_waits_for_the_indices() -> None:
    """Their exchange is added to compute and to the exchange of pooled embeddings."""
    step_cost = step_cost_of(wide(pipeline=Pipeline.NONE))
    few, many = peaks(), peaks(index_bytes=2e7)

    assert 0 < step_cost.input_ms(few) < step_cost.input_ms(many)
    total = 2.0 + step_cost.input_ms(many) + step_cost.pooled_ms(many[2:])
    assert step_cost.total_ms(many) == pytest.approx(float(total))


def test_a_pipeline_exposes_what_compute_cannot_hide_of_the_indices() -> None:
    """Nothing while the exchange is shorter than the compute, the rest when it is longer."""
    hidden, exposed = step_cost_of(wide()), step_cost_of(wide(pipeline=Pipeline.NONE))
    many = peaks(forward=1e-3, backward=1e-3, index_bytes=2e7)

    assert hidden.input_ms(peaks()) == 0.0
    assert hidden.input_ms(many) > 0.0
    assert hidden.input_ms(many) == pytest.approx(float(exposed.input_ms(many)) - 2e-3)


def test_on_cpus_a_pipeline_hides_no_indices() -> None:
    """The core that computes sends them as well."""
    cores = topology(8, device=device_type(name="cpu-test"))
    piped, alone = (step_cost_of(wide(topology=cores, pipeline=each)) for each in (Pipeline.SPARSE_DIST, Pipeline.NONE))

    assert piped.input_ms(peaks()) == alone.input_ms(peaks()) > 0.0


def test_the_indices_of_even_devices_are_a_bound() -> None:
    """No placement receives less on its fullest device than all indices over all devices."""
    problem = problem_of(request(table("a", pooling_factor=10.0), table("b"), num_devices=2))

    together = placed(problem, (0, 64, 0), (1, 64, 0))
    apart = placed(problem, (0, 64, 0), (1, 64, 1))
    split = placed(problem, (0, 32, 0), (0, 32, 1), (1, 64, 1))

    least = problem.step_cost.least_traffic[1]
    fullest = [problem.traffic(each.kinds, each.devices, 2)[:, 1].max() for each in (together, apart, split)]
    samples = 2 * 8192.0
    assert fullest == [samples * count for count in (96.0, 84.0, 96.0)]
    assert least == samples * 96.0 / 2


def test_an_index_has_eight_bytes_and_a_length_four() -> None:
    """A KeyedJaggedTensor's values are 64-bit integers, its lengths 32-bit ones."""
    assert index_bytes(np.array([10.0]), np.array([4.0])).tolist() == [96.0]


@pytest.mark.parametrize("pipeline", list(Pipeline))
@pytest.mark.parametrize("compute_peak", list(ComputePeak))
@generated(25, 100)
@given(data=st.data())
def test_the_cost_never_falls_when_a_peak_rises(
    pipeline: Pipeline, compute_peak: ComputePeak, data: st.DataObject
) -> None:
    """All that search and bound assume of the objective, under every assumption on the trainer."""
    members = (*tables(3), table("rows", pooling=Pooling.NONE, pooling_factor=5.0))
    step_cost = step_cost_of(request(*members, pipeline=pipeline, compute_peak=compute_peak))
    most_of = (400.0, 1e8, 400.0, 400.0, 1e9, 400.0)
    times, traffic = [st.floats(0.0, 100.0)] * 2, [st.floats(0.0, most) for most in most_of]
    scales = [*times, *traffic]
    before = np.array([data.draw(scale) for scale in scales])
    level, share = data.draw(st.integers(0, NUM_LEVELS - 1)), data.draw(st.floats(1.0, 3.0))
    after = before.copy()
    after[level] *= share

    assert step_cost.total_ms(after) >= step_cost.total_ms(before) - 1e-12


def test_joint_passes_count_the_slowest_sum() -> None:
    """Where one device is slow forward and another backward, no device is slow in both."""
    times = np.array([[3.0, 1.0], [1.0, 3.0]])
    separate, joint = step_cost_of(wide()), step_cost_of(wide(compute_peak=ComputePeak.JOINT))

    assert separate.passes(times).max(axis=0).sum() == 6.0
    assert joint.passes(times).max(axis=0).sum() == 4.0


def test_the_type_on_the_wire_decides_the_exchange() -> None:
    """Half the bytes take less time; where codecs write them and not the kernels, that time is added."""
    whole = step_cost_of(wide())
    halved = step_cost_of(wide(wire=WireTypes(forward=WireType.FP16, backward=WireType.FP16)))
    narrow = step_cost_of(wide(memory=MemorySettings(output_data_type=DataType.FP16)))

    traffic = peaks()[2:]
    assert narrow.pooled_ms(traffic) < 0.7 * whole.pooled_ms(traffic)
    assert halved.pooled_ms(traffic) > 1.1 * narrow.pooled_ms(traffic)


def test_a_table_of_several_features_sends_a_vector_for_each() -> None:
    """Ten features of a table are as many pooled columns as ten tables, and a bag for each sample and feature."""
    names = tuple(f"f{index}" for index in range(10))
    problem = problem_of(request(table("a", feature_names=names, pooling_factor=10.0), table("b")))

    traffic = problem.kinds.traffic[problem.whole]

    assert traffic[:, 0].tolist() == [640.0, 64.0]
    assert traffic[:, 1].tolist() == [4 * 8192 * 120.0, 4 * 8192 * 12.0]


@pytest.mark.parametrize("device", ["a100-80gb", "h100-80gb", "h200-141gb"])
@pytest.mark.parametrize(("batch_size", "limit"), [(64, 1e-2), (256, 2e-3), (4096, 2e-3)])
def test_the_exchange_of_indices_keeps_near_the_networks(device: str, batch_size: int, limit: float) -> None:
    """Between the knots its time is the bundled networks', to a percent where batches are tiny, else to 0.2 %."""
    costs = bundled_bundle(device)
    for num_nodes, devices_per_node in ((1, 2), (2, 2), (1, 4), (16, 8)):
        asked = PlanRequest(
            tables=read_workload("criteo-kaggle"),
            topology=preset(device).topology(num_nodes=num_nodes, devices_per_node=devices_per_node),
            batch_size_per_device=batch_size,
        )
        total = least_index_bytes(asked)
        num_bytes = np.geomspace(total / asked.topology.num_devices, total, 200)
        exchanges = [index_exchange(asked, each) for each in num_bytes.tolist()]
        own_ms = np.array([costs.transfer_ms(np.array([each.mean_dim_sum]), each)[0, 0] for each in exchanges])

        np.testing.assert_allclose(exchange_of_indices(asked, costs).total_ms(num_bytes), own_ms, rtol=limit)
