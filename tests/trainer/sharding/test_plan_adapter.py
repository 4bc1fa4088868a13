"""Plans as TorchRec takes them, and plans that do not fit."""

from pathlib import Path
from typing import Any, Literal

import fbgemm_gpu
import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.tables import Pooling
from neuroshard_api.process.errors import InputError
from neuroshard_api.sharding.kernels import DataType
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_trainer.sharding.plan_adapter import read_plan, sharding_plan
from support import builders
from support.planner.placements import on_host
from support.trainer.trainer_builders import TABLES, plan_of, write_plan
from torchrec.distributed.types import CacheParams, EnumerableShardingSpec, ParameterSharding

CUT = plan_of({"user": ((1, 12), (0, 4), (1, 16))}, world_size=2)


def test_torchrec_gets_its_own_types() -> None:
    """An explicit spec with a fused kernel for every table; the default kernel would be a dense one."""
    tables: Any = sharding_plan(CUT, module_path="model.tables").plan["model.tables"]

    assert all(isinstance(each, ParameterSharding) for each in tables.values())
    user = tables["user"]
    assert isinstance(user.sharding_spec, EnumerableShardingSpec)
    assert (user.sharding_type, user.compute_kernel, user.ranks) == ("column_wise", "fused", [1, 0, 1])
    assert [shard.shard_sizes for shard in user.sharding_spec.shards] == [[60, 12], [60, 4], [60, 16]]
    assert [str(shard.placement) for shard in user.sharding_spec.shards] == [
        "rank:1/cuda:1",
        "rank:0/cuda:0",
        "rank:1/cuda:1",
    ]


def test_caches_have_the_plans_size_and_torchrecs_own_ways() -> None:
    """Another option of a cache than its size would make a kernel call of the cached tables alone."""
    topology = builders.topology(2, host_memory=builders.host_memory())
    request = CUT.request.model_copy(update={"topology": topology})
    user = on_host(CUT.tables[0], cache_load_factor=0.25)
    plan = CUT.model_copy(update={"request": request, "tables": (user, *CUT.tables[1:])})
    tables: Any = sharding_plan(plan, module_path="tables").plan["tables"]

    assert tables["user"].compute_kernel == "fused_uvm_caching"
    assert tables["user"].cache_params == CacheParams(load_factor=0.25)
    assert tables["item"].cache_params is None


def test_whole_tables_beside_cut_ones_share_their_kernel() -> None:
    """One sharding type for all: TorchRec makes a kernel and an all-to-all for each."""
    tables: Any = sharding_plan(CUT, module_path="tables").plan["tables"]

    assert {each.sharding_type for each in tables.values()} == {"column_wise"}


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    """For the model's tables, or for its own."""
    file = write_plan(tmp_path, CUT)

    read = read_plan(file, world_size=2)
    assert read == read_plan(file, world_size=2, tables=TABLES)
    assert read.to_json() == CUT.to_json()


