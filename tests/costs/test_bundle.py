"""Specification of bundle directories."""

import hashlib
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.bundle import BundleManifest, Calibration, Launch, Range
from neuroshard_api.documents.request import MemorySettings, Pipeline
from neuroshard_api.documents.tables import DataType, Optimizer, Table
from neuroshard_costs.bundle import (
    MANIFEST_FILE,
    WEIGHTS_FILE,
    CostBundle,
    bundled_bundle,
    bundled_names,
    load_bundle,
    part_of,
    save_bundle,
)
from neuroshard_costs.errors import BundleDamagedError, BundleError, BundleNotFoundError, BundleVersionError
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.features import NUM_CALL_COUNTS
from neuroshard_costs.networks import CommunicationNetwork, ComputeNetwork
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import FloatArray
from safetensors.numpy import save as save_safetensors
from support.builders import request, table, table_set, tables, topology
from support.planner.bundle_builders import manifest, saved_bundle, weights


def random_bundle(seed: int) -> CostBundle:
    """Return a bundle of random weights whose calls cost host and device time."""
    parts = weights(seed=seed)
    return CostBundle(
        manifest=manifest(launch=Launch(device_ms=(0.1, 0.2), host_ms=(3.0, 4.0))),
        compute=ComputeNetwork.from_weights(part_of(parts, "compute")),
        forward_communication=CommunicationNetwork.from_weights(part_of(parts, "forward_communication")),
        backward_communication=CommunicationNetwork.from_weights(part_of(parts, "backward_communication")),
    )


def changed_manifest(path: Path, **fields: Any) -> None:
    """Overwrite fields of a bundle's manifest."""
    file = path / MANIFEST_FILE
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | fields), encoding="utf-8")


def test_a_saved_bundle_loads_as_it_was(tmp_path: Path) -> None:
    """The manifest comes back equal, with the hash of the weights."""
    saved = save_bundle(tmp_path / "b", manifest(), weights())

    assert load_bundle(tmp_path / "b").manifest == saved
    assert saved.weights_sha256 == hashlib.sha256((tmp_path / "b" / WEIGHTS_FILE).read_bytes()).hexdigest()


def test_equal_contents_give_equal_bytes(tmp_path: Path) -> None:
    """Neither the order of the arrays nor the time enters the files."""
    save_bundle(tmp_path / "a", manifest(), weights())
    save_bundle(tmp_path / "b", manifest(), dict(reversed(weights().items())))

    for name in (MANIFEST_FILE, WEIGHTS_FILE):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_saving_replaces_the_whole_directory(tmp_path: Path) -> None:
    """Nothing of an earlier bundle stays, and no scratch remains next to it."""
    save_bundle(tmp_path / "b", manifest(), weights(), extras={"hold_out.png": b"old"})
    save_bundle(tmp_path / "b", manifest(), weights(seed=1))

    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [MANIFEST_FILE, WEIGHTS_FILE]
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_directory_without_a_manifest_is_no_bundle(tmp_path: Path) -> None:
    """The error says which file is missing and where bundles come from."""
    with pytest.raises(BundleNotFoundError, match=r"manifest\.json is missing; .*neuroshard pretrain"):
        load_bundle(tmp_path)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    """A manifest alone is not enough."""
    (saved_bundle(tmp_path / "b") / WEIGHTS_FILE).unlink()

    with pytest.raises(BundleNotFoundError, match=r"weights\.safetensors: does not exist"):
        load_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema_version": "bundle-manifest/v2"}, "schema_version: is 'bundle-manifest/v2'"),
        (
            {"feature_version": 1},
            "feature_version is 1, this release computes features of version 2; .*`neuroshard pretrain`",
        ),
    ],
)
def test_a_bundle_of_another_version_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    """Schema and features must be this release's."""
    changed_manifest(saved_bundle(tmp_path / "b"), **fields)

    with pytest.raises(BundleVersionError, match=message):
        load_bundle(tmp_path / "b")


