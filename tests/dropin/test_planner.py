"""The drop-in planner: one line, one plan, and one sentence where there is none."""

import logging
from typing import Any

import pytest
import torch
import torch.distributed as dist
from neuroshard_report.explain.step import step_text
from neuroshard_torchrec import DropInError
from support.dropin.dropin_models import META, TwoTowers, batch, config
from support.dropin.dropin_planners import planned, planner
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.keyed_jagged_tensor_pool import KeyedJaggedTensorPoolSharder
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.modules.embedding_configs import EmbeddingConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.keyed_jagged_tensor_pool import KeyedJaggedTensorPool


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


def test_several_collections_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """They are priced as one."""
    with caplog.at_level(logging.WARNING):
        planner().plan(EmbeddingBagCollection(tables=[config("t")], device=META))
        assert "collections are priced" not in caplog.text
        planner().plan(TwoTowers())

    assert "2 collections are priced as one kernel call and one exchange; each runs its own" in caplog.text


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_rank_alone_tells_what_is_assumed(
    rank: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All ranks of a script that plans on each would tell the same."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    with caplog.at_level(logging.INFO):
        bags = EmbeddingBagCollection(tables=[config("t")], device=META)
        rows = EmbeddingConfig(name="words", num_embeddings=500, embedding_dim=16, feature_names=["text"])
        module = nn.ModuleDict({"bags": bags, "rows": EmbeddingCollection(tables=[rows], device=META)})
        planner(stats=[], cache_dir="/dev/null/no").plan(module, [EmbeddingBagCollectionSharder()])

    found = [each.name for each in caplog.records if each.name.startswith("neuroshard_torchrec")]
    assert {name.rpartition(".")[2] for name in found} == (
        {"planner", "collections", "plan_cache"} if not rank else set()
    )


def test_sequences_are_planned_by_their_path() -> None:
    """A collection that returns rows is next to one that returns bags."""
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


def test_a_module_whose_sharder_has_no_parameters_is_passed_over() -> None:
    """Such as TorchRec's object pools, which are sharded without a plan."""
    pool = KeyedJaggedTensorPool(pool_size=8, feature_max_lengths={"a": 2}, device=META)
    module = nn.ModuleDict({"bags": EmbeddingBagCollection(tables=[config("t")], device=META), "pool": pool})

    found = planner().plan(module, [EmbeddingBagCollectionSharder(), KeyedJaggedTensorPoolSharder()])
    assert [*found.plan] == ["bags"]


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


def test_parameters_without_a_shape_take_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    """Those of lazy layers, before the first batch; a warning names them."""
    module = nn.Sequential(EmbeddingBagCollection(tables=[config("t")], device=META), nn.LazyLinear(4))
    made = planner()
    made.plan(module)

    assert planned(made).request.memory.dense_bytes == 0
    assert "2 dense parameters have no shape yet" in caplog.text


def test_a_launchers_rank_tells_before_there_is_a_group(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script may make its planner first."""
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        with caplog.at_level(logging.WARNING):
            planner(stats=[])
        assert ("stats: without effect" in caplog.text) == (rank == "0")


def test_a_module_without_tables_leaves_no_plan_of_an_earlier_one() -> None:
    """Reports would show another model's."""
    made = planner()
    made.plan(TwoTowers())

    assert made.plan(nn.Linear(1, 1)).plan == {}
    assert made.last_plan is None


def test_an_argument_of_neither_planner_is_a_type_error() -> None:
    """As of any function."""
    with pytest.raises(TypeError, match="'bacth_size'"):
        planner(bacth_size=4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"constraints": {"country": ParameterConstraints(sharding_types=["row_wise"])}},
            "'country': row_wise cuts bags that are averaged",
        ),
        (
            {"constraints": {"tags": ParameterConstraints(sharding_types=["elsewhere"])}},
            "'tags' may only be elsewhere; this planner places tables table_wise, column_wise",
        ),
        (
            {"constraints": {"tags": ParameterConstraints(compute_kernels=["quant"])}},
            "constraints allow quant, and",
        ),
        ({"constraints": {"id": ParameterConstraints(pooling_factors=[1, 2, 3])}}, "has 3 entries"),
        ({"device_type": "gtx"}, "no built-in cost models for the device 'gtx'"),
        ({"bundle": "/nowhere"}, "/nowhere"),
        ({"topology": Topology(world_size=6, compute_device="cuda", local_world_size=4)}, "do not divide"),
        ({"topology": Topology(world_size=2, compute_device="cuda", hbm_cap=2**20)}, "memory"),
        ({"topology": Topology(world_size=2, compute_device="mtia")}, "topology: computes on 'mtia'"),
        ({"batch_size": -1}, r"^batch_size: must be a whole number of at least 1 \(found -1\); hint: give the samples"),
        ({"batch_size": 0}, r"^batch_size: .* \(found 0\); hint: "),
        (
            {"constraints": {"tags": ParameterConstraints(min_partition=-4)}},
            r"^constraints\['tags'\]\.min_partition: must be a whole number of at least 1 \(found -4\); hint: ",
        ),
    ],
    ids=[
        "means",
        "types",
        "kernels",
        "factors",
        "device",
        "bundle",
        "nodes",
        "memory",
        "compute-device",
        "batch",
        "no-batch",
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


class Wide(TwoTowers):
    """A dense part of three layers, one of them twice, a norm, and rows that are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.over = nn.Sequential(nn.Linear(8192, 8192, device=META), nn.LayerNorm(8192, device=META))
        self.again = self.over[0]
        self.words = nn.Embedding(1000, 64, device=META)
        self.attention = nn.MultiheadAttention(64, 4, device=META)


def test_matrix_products_of_a_dense_part_that_is_not_counted_are_in_the_step() -> None:
    """Each matrix once for each sample, by name; neither a norm nor looked-up rows, and nothing of the search."""
    made = planner(batch_size=8192)
    made.plan(Wide())
    found = planned(made)
    matrices, step = found.request.dense_matrices, found.step

    assert matrices is not None
    assert matrices.num_matrices == 4
    assert matrices.num_parameters == 8192 * 8192 + 24 + 64 + 4 * 64 * 64
    assert matrices.largest == ("over.0.weight", "attention.in_proj_weight", "attention.out_proj.weight")
    assert step is not None
    assert step.dense_ms is None
    operations_ms = 3 * 2 * 8192 * matrices.num_parameters / (0.72 * 2048 * 132 * 1.98e9) * 1e3
    assert step.matrices_ms == pytest.approx(operations_ms + 4 * 3 * 0.008)
    assert step.total_ms == pytest.approx(step.embedding_ms + operations_ms + 4 * 3 * 0.008)
    assert "the products with its 4 weight matrices alone are counted" in (step_text(found) or "")
    assert "(over.0.weight, attention.in_proj_weight, attention.out_proj.weight, ...)" in (step_text(found) or "")


def test_a_collective_plan_needs_a_process_group() -> None:
    """A single process calls plan()."""
    assert not torch.distributed.is_initialized()
    with pytest.raises(DropInError, match="there is no process group"):
        planner().collective_plan(TwoTowers())


def test_sample_batches_that_cannot_be_read_are_an_error_of_each_plan() -> None:
    """Not of the constructor: all ranks vote first. A failed iterator is not taken for an empty one later."""
    made = planner(sample_batches=map(int, ["x"]))
    for _ in range(2):
        with pytest.raises(DropInError, match="sample_batches: reading them failed: ValueError: invalid literal"):
            made.plan(TwoTowers())


def test_a_proof_needs_a_process_group() -> None:
    """Ranks compare what they hold."""
    with pytest.raises(DropInError, match="prove: there is no process group"):
        planner().prove(TwoTowers())
