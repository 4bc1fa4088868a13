"""TorchRec modules planned from Python."""

import json
from pathlib import Path

import neuroshard_dlrm as ns
import pytest
from neuroshard_api.documents.presets import preset
from neuroshard_cli.main import run
from support.dropin.dropin_models import TwoTowers, batch

pytestmark = [pytest.mark.torchrec, pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")]

H100S = preset("h100-80gb").topology(devices_per_node=2)
DEVICES = ("--devices", "2", "--device-type", "h100-80gb", "--set", "spec.planner.algorithm=DimGreedy")


def test_a_module_gives_the_plan_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte: its tables, optimizers, and dense part."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "towers.py").write_text("from support.dropin.dropin_models import TwoTowers\nmodel = TwoTowers\n")
    found = ns.plan(TwoTowers(), devices=2, device="h100-80gb", algorithm="dim_greedy")

    assert run(["plan", "towers:model", *DEVICES, "--out", "plan.json"]) == 0
    assert found.to_json() == (tmp_path / "plan.json").read_text()


def test_a_plan_of_a_module_names_no_other_types_of_its_tables() -> None:
    """The module gives them, and the command refuses the setting."""
    found = ns.plan(TwoTowers(), devices=2, device="h100-80gb", algorithm="dim_greedy")

    assert json.loads(found.to_json())["request"]["refused_levers"] == ["stored_types"]


def test_sample_batches_measure_lookups() -> None:
    """As those that a function of the user's returns with its module."""
    users = [batch({"id_id": 2, "country_id": 3}, samples=8, seed=seed) for seed in range(2)]
    items = [batch({"item": 1, "last_item": 2, "tags_id": 4}, samples=8, seed=seed) for seed in range(2)]
    asked = {"devices": 2, "device": "h100-80gb", "algorithm": "dim_greedy"}
    counted = ns.plan(TwoTowers(), sample_batches=list(zip(users, items, strict=True)), **asked)  # type: ignore[arg-type]

    assert [row["pooling_factor"] for row in counted.rows()] != [row["pooling_factor"] for row in plain(asked)]


def plain(asked: dict[str, object]) -> list[dict[str, object]]:
    """Return the tables of the same plan without batches."""
    return ns.plan(TwoTowers(), **asked).rows()  # type: ignore[arg-type]


def test_a_plan_of_torchrec_is_scored_as_an_object() -> None:
    """With the tables that it does not have."""
    planner = ns.NeuroShardPlanner(batch_size=64, device_type="h100-80gb", topology=H100S)
    sharding = planner.plan(TwoTowers())
    score = ns.score(sharding, TwoTowers(), devices=2, device="h100-80gb", batch_size=64)

    assert planner.last_plan is not None
    assert score.plan.rows("shards") == ns.score(sharding, TwoTowers(), devices=json.loads(H100S.to_json())).plan.rows(
        "shards"
    )
    assert len(score.plan.rows()) == len(planner.last_plan.tables)
    with pytest.raises(ns.InputError, match=r"^source: is missing"):
        ns.score(sharding)