def test_features_of_other_names_are_refused(tmp_path: Path) -> None:
    """A manifest whose networks read other inputs belongs to another release."""
    path = saved_bundle(tmp_path / "b")
    networks = json.loads((path / MANIFEST_FILE).read_text(encoding="utf-8"))["networks"]
    networks[0]["features"][0] = "rows"
    changed_manifest(path, networks=networks)

    with pytest.raises(BundleVersionError, match="'compute' with 62 features"):
        load_bundle(path)


def test_a_broken_manifest_is_refused(tmp_path: Path) -> None:
    """Truncated JSON is damage, not another version."""
    file = saved_bundle(tmp_path / "b") / MANIFEST_FILE
    file.write_text(file.read_text(encoding="utf-8")[:200], encoding="utf-8")

    with pytest.raises(BundleDamagedError, match="not complete JSON") as caught:
        load_bundle(tmp_path / "b")

    assert str(caught.value).count("; hint: ") == 1


@pytest.mark.parametrize("damage", [lambda data: data[:-10], lambda data: data + b"?", lambda _: b""])
def test_changed_weights_are_noticed(tmp_path: Path, damage: Any) -> None:
    """The file must have the manifest's hash."""
    file = saved_bundle(tmp_path / "b") / WEIGHTS_FILE
    file.write_bytes(damage(file.read_bytes()))

    with pytest.raises(BundleDamagedError, match="the file was changed or cut off"):
        load_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff" * 100, save_safetensors({"a": np.zeros(3, dtype=np.float32)})[:-4]],
    ids=["empty", "garbage", "cut"],
)
def test_weights_that_are_no_safetensors_are_refused(tmp_path: Path, data: bytes) -> None:
    """A hash that fits a broken file does not help."""
    path = saved_bundle(tmp_path / "b")
    (path / WEIGHTS_FILE).write_bytes(data)
    changed_manifest(path, weights_sha256=hashlib.sha256(data).hexdigest())

    with pytest.raises(BundleDamagedError, match="not a whole safetensors file"):
        load_bundle(path)


def test_weights_of_other_shapes_are_refused(tmp_path: Path) -> None:
    """The array and both shapes are named."""
    wrong = weights() | {"compute.head_out": np.ones((9, 2), dtype=np.float32)}
    save_bundle(tmp_path / "b", manifest(), wrong)

    with pytest.raises(BundleDamagedError, match=r"'head_in' as float32\[5, 8\], expected float32\[5, 20\]"):
        load_bundle(tmp_path / "b")


def test_costs_add_up_over_representations(tmp_path: Path) -> None:
    """One sum of demands gives one pair of times; the order of the shards does not matter."""
    bundle = load_bundle(saved_bundle(tmp_path / "b"))
    shards = shard_arrays(
        table_set(table("a"), table("b", embedding_dim=8)), global_batch_size=4096, optimizer=Optimizer.SGD
    )
    demands = bundle.represent(shards)

    times, other_order = (
        bundle.compute_ms(each.sum(axis=0), pipeline=Pipeline.NONE) for each in (demands, demands[::-1])
    )

    assert times.shape == (2,)
    np.testing.assert_allclose(times, other_order, rtol=1e-6)


def represented(bundle: CostBundle, *members: Table) -> FloatArray:
    """Return the sum of the tables' representations."""
    shards = shard_arrays(table_set(*members), global_batch_size=4096, optimizer=Optimizer.SGD)
    total: FloatArray = bundle.represent(shards).sum(axis=0)
    return total


def test_each_data_type_on_a_device_is_a_call(tmp_path: Path) -> None:
    """The manifest's device time is added for every call but the first, which the network's time includes."""
    launch = Launch(device_ms=(0.5, 0.75))
    save_bundle(tmp_path / "b", manifest(launch=launch), weights())
    bundle = load_bundle(tmp_path / "b")
    one = represented(bundle, table("a"), table("b"))
    two = one.copy()
    two[-NUM_CALL_COUNTS : -NUM_CALL_COUNTS + 2] = 1

    first, second = bundle.compute_ms(np.stack([one, two]), pipeline=Pipeline.SPARSE_DIST)

    assert second - first == pytest.approx([0.5, 0.75], rel=1e-4)


