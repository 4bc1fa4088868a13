import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from dropin_models import META, TwoTowers, config
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.plan import Plan
from neuroshard_api.presets import preset
from neuroshard_api.request import PlanRequest
from neuroshard_api.tables import Optimizer
from neuroshard_planner import planning
from neuroshard_torchrec import DropInError, NeuroShardPlanner
from torch import nn
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.modules.embedding_modules import EmbeddingBagCollection
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


def test_an_argument_of_neither_planner_is_a_type_error() -> None:
    """As of any function."""
    with pytest.raises(TypeError, match="'bacth_size'"):
        planner(bacth_size=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"constraints": {"no": ParameterConstraints()}}, "name a table 'no', which the module has not"),
        ({"constraints": {"tags": ParameterConstraints(sharding_types=["row_wise"])}}, "'tags' may only be row_wise"),
        ({"constraints": {"tags": ParameterConstraints(compute_kernels=["dense"])}}, "only use the kernels dense"),
        ({"constraints": {"id": ParameterConstraints(pooling_factors=[1, 2, 3])}}, "has 3 entries"),
        ({"device_type": "gtx"}, "no bundled bundle for the device 'gtx'"),
        ({"device_type": None}, "this process sees no GPU"),
        ({"bundle": "/nowhere"}, "/nowhere"),
        ({"topology": Topology(world_size=6, compute_device="cuda", local_world_size=4)}, "do not divide"),
        ({"topology": Topology(world_size=2, compute_device="cuda", hbm_cap=2**20)}, "memory"),
        ({"batch_size": -1}, "batch_size"),
    ],
    ids=["name", "types", "kernels", "factors", "device", "no-device", "bundle", "nodes", "memory", "batch"],
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


def test_a_collective_plan_needs_a_process_group() -> None:
    """A single process calls plan()."""
    assert not torch.distributed.is_initialized()
    with pytest.raises(DropInError, match="there is no process group"):
        planner().collective_plan(TwoTowers())
