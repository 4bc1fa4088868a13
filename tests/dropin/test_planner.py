import logging
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dropin_models import META, TwoTowers, batch, config
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.plan import Plan
from neuroshard_api.presets import preset
from neuroshard_api.request import PlanRequest
from neuroshard_api.tables import Optimizer
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.shards import FloatArray, ShardArrays
from neuroshard_planner import planning
from neuroshard_planner.own_costs import OwnCosts
from neuroshard_torchrec import DropInError, NeuroShardPlanner
from neuroshard_torchrec.devices import planned_devices
from torch import nn
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.modules.embedding_configs import DataType as TorchRecType
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.mc_embedding_modules import ManagedCollisionEmbeddingBagCollection
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.optim import RowWiseAdagrad


def planner(**given: Any) -> NeuroShardPlanner:
    """Return a planner for four simulated H100 in one node."""
    topology = Topology(world_size=4, compute_device="cuda", local_world_size=4, hbm_cap=80 * 2**30)
    return NeuroShardPlanner(**{"topology": topology, "device_type": "h100-80gb", "batch_size": 1024, **given})


def planned(found: NeuroShardPlanner) -> Plan:
    """Return the plan that was made last."""
    assert found.last_plan is not None
    return found.last_plan


def test_one_line_takes_the_place_of_torchrecs_planner() -> None:
    """Every table of every collection has its place, by path and name, as DistributedModelParallel reads it."""
    found = planner().plan(TwoTowers(), [EmbeddingBagCollectionSharder()]).plan

    assert {path: sorted(tables) for path, tables in found.items()} == {
        "users": ["country", "id"],
        "items": ["id", "tags"],
    }
    assert {each.compute_kernel for tables in found.values() for each in tables.values()} == {"fused"}


def test_equal_modules_have_equal_plans() -> None:
    """Byte for byte."""
    first, second = planner(), planner()
    first.plan(TwoTowers())
    second.plan(TwoTowers())

    assert planned(first).to_json() == planned(second).to_json()


def test_processes_and_memory_are_those_of_torchrecs_topology() -> None:
    """Links and speed are the preset's."""
    topology = Topology(world_size=8, compute_device="cuda", local_world_size=4, hbm_cap=20 * 2**30)
    made = planner(topology=topology)
    made.plan(TwoTowers())
    request = planned(made).request

    assert (request.topology.num_nodes, request.topology.devices_per_node) == (2, 4)
    assert request.topology.intra_node == preset("h100-80gb").intra_node
    assert request.constraints.max_memory_bytes_per_device == 20 * 2**30


def test_a_topology_of_ours_is_taken_as_it_is() -> None:
    """So any device that has cost models can be planned for."""
    topology = preset("a100-80gb").topology(num_nodes=1, devices_per_node=2)
    made = planner(topology=topology, device_type="a100-80gb")
    made.plan(TwoTowers())

    assert planned(made).request.topology == topology


@pytest.mark.parametrize(
    ("fused", "optimizer"),
    [
        ({}, Optimizer.SGD),
        ({"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD}, Optimizer.ROWWISE_ADAGRAD),
        ({"optimizer": EmbOptimType.ADAM}, Optimizer.ADAM),
    ],
)
def test_the_optimizer_is_that_of_the_sharder(fused: dict[str, Any], optimizer: Optimizer) -> None:
    """Its state takes memory; FBGEMM's default has none."""
    made = planner()
    made.plan(TwoTowers(), [EmbeddingBagCollectionSharder(fused_params=fused)])

    assert planned(made).request.optimizer is optimizer


def test_an_optimizer_in_the_backward_pass_counts_before_the_sharders() -> None:
    """As TorchRec itself has it."""
    module, made = TwoTowers(), planner()
    for collection in (module.users, module.items):
        _apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), {"lr": 0.1})
    made.plan(module)

    assert planned(made).request.optimizer is Optimizer.ROWWISE_ADAGRAD