def test_the_host_counts_where_no_pipeline_lets_it_run_ahead(tmp_path: Path) -> None:
    """Its launch of a call is a floor below which no step goes without a pipeline."""
    launch = Launch(host_ms=(1e4, 2e4))
    save_bundle(tmp_path / "b", manifest(launch=launch), weights())
    bundle = load_bundle(tmp_path / "b")
    sums = represented(bundle, table("a"))

    alone, queued = (bundle.compute_ms(sums, pipeline=pipeline) for pipeline in (Pipeline.NONE, Pipeline.SPARSE_DIST))

    assert alone == pytest.approx([1e4, 2e4], rel=1e-2)
    assert (queued < 1e3).all()


def test_an_empty_device_costs_nothing(tmp_path: Path) -> None:
    """Neither time nor launch, also after rounding has left a rest of the shards that were taken away."""
    save_bundle(tmp_path / "b", manifest(launch=Launch(host_ms=(1.0, 1.0))), weights())
    bundle = load_bundle(tmp_path / "b")
    rest = np.zeros(5 + NUM_CALL_COUNTS)
    rest[:5] = 1e-7

    assert bundle.compute_ms(rest, pipeline=Pipeline.NONE).tolist() == [0.0, 0.0]


MEMBERS = st.lists(
    st.tuples(st.sampled_from((DataType.FP32, DataType.FP16)), st.integers(1, 32)), min_size=1, max_size=6
)
"""Data types of tables, and their columns over 4."""


def least_and_found(bundle: CostBundle, members: list[tuple[DataType, int]]) -> tuple[FloatArray, FloatArray]:
    """Return the sum of the least demands of tables, and of their representations."""
    each = np.array(
        [
            represented(bundle, table(f"t{index}", embedding_dim=4 * columns, data_type=data_type))
            for index, (data_type, columns) in enumerate(members)
        ]
    )
    return bundle.least_demands(each).sum(axis=0), each.sum(axis=0)


@given(members=MEMBERS, pipeline=st.sampled_from(Pipeline), seed=st.integers(0, 5))
def test_no_device_is_faster_than_the_least_time_of_its_shards(
    members: list[tuple[DataType, int]], pipeline: Pipeline, seed: int
) -> None:
    """Whatever the calls, and whichever shard is the widest, so that the bound of a plan may leave both out."""
    bundle = random_bundle(seed)
    least, sums = least_and_found(bundle, members)

    found = bundle.compute_ms(sums, pipeline=pipeline)

    assert (bundle.least_ms(least, pipeline=pipeline) <= found * (1 + 1e-6)).all()


def test_shards_of_one_width_demand_no_less_than_they_take() -> None:
    """Where no shard is wider than another, the least time of one call is its time."""
    bundle = random_bundle(0)
    for columns in (4, 8, 9, 16, 17, 32):
        least, sums = least_and_found(bundle, [(DataType.FP32, columns)] * 3)

        found = bundle.compute_ms(sums, pipeline=Pipeline.SPARSE_DIST)

        assert bundle.least_ms(least, pipeline=Pipeline.SPARSE_DIST) == pytest.approx(found, rel=1e-12)


@given(members=MEMBERS, seed=st.integers(0, 5), share=st.floats(0.01, 100.0), pipeline=st.sampled_from(Pipeline))
def test_no_device_is_below_a_tangent(
    members: list[tuple[DataType, int]], seed: int, share: float, pipeline: Pipeline
) -> None:
    """At whatever sums it is taken, of devices with as many calls or more."""
    bundle = random_bundle(seed)
    least, sums = least_and_found(bundle, members)
    elsewhere = share * least

    found = bundle.tangent_ms(elsewhere, num_calls=len({data_type for data_type, _ in members}))

    assert found is not None
    times, slopes = found
    assert (times + slopes @ (least - elsewhere) <= bundle.compute_ms(sums, pipeline=pipeline) * (1 + 1e-5)).all()
    assert (slopes >= 0).all()


