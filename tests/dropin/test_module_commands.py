"""A module of the user's own in the working directory, for ``neuroshard plan`` and ``stats``."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.tables import TableSet
from neuroshard_cli.main import run

DEVICES = ("--devices", "4", "--device-type", "h100-80gb", "--batch-size", "64")
SHOP = """
import itertools
import sys
import torch
from torch.distributed.optim import _apply_optimizer_in_backward as apply_optimizer_in_backward
from support.dropin.dropin_models import TwoTowers, batch
from torch import nn

def model():
    return TwoTowers()

def model_and_batches():
    users = (batch({"id_id": 2, "country_id": 3}, samples=8, seed=seed) for seed in itertools.count())
    items = (batch({"item": 1, "last_item": 2, "tags_id": 4}, samples=8, seed=seed) for seed in itertools.count())
    return TwoTowers(), zip(users, items)

def broken():
    raise RuntimeError("no data today")

def text():
    return "model"

def words():
    return TwoTowers(), ["words"]

def named():
    return TwoTowers(), {"users": batch({"id_id": 2}, samples=8)}

def cut_off():
    def read():
        yield batch({"id_id": 2}, samples=8)
        raise OSError("no disk")
    return TwoTowers(), read()

def dense():
    return nn.Linear(1, 1)

def leave():
    sys.exit(3)

def many_lines():
    raise ValueError("one\\ntwo")

def inside_torch():
    return torch.zeros(2).reshape(3)

def noisy():
    print("loading")
    return TwoTowers()

def adam():
    module = TwoTowers()
    apply_optimizer_in_backward(torch.optim.Adam, module.users.parameters(), {"lr": 0.1})
    return module

def adamax():
    module = TwoTowers()
    apply_optimizer_in_backward(torch.optim.Adamax, module.users.parameters(), {"lr": 0.1})
    return module