def test_an_optimizer_whose_state_is_unknown_is_named() -> None:
    """Unless the caller names the nearest one."""
    sharders = [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.LAMB})]

    with pytest.raises(DropInError, match=r"trained by lamb.*planner's `optimizer`"):
        planner().plan(TwoTowers(), sharders)
    made = planner(optimizer="adam")
    made.plan(TwoTowers(), sharders)
    assert planned(made).request.optimizer is Optimizer.ADAM


def test_constraints_of_torchrec_are_kept() -> None:
    """Types, widths, and lookups, by the table's name."""
    limits = {
        "country": ParameterConstraints(sharding_types=["table_wise"], pooling_factors=[40.0]),
        "tags": ParameterConstraints(min_partition=16, pooling_factors=[2000.0]),
    }
    made = planner(constraints=limits)
    made.plan(TwoTowers())
    shards = {table.name: table.shards for table in planned(made).tables}

    assert len(shards["country"]) == 1
    assert {each.num_columns for each in shards["tags"]} == {16}  # so many lookups are worth the cut


def test_what_has_no_counterpart_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Arguments of TorchRec's planner, and fields of its constraints."""
    with caplog.at_level(logging.WARNING):
        planner(timeout_seconds=5, stats=None, constraints={"tags": ParameterConstraints(enforce_hbm=True)}).plan(
            TwoTowers()
        )

    assert "no counterpart of stats, timeout_seconds" in caplog.text
    assert "constraints['tags'].enforce_hbm is not kept" in caplog.text