@given(types=st.lists(st.sampled_from((DataType.FP32, DataType.FP16)), min_size=2, max_size=6), seed=st.integers(0, 5))
def test_another_shard_never_makes_a_device_faster(types: list[DataType], seed: int) -> None:
    """Of another type it adds a call, of another width lanes; both only add."""
    bundle = random_bundle(seed)
    members = [
        table(f"t{index}", embedding_dim=24 * (index + 1), data_type=data_type) for index, data_type in enumerate(types)
    ]

    times = [
        bundle.compute_ms(represented(bundle, *members[: count + 1]), pipeline=Pipeline.NONE)
        for count in range(len(members))
    ]

    assert all((less <= more * (1 + 1e-6)).all() for less, more in pairwise(times))


def test_a_calibration_rescales_all_times(tmp_path: Path) -> None:
    """Each network's time becomes factor * time ** exponent, with its own numbers."""
    plain = load_bundle(saved_bundle(tmp_path / "plain"))
    calibration = Calibration(
        source="measured:Other",
        num_records=8,
        compute_scale=(0.5, 3.0),
        forward_communication_scale=(1.0, 2.0),
        backward_communication_scale=(2.0, 1.0),
        mape_before=0.5,
        mape_after=0.1,
    )
    save_bundle(tmp_path / "b", manifest().model_copy(update={"calibration": calibration}), weights())
    bundle = load_bundle(tmp_path / "b")
    sums = np.ones((4, 5 + NUM_CALL_COUNTS))
    before, after = (
        each.transfer_ms(
            np.array([64.0, 100.0]),
            Exchange(topology=topology(), batch_size_per_device=512, mean_dim_sum=64.0, bytes_per_element=4),
        )
        for each in (plain, bundle)
    )

    plain_ms, found_ms = (each.compute_ms(sums, pipeline=Pipeline.SPARSE_DIST) for each in (plain, bundle))
    np.testing.assert_allclose(found_ms, 3 * np.sqrt(plain_ms), rtol=1e-6)
    np.testing.assert_allclose(after, np.stack((2 * before[:, 0], before[:, 1] ** 2), axis=1))


def test_exchanges_of_several_means_cost_what_each_does_alone() -> None:
    """To the last bit, so that how many are priced together decides nothing."""
    bundle, means = bundled_bundle("h100-80gb"), np.array([3.0, 64.0, 1000.0])

    def times_ms(mean: float | FloatArray) -> FloatArray:
        several = Exchange(topology=topology(8), batch_size_per_device=512, mean_dim_sum=mean, bytes_per_element=4)
        return bundle.transfer_ms(np.asarray(mean) * 1.5, several)

    assert times_ms(means).tolist() == [times_ms(mean).tolist() for mean in means.tolist()]


def test_what_was_not_trained_for_is_named(tmp_path: Path) -> None:
    """Each warning names the field; of several tables it names the one furthest outside."""
    validity = {
        "num_embeddings": Range(low=1, high=1e6),
        "embedding_dim": Range(low=4, high=128),
        "global_batch_size": Range(low=1, high=1e4),
        "num_devices": Range(low=2, high=2),
    }
    bundle = load_bundle(saved_bundle(tmp_path / "b", validity=validity))
    asked = request(table("small"), table("large", num_embeddings=2 * 10**6), table("largest", num_embeddings=10**9))
    warnings = bundle.validity_warnings(asked)

    assert len(warnings) == 3
    assert warnings[0].startswith("tables[largest].num_embeddings: is 1e+09, outside 1 to 1e+06")
    assert "1 more table" in warnings[0]
    assert warnings[1].startswith("global_batch_size: is 32,768")
    assert warnings[2].startswith("topology.num_devices: is 4")


def test_a_network_level_that_was_not_measured_is_named(tmp_path: Path) -> None:
    """A profile of one node covers no exchange between nodes, however well it covers the link inside."""
    validity = {"intra_node.bandwidth_bytes_per_second": Range(low=1, high=1e15)}
    bundle = load_bundle(saved_bundle(tmp_path / "b", validity=validity))

    assert bundle.validity_warnings(request(topology=topology(4))) == ()
    (warning,) = bundle.validity_warnings(request(topology=topology(4, num_nodes=2)))
    assert warning.startswith("topology.inter_node: no exchange over it was among those")