value = 3
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Write a user's module, and change to its folder."""
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "unfinished.py").write_text("import nowhere_at_all\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit('no')\n")
    (tmp_path / "unread.py").write_text("def model(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("shop", None)


def test_a_module_is_planned_by_the_name_of_its_function(shop: Path) -> None:
    """Its tables by path and name, under what its sharders allow."""
    assert run(["plan", "shop:model", *DEVICES, "--out", "plan.json"]) == 0

    plan = Plan.read(shop / "plan.json")
    assert [table.name for table in plan.tables] == ["users/id", "country", "items/id", "tags"]


def test_a_modules_plan_is_exported_and_explained_by_path(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As TorchRec takes it: a plan for each collection, of the tables' own names."""
    assert run(["plan", "shop:model", *DEVICES, "--out", "plan.json"]) == 0
    assert run(["export", "plan.json", "--out", "sharding.json"]) == 0
    modules = json.loads((shop / "sharding.json").read_text())["modules"]
    capsys.readouterr()

    assert {path: list(tables) for path, tables in modules.items()} == {
        "users": ["id", "country"],
        "items": ["id", "tags"],
    }
    assert run(["explain", "plan.json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines if line.startswith(("users ", "items "))] == [
        ["users", "2", "24"],
        ["items", "2", "48"],
    ]
    assert run(["explain", "plan.json", "items/id"]) == 0
    assert "module     items" in capsys.readouterr().out


def test_batches_give_lookups_reuse_and_repeated_lists(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of as many batches as are asked for: the function's may never end."""
    code = run(["stats", "shop:model_and_batches", "--out", "tables.json"])
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}

    assert code == 0
    assert [table.pooling_factor for table in TableSet.read(shop / "tables.json").tables] == [2.0, 3.0, 3.0, 4.0]
    assert lines["country"] == ["country", "200", "8", "FP32", "MEAN", "1", "3", *lines["country"][7:]]
    assert len(lines["country"]) == 9
    assert run(["plan", "tables.json", *DEVICES]) == 0


@pytest.mark.usefixtures("shop")
def test_a_module_without_batches_has_declared_tables_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """As JSON it is the table set."""
    assert run(["stats", "shop:model", "--json"]) == 0

    tables = TableSet.from_json(capsys.readouterr().out).tables
    assert [table.reuse_histogram for table in tables] == [None] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "shopp:model", *DEVICES), "there is no module 'shopp' in the working directory"),
        (("plan", "shop:nothing", *DEVICES), "shop has no function 'nothing'"),
        (("plan", "shop:value", *DEVICES), "shop has no function 'value'"),
        (
            ("plan", "unfinished:model", *DEVICES),
            "importing it failed: ModuleNotFoundError: No module",
        ),
        (("plan", "shop:broken", *DEVICES), "calling it failed: RuntimeError: no data today ("),
        (("stats", "shop:leave"), "shop:leave: calling it failed: SystemExit: 3 ("),
        (("stats", "leaving:model"), "importing it failed: SystemExit: no ("),
        (("stats", "unread:model"), "importing it failed: SyntaxError: "),
        (("stats", "shop:many_lines"), "calling it failed: ValueError: one two ("),
        (("stats", "shop:inside_torch"), "shop.py, line "),
        (("plan", "shop:adamax", *DEVICES), "is trained by Adamax, whose state is not priced"),
        (("plan", "shop:text", *DEVICES), "returned a str, not a torch module"),
        (("plan", "shop:words", *DEVICES), "shop:words: has a str among the batches"),
        (
            ("stats", "shop:named"),
            "shop:named: found a dict\nhint: give KeyedJaggedTensors, or tuples of them",
        ),
        (("stats", "shop:cut_off"), "reading its batches failed: OSError: no disk ("),
        (("stats", "shop:dense"), "Linear has no EmbeddingBagCollection"),
        (("stats", "shop:model", "--embedding-dim", "8"), "--embedding-dim: belongs to a sample of data"),
        (("stats", "shop:model", "--format", "NPZ"), "--format: belongs to a sample of data"),
        (("stats", "day.tsv"), "--embedding-dim: is missing"),
        (("plan", *DEVICES), "TABLES: is missing\nhint: give a table set, a job, "),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value[:3]),
)
@pytest.mark.usefixtures("shop")
def test_what_cannot_be_read_is_one_sentence(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the exit code of invalid input; the user's own errors name the line that raised them."""
    code = run(list(arguments))
    output = capsys.readouterr()

    assert (code, output.out) == (2, "")
    assert message in output.err
    assert all(line.startswith(("error: ", "hint: ")) for line in output.err.splitlines())


def test_what_the_users_code_prints_is_no_output(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It goes to stderr: stdout is the result's, here JSON."""
    assert shop.is_dir()
    assert run(["stats", "shop:noisy", "--json"]) == 0
    output = capsys.readouterr()

    assert len(TableSet.from_json(output.out).tables) == 4
    assert "loading" in output.err


def test_a_modules_optimizer_and_dense_part_count_unless_options_say_otherwise(shop: Path) -> None:
    """Optimizers of the tables that have one; weights, gradients and two moments of the rest."""
    dense = 4 * 4 * (24 + 64 + 1)
    mixed = ["adam", "rowwise_adagrad"]
    for options, optimizers, num_bytes in (
        ((), mixed, dense),
        (("--set", "spec.model.embeddingOptimizer=SGD"), ["sgd"], dense),
        (("--set", "spec.experimental.planner.denseMemoryPerDevice=2Mi"), mixed, 2 * 2**20),
    ):
        assert run(["plan", "shop:adam", *DEVICES, *options, "--out", "plan.json"]) == 0
        request = Plan.read(shop / "plan.json").request
        assert (list(request.optimizers), request.memory.dense_bytes) == (optimizers, num_bytes)
        assert request.dense_matrices is not None
        assert request.dense_matrices.largest == ("dense.weight",)
    assert run(["plan", "shop:model", *DEVICES, "--out", "plan.json"]) == 0
    assert Plan.read(shop / "plan.json").request.optimizer.value == "rowwise_adagrad"
    for function, declared in (("adam", ["adam", "adam", None, None]), ("adamax", [None] * 4), ("model", [None] * 4)):
        assert run(["stats", f"shop:{function}", "--out", "tables.json"]) == 0
        assert [each.optimizer for each in TableSet.read(shop / "tables.json").tables] == declared


def test_without_torchrec_the_missing_package_is_named(
    shop: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As for the baseline of that name."""
    assert shop.is_dir()
    monkeypatch.setitem(sys.modules, "torchrec", None)

    assert run(["stats", "shop:model"]) == 5
    assert "the tables of a module needs TorchRec" in capsys.readouterr().err