@pytest.mark.parametrize(
    "given",
    [
        {"num_poolings": [2.0]},
        {"batch_sizes": [64]},
        {"is_weighted": True},
        {"feature_names": ["tags_id"]},
        {"output_dtype": TorchRecType.FP16},
        {"use_virtual_table": True},
    ],
    ids=lambda given: next(iter(given)),
)
def test_every_field_of_a_constraint_that_is_not_kept_is_named(
    given: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Where it differs from its default."""
    with caplog.at_level(logging.WARNING):
        planner(constraints={"tags": ParameterConstraints(**given), "country": ParameterConstraints()}).plan(
            TwoTowers()
        )

    assert [line for line in caplog.messages if "not kept" in line] == [
        f"constraints['tags'].{next(iter(given))} is not kept"
    ]


CUT = ParameterConstraints(min_partition=16, pooling_factors=[2000.0])
"""So many lookups are worth a cut of a table of 32 columns."""


def kinds(found: ShardingPlan) -> dict[str, dict[str, str]]:
    """Return sharding types by path and name."""
    return {path: {name: each.sharding_type for name, each in tables.items()} for path, tables in found.plan.items()}


def test_a_collection_without_a_cut_table_keeps_table_wise_tables() -> None:
    """Each collection has kernels of its own; beside a cut table, whole ones are column_wise with one shard."""
    whole = ParameterConstraints(sharding_types=["table_wise"])
    made = planner(constraints={"tags": CUT, "id": whole, "country": whole})

    assert kinds(made.plan(TwoTowers())) == {
        "users": {"id": "table_wise", "country": "table_wise"},
        "items": {"id": "column_wise", "tags": "column_wise"},
    }


def test_a_table_that_may_only_be_column_wise_may_have_one_shard() -> None:
    """As TorchRec has it; it is called column_wise."""
    whole = ParameterConstraints(sharding_types=["table_wise"])
    columns = ParameterConstraints(sharding_types=["column_wise"], min_partition=8)
    made = planner(constraints={"country": columns, "id": whole, "tags": whole})
    found = made.plan(TwoTowers())

    assert {table.name: len(table.shards) for table in planned(made).tables}["country"] == 1
    assert kinds(found)["users"]["country"] == "column_wise"
    assert set(kinds(found)["items"].values()) == {"table_wise"}


def test_several_collections_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """They are priced as one."""
    with caplog.at_level(logging.WARNING):
        planner().plan(EmbeddingBagCollection(tables=[config("t")], device=META))
        assert "collections are priced" not in caplog.text
        planner().plan(TwoTowers())

    assert "2 collections are priced as one kernel call and one exchange; each runs its own" in caplog.text


def test_sequences_are_planned_by_their_path() -> None:
    """A collection that returns rows lies beside one that returns bags."""
    rows = EmbeddingConfig(name="words", num_embeddings=500, embedding_dim=16, feature_names=["text"])
    module = nn.ModuleDict(
        {
            "bags": EmbeddingBagCollection(tables=[config("t")], device=META),
            "rows": EmbeddingCollection(tables=[rows], device=META),
        }
    )

    assert {path: list(each) for path, each in planner().plan(module).plan.items()} == {
        "bags": ["t"],
        "rows": ["words"],
    }


def test_types_that_constraints_name_are_searched() -> None:
    """Rows of a table on all devices; the others are by columns, as without a constraint."""
    module = EmbeddingBagCollection(tables=[config("a"), config("b")], device=META)
    limits = {"a": ParameterConstraints(sharding_types=["row_wise"])}
    found = planner(constraints=limits).plan(module).plan[""]

    assert found["a"].sharding_type == "row_wise"
    assert [shard.shard_sizes for shard in found["a"].sharding_spec.shards] == [[250, 16]] * 4
    assert found["b"].sharding_type in {"table_wise", "column_wise"}


def test_tables_of_managed_collision_are_cut_by_rows() -> None:
    """TorchRec's sharder allows nothing else; tables of other collections are by columns."""
    remapped = config("ids", rows=400, features=("f",))
    collision = MCHManagedCollisionModule(
        zch_size=400, device=META, eviction_policy=DistanceLFU_EvictionPolicy(), eviction_interval=10
    )
    module = nn.ModuleDict(
        {
            "remapped": ManagedCollisionEmbeddingBagCollection(
                EmbeddingBagCollection(tables=[remapped], device=META),
                ManagedCollisionCollection({"ids": collision}, [remapped]),
            ),
            "plain": EmbeddingBagCollection(tables=[config("t")], device=META),
        }
    )
    found = kinds(planner().plan(module))

    assert found["remapped"] == {"ids": "row_wise"}
    assert found["plain"]["t"] in {"table_wise", "column_wise"}


class Lookups:
    """A cost model of the user's own: time is lookups, and columns that travel."""

    def demands(self, shards: ShardArrays) -> FloatArray:
        """Return lookups."""
        return shards.lookups[:, None]

    def compute_ms(self, sums: FloatArray) -> FloatArray:
        """Return times in proportion."""
        times: FloatArray = sums * np.array([1e-5, 2e-5])
        return times

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return a microsecond per column."""
        assert exchange.topology.num_devices == 4
        return np.stack((max_dim_sums, max_dim_sums), axis=-1) * 1e-3


def test_a_cost_model_of_the_users_own_takes_the_place_of_a_bundle(tmp_path: Path) -> None:
    """Plans name it, and are cached by its version."""
    for version in ("1", "2", "2"):
        base = bundled_bundle("h100-80gb")
        own = OwnCosts(Lookups(), base=base, name="mine", version=version, compute_mape=0.5, communication_mape=0.25)
        made = planner(bundle=own, cache_dir=tmp_path)
        made.plan(TwoTowers())
        assert planned(made).bundle.name == "mine"

    assert len(list(tmp_path.iterdir())) == 2


def test_without_an_installed_package_nothing_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A source tree on the path has no release by which plans could be told apart; the plan is made all the same."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("neuroshard_torchrec.question.version", missing)
    found = planner(cache_dir=tmp_path).plan(TwoTowers())

    assert sorted(found.plan) == ["items", "users"]
    assert not list(tmp_path.iterdir())
    assert "the plan is not cached: neuroshard-operator is not installed" in caplog.text


def test_constraints_are_given_by_name() -> None:
    """TorchRec's third argument is another one."""
    with pytest.raises(TypeError, match="positional"):
        NeuroShardPlanner(None, 4, {})  # type: ignore[call-arg]


def test_one_sample_batch_is_as_good_as_a_list_of_it() -> None:
    """And None as no batch."""
    module = EmbeddingBagCollection(tables=[config("t", features=("a",))], device=META)
    one = batch({"a": 3}, samples=16)
    plans = []
    for given in (one, [one], None):
        made = planner(sample_batches=given)
        made.plan(module)
        plans.append(planned(made).request.tables.tables[0].pooling_factor)

    assert plans == [3.0, 3.0, 1.0]


def test_a_gpu_is_named_where_the_process_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is assumed."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DropInError, match="this process sees no GPU"):
        planner(device_type=None).plan(TwoTowers())


def test_the_device_is_the_process_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the driver's name of the product; one without cost models is named."""
    product = preset("a100-80gb").device.product
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: product.replace("-", " "))
    made = planner(device_type=None)
    made.plan(TwoTowers())

    assert planned(made).request.topology.device == preset("a100-80gb").device
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA GTX 970")
    with pytest.raises(DropInError, match="no cost models of a NVIDIA GTX 970"):
        planner(device_type=None).plan(TwoTowers())