def test_an_exchange_larger_than_the_measured_ones_is_named(tmp_path: Path) -> None:
    """By the bytes that the mean device sends, since columns and batch alone can each be within their ranges."""
    bundle = load_bundle(saved_bundle(tmp_path / "b", validity={"exchange_bytes": Range(low=1, high=1e5)}))
    asked = request(table(embedding_dim=64), topology=topology(4), batch_size_per_device=1024)

    (warning,) = bundle.validity_warnings(asked)
    assert warning.startswith("pooled_embeddings.exchange_bytes: is 262,144, outside 1 to 100,000")


def test_exchanges_are_judged_as_they_are_priced(tmp_path: Path) -> None:
    """A vector for each feature in the type on the wire; indices as the FP32 columns that stand for their bytes."""
    validity = {"mean_dim_sum": Range(low=4, high=256), "bytes_per_element": Range(low=4, high=4)}
    bundle = load_bundle(saved_bundle(tmp_path / "b", validity=validity))
    shared = table(
        "shared", embedding_dim=128, pooling_factor=20.0, feature_names=tuple(f"f{index}" for index in range(10))
    )
    halved = MemorySettings(output_data_type=DataType.FP16)

    assert bundle.validity_warnings(request(*tables(8), topology=topology(4))) == ()
    columns, wire = bundle.validity_warnings(request(shared, topology=topology(4), memory=halved))
    assert columns.startswith("pooled_embeddings.mean_dim_sum: is 320, outside 4 to 256")
    assert wire.startswith("wire_bytes_per_element: is 2, outside 4 to 4")
    (indices,) = bundle.validity_warnings(request(*tables(5), topology=topology(4)))
    assert indices.startswith("indices.mean_dim_sum: is 3.75, outside 4 to 256")


def test_another_device_is_named(tmp_path: Path) -> None:
    """Cost models price one product; a plan that uses them for another one says so."""
    bundle = load_bundle(saved_bundle(tmp_path / "b"))
    own = bundle.manifest.device
    other = own.model_copy(update={"product": "Another Device"})

    assert bundle.device_problem(own) is None
    problem = bundle.device_problem(other)
    assert problem is not None
    assert "is 'Another Device'" in problem
    assert bundle.validity_warnings(request(topology=topology(4, device=other)))[0].startswith(problem)


def test_a_request_within_the_ranges_gives_no_warning(tmp_path: Path) -> None:
    """Quantities without a stated range are not judged."""
    bundle = load_bundle(saved_bundle(tmp_path / "b", validity={"num_embeddings": Range(low=1, high=1e6)}))

    assert bundle.validity_warnings(request()) == ()


@pytest.mark.parametrize("device", bundled_names())
def test_a_bundled_bundle_states_that_it_is_simulated(device: str) -> None:
    """What comes with the planner loads, is accurate enough, and never passes for a measurement."""
    stated = bundled_bundle(device).manifest

    assert stated.source == f"simulated:{stated.device.product}"
    assert stated.device.name == device
    assert all(network.hold_out.mape <= 0.02 for network in stated.networks)
    assert all(network.hold_out.kendall_tau >= 0.97 for network in stated.networks)


def test_the_bundled_devices_are_these() -> None:
    """Three presets have bundles; for others the error lists them."""
    assert bundled_names() == ("a100-80gb", "h100-80gb", "h200-141gb")
    with pytest.raises(BundleError, match="'tpu', only for: a100-80gb, h100-80gb, h200-141gb"):
        bundled_bundle("tpu")


def test_a_manifest_reads_back(tmp_path: Path) -> None:
    """The file is an ordinary document of the schema."""
    path = saved_bundle(tmp_path / "b")

    assert BundleManifest.read(path / MANIFEST_FILE).name == "random"
