"""``neuroshard score`` on TorchRec's own plans: pickled, and in its words as JSON."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import neuroshard_dlrm as ns
import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_cli.main import run
from neuroshard_torchrec import table_set_of
from support.dropin.dropin_models import META, TwoTowers, config
from torch import nn
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharding_spec.api import EnumerableShardingSpec
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.types import DataType

JOB = Path(__file__).parents[2] / "examples" / "02-movielens.yaml"
DEVICES = ("--devices", "4", "--device-type", "h100-80gb", "--batch-size", "512")
RAN = "ran.txt"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the tables of two towers, and change to their folder."""
    (tmp_path / "tables.json").write_text(table_set_of(TwoTowers()).to_json())
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Sums(nn.Module):
    """Two collections with a table name in common, all with sums."""

    def __init__(self) -> None:
        super().__init__()
        self.users = EmbeddingBagCollection(tables=[config("id", rows=5000), config("city", rows=900)], device=META)
        self.items = EmbeddingBagCollection(tables=[config("id", rows=3000), config("tags", rows=700)], device=META)


def test_a_pickled_plan_of_torchrec_is_scored(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By path and name, with all its shards: columns, and rows of one table on all devices."""
    limits = {
        name: ParameterConstraints(sharding_types=types, compute_kernels=["fused"], min_partition=8)
        for types, names in ((["row_wise"], ["tags"]), (["table_wise", "column_wise"], ["id", "city"]))
        for name in names
    }
    topology = Topology(world_size=4, compute_device="cuda", local_world_size=4)
    theirs = EmbeddingShardingPlanner(topology=topology, batch_size=512, constraints=limits)
    found = theirs.plan(Sums(), [EmbeddingBagCollectionSharder()])
    (folder / "plan.pkl").write_bytes(pickle.dumps(found))
    (folder / "sums.json").write_text(table_set_of(Sums()).to_json())

    assert run(["score", "plan.pkl", "sums.json", *DEVICES, "--out", "scored.json"]) == 0, capsys.readouterr().err
    scored = Plan.read(folder / "scored.json")
    assert {table.name: table.sharding_type.value for table in scored.tables}["tags"] == "row_wise"
    for table in scored.tables:
        path, _, name = table.name.rpartition("/")
        holder = found.plan[path] if path else next(each for each in found.plan.values() if name in each)
        assert sorted(shard.device for shard in table.shards) == sorted(holder[name].ranks)
    capsys.readouterr()
    assert run(["explain", "scored.json"]) == 0
    assert re.search(r"^items +2 .*row_wise 1", capsys.readouterr().out, flags=re.MULTILINE)


def test_an_exported_plan_is_scored_as_the_plan_it_was_made_from(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words differ; the price does not."""
    tables = ["tables.csv", *DEVICES]
    (folder / "tables.csv").write_text("name,num_embeddings,embedding_dim,pooling_factor\na,90000,64,20\nb,5000,32,1\n")
    assert run(["plan", *tables, "--out", "plan.json"]) == 0
    assert run(["export", "plan.json", "--module-path", "tables", "--out", "sharding.json"]) == 0
    assert run(["score", "sharding.json", *tables, "--out", "scored.json"]) == 0, capsys.readouterr().err

    costs = [Plan.read(folder / name).predicted.total_ms for name in ("scored.json", "plan.json")]
    assert costs[0] == pytest.approx(costs[1], rel=1e-6)  # sums of 32 bits, in another order


def test_the_dense_part_of_a_job_is_in_the_step_of_any_plan_of_its_tables(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan of TorchRec's has no dense part; the job that it would be trained for has one, which `plan` counts."""
    job = [str(JOB), "--devices", "4", "--device-type", "h100-80gb"]
    assert run(["plan", *job, "--out", "plan.json"]) == 0
    assert run(["export", "plan.json", "--module-path", "tables", "--out", "sharding.json"]) == 0
    assert run(["score", "sharding.json", *job, "--out", "scored.json"]) == 0, capsys.readouterr().err

    plan, scored = (Plan.read(folder / name) for name in ("plan.json", "scored.json"))
    assert scored.request.dense == plan.request.dense
    assert scored.replicated_dense == plan.replicated_dense is not None
    assert "dense part" in capsys.readouterr().out
    assert scored.step is not None
    found = ns.score(folder / "sharding.json", JOB, devices=4, device="h100-80gb")
    assert found.plan.step_ms == scored.step.total_ms


def test_a_plan_of_several_modules_is_scored_after_its_export_by_path(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tables are found again by path and name, although two have one name."""
    assert run(["plan", "tables.json", *DEVICES, "--out", "plan.json"]) == 0
    assert run(["export", "plan.json", "--out", "sharding.json"]) == 0
    assert run(["score", "sharding.json", "tables.json", *DEVICES, "--out", "scored.json"]) == 0, (
        capsys.readouterr().err
    )

    plan, scored = (Plan.read(folder / name) for name in ("plan.json", "scored.json"))
    assert scored.tables == plan.tables
    assert scored.predicted.total_ms == pytest.approx(plan.predicted.total_ms, rel=1e-6)


class Code:
    """A pickle that runs a command when it is loaded."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Name a function for the loader to call."""
        return os.system, (f"touch {RAN}",)


PLAN_CLASS = b"\x80\x02ctorchrec.distributed.types\nShardingPlan\n"
DATA_TYPE = b"\x80\x02ctorchrec.types\nDataType\nX\x04\x00\x00\x00FP32\x85R"
NODE_OF_8 = ("--devices", "8", "--device-type", "h100-80gb", "--batch-size", "512")


def placed_by(place: str, **damage: Any) -> ShardingPlan:
    """Return a plan of two towers that puts all tables in one place; ``rows`` and ``offsets`` are those of shards."""
    found = {}
    for path, collection in TwoTowers().named_children():
        configs = collection.embedding_bag_configs() if isinstance(collection, EmbeddingBagCollection) else ()
        found[path] = EmbeddingModuleShardingPlan()
        for each in configs:
            sizes = [damage.get("rows", each.num_embeddings), each.embedding_dim]
            shard = ShardMetadata([0, 0], [1, 1], place)
            shard.shard_offsets, shard.shard_sizes = damage.get("offsets", [0, 0]), sizes
            spec = EnumerableShardingSpec([ShardMetadata([0, 0], [1, 1], place)])
            spec.shards = [shard]
            found[path][each.name] = ParameterSharding(
                sharding_type="table_wise", compute_kernel="fused", ranks=[0], sharding_spec=spec
            )
    return ShardingPlan(plan=found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps({"plan": Code()}), "which is not part of a sharding plan and is not loaded"),
        (pickle.dumps({"plan": 1}), "holds a dict\nhint: pickle what collective_plan returned"),
        (b"\x80\x04not a pickle", "is neither JSON nor a pickled sharding plan"),
        (pickle.dumps(ShardingPlan(plan={})), "'users/id' of the request is missing"),
        (PLAN_CLASS + b"N}X\x05\x00\x00\x00patchK\x01s\x86b.", "sets attributes of <class 'torchrec"),
        (DATA_TYPE + b"}X\x05\x00\x00\x00patchK\x01sb.", "sets attributes of <DataType.FP32"),
        (pickle.dumps(ShardingPlan(plan=[])), "the sharding plan is damaged (AttributeError: 'list'"),
        (pickle.dumps(ShardingPlan(plan={"users": 3})), "the sharding plan is damaged (AttributeError: 'int'"),
        (pickle.dumps(placed_by("rank:0/cuda:0", offsets=[0])), "the sharding plan is damaged (IndexError"),
        (pickle.dumps(placed_by("rank:0/cuda:0", rows="many")), "the sharding plan is damaged ("),
        (pickle.dumps(placed_by("rank:5/cuda:1")), "id: has rank 5 on device 1 of its node, which is device 5"),
    ],
    ids=["code", "other", "damaged", "empty", "class", "member", "list", "number", "offsets", "rows", "node"],
)
def test_what_is_no_plan_is_refused_and_not_run(
    folder: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pickle may name any function; none but the classes of plans are loaded."""
    (folder / "plan.pkl").write_bytes(content)

    assert run(["score", "plan.pkl", "tables.json", *NODE_OF_8]) == 2
    found = capsys.readouterr().err
    assert message in found
    assert all(line.startswith(("error: ", "hint: ")) for line in found.splitlines())
    assert not (folder / RAN).exists()
    assert not hasattr(ShardingPlan, "patch")
    assert not hasattr(DataType.FP32, "patch")


def test_a_plan_for_other_devices_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Processes and processes per node are the plan's."""
    assert run(["plan", "tables.json", *DEVICES, "--out", "plan.json"]) == 0
    assert run(["export", "plan.json", "--out", "sharding.json"]) == 0
    capsys.readouterr()

    assert run(["score", "sharding.json", "tables.json", "--devices", "8", "--device-type", "h100-80gb"]) == 2
    assert "is for 4 processes, 4 per node, and the devices are 8, 8 per node" in capsys.readouterr().err
    assert folder.is_dir()


def test_tables_that_were_renamed_for_the_table_set_are_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table set has underscores for spaces; the plan has the module's own names."""
    module = EmbeddingBagCollection(tables=[config("a b"), config("c")], device=META)
    topology = Topology(world_size=4, compute_device="cuda", local_world_size=4)
    found = EmbeddingShardingPlanner(topology=topology, batch_size=512).plan(module, [EmbeddingBagCollectionSharder()])
    (folder / "plan.pkl").write_bytes(pickle.dumps(found))
    (folder / "spaced.json").write_text(table_set_of(module).to_json())

    assert run(["score", "plan.pkl", "spaced.json", *DEVICES, "--out", "scored.json"]) == 0, capsys.readouterr().err
    assert [table.name for table in Plan.read(folder / "scored.json").tables] == ["a_b", "c"]


def test_a_plan_in_json_is_known_by_its_content_too(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever its file is called; options that the plan answers already are refused, each by its name."""
    assert run(["plan", "tables.json", *DEVICES, "--out", "plan.json"]) == 0
    (folder / "plan").write_bytes((folder / "plan.json").read_bytes())
    assert run(["score", "plan"]) == 0, capsys.readouterr().err
    for option, value in (("--set", "spec.experimental.planner.seed=3"), ("--batch-size", "64"), ("--devices", "2")):
        assert run(["score", "plan", option, value]) == 2
        assert f"{option}: plan already says what it answers" in capsys.readouterr().err
