"""Plans in TorchRec's types, there and back, and run by TorchRec itself on two processes."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import builders
import pytest
from exact_costs import ExactCosts
from neuroshard_api.plan import Plan, Shard, ShardingType, TablePlacement
from neuroshard_api.request import Algorithm, Constraints, PlanRequest
from neuroshard_api.table_files import read_table_set
from neuroshard_planner.errors import PlanError
from neuroshard_planner.imported_plan import imported_plan
from neuroshard_planner.interop.torchrec import from_sharding_plan, load_sharding_plan, to_sharding_plan
from neuroshard_planner.interop.torchrec_document import TorchRecPlan, torchrec_plan
from neuroshard_planner.search import plan as search

pytestmark = [
    pytest.mark.torchrec,
    pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="torchrec is not installed"),
    pytest.mark.filterwarnings("ignore"),  # torchrec's own warnings are not ours to mend
    pytest.mark.timeout(400),
]

EXAMPLE = Path(__file__).parents[3] / "examples" / "torchrec"
ROWS = 50


def request_of(num_devices: int = 2, **fields: Any) -> PlanRequest:
    """Return three small tables."""
    members = [
        builders.table(name, num_embeddings=ROWS, embedding_dim=columns, pooling_factor=pooling)
        for name, columns, pooling in (("user", 64, 1.0), ("item", 32, 20.0), ("country", 8, 1.0))
    ]
    return builders.request(*members, num_devices=num_devices, **fields)


def cut(name: str, *shards: tuple[int, int]) -> TablePlacement:
    """Return a table in column shards (device, columns), one behind the other."""
    offsets = [sum(width for _, width in shards[:position]) for position in range(len(shards))]
    return TablePlacement(
        name=name,
        sharding_type=ShardingType.COLUMN_WISE if len(shards) > 1 else ShardingType.TABLE_WISE,
        shards=tuple(
            Shard(device=device, num_rows=ROWS, column_offset=offset, num_columns=width)
            for (device, width), offset in zip(shards, offsets, strict=True)
        ),
    )


def by_hand(tables: Sequence[TablePlacement], request: PlanRequest | None = None) -> Plan:
    """Return the plan document of these shards."""
    request = request or request_of()
    return imported_plan(tables, request, bundle=ExactCosts(request.topology.device))


def searched(request: PlanRequest) -> Plan:
    """Return what the search finds."""
    return search(request, bundle=ExactCosts(request.topology.device))


UNEVEN = (cut("user", (0, 44), (1, 20)), cut("item", (1, 32)), cut("country", (0, 8)))
REPEATED = (cut("user", (1, 16), (0, 20), (1, 28)), cut("item", (0, 12), (0, 20)), cut("country", (1, 8)))


@pytest.mark.parametrize("tables", [UNEVEN, REPEATED], ids=["uneven widths", "repeated ranks"])
def test_a_plan_comes_back_as_it_went(tables: Sequence[TablePlacement]) -> None:
    """Shards, their order and their costs survive the way to TorchRec's types and back."""
    plan = by_hand(tables, request_of(algorithm=Algorithm.TORCHREC))

    back = from_sharding_plan(to_sharding_plan(plan), plan.request, bundle=ExactCosts(plan.request.topology.device))

    assert back == plan


def test_a_searched_plan_comes_back_with_its_costs() -> None:
    """What differs is the search's own statistics alone."""
    plan = searched(request_of(4))

    back = from_sharding_plan(
        to_sharding_plan(plan),
        plan.request,
        bundle=ExactCosts(plan.request.topology.device),
        algorithm=Algorithm.NEUROSHARD,
    )

    assert back.model_copy(update={"search": plan.search}) == plan


def test_torchrec_gets_its_own_types() -> None:
    """An explicit spec with a fused kernel for every table; the default kernel would be a dense one."""
    from torchrec.distributed.types import EnumerableShardingSpec, ParameterSharding

    (tables,) = to_sharding_plan(by_hand(REPEATED), module_path="model.tables").plan.values()

    assert all(isinstance(each, ParameterSharding) for each in tables.values())
    user = tables["user"]
    assert isinstance(user.sharding_spec, EnumerableShardingSpec)
    assert (user.sharding_type, user.compute_kernel, user.ranks) == ("column_wise", "fused", [1, 0, 1])
    assert [shard.shard_sizes for shard in user.sharding_spec.shards] == [[50, 16], [50, 20], [50, 28]]
    assert [str(shard.placement) for shard in user.sharding_spec.shards] == [
        "rank:1/cuda:1",
        "rank:0/cuda:0",
        "rank:1/cuda:1",
    ]