def with_shards(**fields: Any) -> Plan:
    """Return the plan with fields of its first shard replaced."""
    user = CUT.tables[0]
    shards = (user.shards[0].model_copy(update=fields), *user.shards[1:])
    return CUT.model_copy(update={"tables": (user.model_copy(update={"shards": shards}), *CUT.tables[1:])})


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (plan_of(world_size=4), r"is for 4 devices, there are 2 processes"),
        (plan_of(tables=TABLES[:2], world_size=2), r"has no table 'country', which the model has"),
        (
            plan_of(tables=(*TABLES, builders.table("city")), world_size=2),
            r"has a table 'city', which the model does not have",
        ),
        (
            plan_of(tables=(builders.table("user", num_embeddings=61, embedding_dim=32), *TABLES[1:]), world_size=2),
            r"table 'user' has 61 x 32 FP32, the model's has 60 x 32 FP32",
        ),
        (
            plan_of(tables=(TABLES[0].model_copy(update={"pooling": Pooling.MEAN}), *TABLES[1:]), world_size=2),
            r"table 'user' has 60 x 32 FP32 of means, the model's has 60 x 32 FP32;",
        ),
        (
            with_shards(num_columns=8),
            (
                r"tables\[0\].shards: cover 1680 of 1920 cells"
                r"; hint: close the gap \(table 'user'\)"
            ),
        ),
        (
            with_shards(num_rows=30),
            (
                r"tables\[0\].shards: cover 1560 of 1920 cells"
                r"; hint: close the gap \(table 'user'\)"
            ),
        ),
        (CUT.model_copy(update={"tables": CUT.tables[:2]}), r"has no table 'country'"),
        (CUT.model_copy(update={"tables": CUT.tables[::-1]}), r"not in the order of its request"),
    ],
    ids=[
        "world size",
        "table missing",
        "table extra",
        "rows",
        "pooling",
        "gap",
        "part of the rows",
        "not placed",
        "order",
    ],
)
def test_a_plan_that_does_not_fit_is_refused(tmp_path: Path, plan: Plan, expected: str) -> None:
    """The sentence begins with the file and names the table."""
    with pytest.raises(InputError, match=rf"plan.json: .*{expected}"):
        read_plan(write_plan(tmp_path, plan), world_size=2, tables=TABLES)


def test_a_damaged_plan_is_refused(tmp_path: Path) -> None:
    """With the place of the damage."""
    file = tmp_path / "plan.json"
    file.write_text(CUT.to_json()[:-100])

    with pytest.raises(InputError, match="is not complete JSON"):
        read_plan(file, world_size=2)


def test_what_torchrec_would_train_wrongly_is_refused() -> None:
    """A whole table that is called row_wise would be looked up on ranks that hold nothing of it."""
    by_rows = CUT.tables[1].model_copy(update={"sharding_type": ShardingType.ROW_WISE})
    plan = CUT.model_copy(update={"tables": (CUT.tables[0], by_rows, CUT.tables[2])})

    with pytest.raises(InputError, match="row_wise on 2 devices means blocks of"):
        sharding_plan(plan, module_path="tables")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"output_data_type": DataType.BF16}, "no training kernel with BF16 for pooled embeddings on CPUs"),
        ({"output_data_type": DataType.FP16}, None),
    ],
    ids=["BF16", "FP16"],
)
def test_a_plan_without_a_kernel_is_refused_before_the_first_step(
    fields: dict[str, object], reason: str | None
) -> None:
    """FBGEMM itself would raise in the middle of the first step."""
    plan = plan_of()
    memory = plan.request.memory.model_copy(update=fields)
    plan = plan.model_copy(update={"request": plan.request.model_copy(update={"memory": memory})})

    if reason is None:
        assert sharding_plan(plan, module_path="", compute_device="cpu").plan
    else:
        with pytest.raises(InputError, match=reason):
            sharding_plan(plan, module_path="", compute_device="cpu")
    assert sharding_plan(plan, module_path="", compute_device="cuda").plan


@pytest.mark.parametrize(("release", "compute_device"), [("1.6.1", "cuda"), ("1.6.1", "cpu"), ("1.7.0+cu130", "cuda")])
def test_shards_that_an_old_release_computes_wrongly_are_refused(
    monkeypatch: pytest.MonkeyPatch, release: str, compute_device: Literal["cpu", "cuda"]
) -> None:
    """FBGEMM before 1.7 returns zeros on GPUs for a part of the bags of 2,048 columns, without an error."""
    plan = plan_of(tables=(builders.table("text", embedding_dim=2048),), world_size=1)
    monkeypatch.setattr(fbgemm_gpu, "__version__", release)

    if (release, compute_device) == ("1.6.1", "cuda"):
        with pytest.raises(InputError, match=r"'text' has 2,048 columns, of which FBGEMM 1.6 returns zeros .* 1.7"):
            sharding_plan(plan, module_path="", compute_device=compute_device)
    else:
        assert sharding_plan(plan, module_path="", compute_device=compute_device).plan