@pytest.mark.parametrize(("name", "value"), [("LOCAL_WORLD_SIZE", "0"), ("WORLD_SIZE", "x"), ("WORLD_SIZE", "-2")])
def test_a_launchers_variable_that_is_no_count_is_named(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was found."""
    monkeypatch.setenv(name, value)
    with pytest.raises(DropInError, match=f"{name}: is '{value}', not a number of processes"):
        planner(topology=None).plan(TwoTowers())


def test_parameters_without_a_shape_take_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Those of lazy layers, before the first batch; a warning names them."""
    module = nn.Sequential(EmbeddingBagCollection(tables=[config("t")], device=META), nn.LazyLinear(4))
    made = planner()
    made.plan(module)

    assert planned(made).request.memory.dense_bytes == 0
    assert "2 dense parameters have no shape yet" in caplog.text


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The plan is returned."""
    (tmp_path / "file").write_text("")
    found = planner(cache_dir=tmp_path / "file" / "plans").plan(TwoTowers())

    assert sorted(found.plan) == ["items", "users"]
    assert "the plan is not cached" in caplog.text


def test_an_argument_of_neither_planner_is_a_type_error() -> None:
    """As of any function."""
    with pytest.raises(TypeError, match="'bacth_size'"):
        planner(bacth_size=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"constraints": {"no": ParameterConstraints()}}, "name a table 'no', which the module has not"),
        (
            {"constraints": {"tags": ParameterConstraints(sharding_types=["row_wise"])}},
            "'tags': row_wise is not searched next to tables of mean pooling",
        ),
        (
            {"constraints": {"tags": ParameterConstraints(sharding_types=["table_column_wise"])}},
            "'tags' may only be table_column_wise; this planner places tables table_wise, column_wise",
        ),
        ({"constraints": {"tags": ParameterConstraints(compute_kernels=["dense"])}}, "only use the kernels dense"),
        ({"constraints": {"id": ParameterConstraints(pooling_factors=[1, 2, 3])}}, "has 3 entries"),
        ({"device_type": "gtx"}, "no bundled bundle for the device 'gtx'"),
        ({"bundle": "/nowhere"}, "/nowhere"),
        ({"topology": Topology(world_size=6, compute_device="cuda", local_world_size=4)}, "do not divide"),
        ({"topology": Topology(world_size=2, compute_device="cuda", hbm_cap=2**20)}, "memory"),
        ({"batch_size": -1}, "batch_size"),
        ({"batch_size": 0}, "batch_size"),
        ({"constraints": {"tags": ParameterConstraints(min_partition=6)}}, r"constraints\['tags'\]\.min_partition"),
        ({"constraints": {"tags": ParameterConstraints(min_partition=0)}}, r"constraints\['tags'\]\.min_partition"),
    ],
    ids=[
        "name",
        "means",
        "types",
        "kernels",
        "factors",
        "device",
        "bundle",
        "nodes",
        "memory",
        "batch",
        "no-batch",
        "width",
        "no-width",
    ],
)
def test_what_cannot_be_planned_is_one_sentence(given: dict[str, Any], message: str) -> None:
    """Also for handlers of TorchRec's own planner errors."""
    with pytest.raises(DropInError, match=message):
        planner(**given).plan(TwoTowers())


def test_the_dense_part_takes_memory() -> None:
    """Weights, gradients and two moments, unless the caller knows better."""
    module = TwoTowers()
    made = planner()
    made.plan(module)

    assert planned(made).request.memory.dense_bytes == 4 * 4 * sum(each.numel() for each in module.dense.parameters())


def test_a_plan_is_made_once_per_model_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal questions are read from the cache; a damaged file is planned again."""
    searches: list[str] = []
    whole = planning.plan

    def search(request: PlanRequest, *, bundle: planning.Bundle) -> Plan:
        searches.append(request.tables.name)
        return whole(request, bundle=bundle)

    monkeypatch.setattr(planning, "plan", search)

    def plan(module: nn.Module) -> str:
        made = planner(cache_dir=tmp_path)
        made.plan(module)
        return planned(made).to_json()

    first = plan(TwoTowers())
    assert plan(TwoTowers()) == first
    assert len(searches) == 1
    plan(EmbeddingBagCollection(tables=[config("t")], device=META))
    assert len(searches) == 2
    for file in tmp_path.iterdir():
        file.write_text("{")
    assert plan(TwoTowers()) == first
    assert len(searches) == 3


def test_a_cached_plan_of_another_request_is_planned_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever its file is called."""
    planner(cache_dir=tmp_path).plan(TwoTowers())
    [file] = tmp_path.iterdir()
    other = planner(batch_size=64)
    other.plan(TwoTowers())
    file.write_text(planned(other).to_json())
    made = planner(cache_dir=tmp_path)
    made.plan(TwoTowers())

    assert planned(made).request.batch_size_per_device == 1024
    assert "is the plan of another request" in caplog.text
    assert Plan.read(file) == planned(made)


def test_a_plan_of_another_release_is_planned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Releases differ in their search."""
    planner(cache_dir=tmp_path).plan(TwoTowers())
    monkeypatch.setattr("neuroshard_torchrec.question.version", lambda _: "999")
    planner(cache_dir=tmp_path).plan(TwoTowers())

    assert len(list(tmp_path.iterdir())) == 2


def test_a_collective_plan_needs_a_process_group() -> None:
    """A single process calls plan()."""
    assert not torch.distributed.is_initialized()
    with pytest.raises(DropInError, match="there is no process group"):
        planner().collective_plan(TwoTowers())


@pytest.mark.parametrize(
    ("ranks", "nodes", "per_node"), [([0, 1], 1, 2), ([0, 4], 2, 1), ([4, 5, 6, 7], 1, 4), (list(range(8)), 2, 4)]
)
def test_a_group_of_some_ranks_has_their_devices(
    ranks: list[int], nodes: int, per_node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of the world; ranks lie on nodes as the launcher numbers them."""
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    found = planned_devices(None, device_type="h100-80gb", bundle=None, ranks=ranks).topology

    assert (found.num_nodes, found.devices_per_node) == (nodes, per_node)


def test_a_group_with_unlike_parts_of_nodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topology has as many devices in each node."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(DropInError, match="nodes have 2, 1 processes of the group"):
        planned_devices(None, device_type="h100-80gb", bundle=None, ranks=[0, 1, 4])


def test_plans_for_processors_and_for_gpus_are_kept_apart(tmp_path: Path) -> None:
    """The shards may be equal; where TorchRec puts them is not."""
    for compute_device in ("cuda", "cpu"):
        topology = Topology(world_size=4, compute_device=compute_device, local_world_size=4, hbm_cap=80 * 2**30)
        planner(topology=topology, cache_dir=tmp_path).plan(
            EmbeddingBagCollection(tables=[config("t")], device=META), [EmbeddingBagCollectionSharder()]
        )

    assert len(list(tmp_path.iterdir())) == 2