def broken(**fields: Any) -> Any:
    """Return TorchRec's form of a plan with some fields of the first table replaced."""
    from dataclasses import replace

    sharding_plan = to_sharding_plan(by_hand(UNEVEN))
    (tables,) = sharding_plan.plan.values()
    tables["user"] = replace(tables["user"], **fields)
    return sharding_plan


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"sharding_type": "row_wise"}, "user.sharding_type: is 'row_wise'"),
        ({"compute_kernel": "fused_uvm"}, "user.compute_kernel: is 'fused_uvm'"),
        ({"sharding_spec": None}, "user.sharding_spec: is missing"),
    ],
    ids=["row-wise", "host memory", "no spec"],
)
def test_what_cannot_be_scored_is_refused(fields: dict[str, Any], expected: str) -> None:
    """An import never guesses a cost."""
    request = request_of()

    with pytest.raises(PlanError, match=expected):
        from_sharding_plan(broken(**fields), request, bundle=ExactCosts(request.topology.device))


def test_a_plan_of_other_tables_is_refused() -> None:
    """Tables that the request does not have, or lacks, are named."""
    sharding_plan = to_sharding_plan(by_hand(UNEVEN))
    (tables,) = sharding_plan.plan.values()
    tables["cities"] = tables.pop("country")
    request = request_of()

    with pytest.raises(PlanError, match=r"no table 'cities'.*'country' of the request is missing"):
        from_sharding_plan(sharding_plan, request, bundle=ExactCosts(request.topology.device))


def test_a_plan_against_the_constraints_is_refused() -> None:
    """An imported plan has to keep to the request as any other."""
    request = request_of(constraints=Constraints(max_shards_per_table=1))

    with pytest.raises(PlanError, match="'user' has 2 shards, the constraints allow 1"):
        from_sharding_plan(to_sharding_plan(by_hand(UNEVEN)), request, bundle=ExactCosts(request.topology.device))


def run_on_two_processes(script: Path, *arguments: Path) -> str:
    """Return what two gloo processes print. Raises CalledProcessError where one fails."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*command, str(script), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_torchrec_computes_the_same_under_every_plan(tmp_path: Path) -> None:
    """Two processes give the unsharded module's outputs, before and after one step of SGD."""
    plans = {"searched": searched(request_of()), "uneven": by_hand(UNEVEN), "repeated": by_hand(REPEATED)}
    files = []
    for name, plan in plans.items():
        file = tmp_path / f"{name}.json"
        file.write_text(torchrec_plan(plan, module_path="", compute_device="cpu").to_json())
        files.append(file)

    run_on_two_processes(Path(__file__).with_name("parity_worker.py"), *files)


@pytest.mark.slow
def test_the_guides_script_trains_under_an_exported_plan(tmp_path: Path) -> None:
    """The example in docs/guides/use-with-torchrec.md runs as it stands there."""
    request = builders.request(num_devices=2).model_copy(update={"tables": read_table_set(EXAMPLE / "tables.csv")})
    file = tmp_path / "sharding.json"
    file.write_text(torchrec_plan(searched(request), module_path="tables", compute_device="cpu").to_json())

    printed = run_on_two_processes(EXAMPLE / "train_under_plan.py", file)

    losses = [float(line.split()[-1]) for line in printed.splitlines() if line.startswith("step ")]
    assert len(losses) == 3
    assert losses[2] < losses[0]


def test_the_guides_loader_without_neuroshard_gives_the_same_plan(tmp_path: Path) -> None:
    """The few lines of docs/reference/torchrec-export.md read what this package writes."""
    exported = torchrec_plan(by_hand(REPEATED))
    file = tmp_path / "sharding.json"
    file.write_text(exported.to_json())
    page = (Path(__file__).parents[3] / "docs" / "reference" / "torchrec-export.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)  # noqa: S102 - the page's own lines

    assert names["read_sharding_plan"](file) == load_sharding_plan(TorchRecPlan.read(file))
