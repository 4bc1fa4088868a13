"""Plans of files for the module of a script, and what `neuroshard compare-training` asks such a script for."""

from pathlib import Path

import pytest
from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.comparison_request import COMPARISON_VARIABLE
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.torchrec_plan import TorchRecCodecs, TorchRecPlan
from neuroshard_torchrec import DropInError, compare_given_plans
from neuroshard_torchrec.given_comparison import plans_for
from support.dropin.dropin_models import META, TwoTowers, config
from support.dropin.dropin_planners import kinds, planned, planner
from support.trainer.trainer_builders import process_group_of_one
from torch import nn
from torchrec.modules.embedding_modules import EmbeddingBagCollection

COLLECTION = EmbeddingBagCollection(tables=[config("t")], device=META)


@pytest.fixture(scope="module")
def towers() -> tuple[GivenPlan, dict[str, dict[str, str]]]:
    """Return a plan of two towers on four devices, and its types by path and name."""
    made = planner()
    found = made.plan(TwoTowers())
    return planned(made), kinds(found)


def test_plans_and_exported_plans_are_for_the_paths_of_the_module(
    towers: tuple[GivenPlan, dict[str, dict[str, str]]], tmp_path: Path
) -> None:
    """As the drop-in's planner returns them."""
    plan, expected = towers
    (tmp_path / "plan.json").write_text(plan.to_json())
    (tmp_path / "exported.json").write_text(TorchRecPlan.of(plan).to_json())
    files = {name: str(tmp_path / f"{name}.json") for name in ("plan", "exported")}

    assert {name: kinds(each) for name, each in plans_for(files, TwoTowers(), None, world_size=4).items()} == {
        "plan": expected,
        "exported": expected,
    }


@pytest.mark.parametrize(
    ("module", "world_size", "is_exported", "problem"),
    [
        (TwoTowers(), 2, False, "is for 4 devices, there are 2 processes"),
        (TwoTowers(), 2, True, "is for 4 processes, found 2; hint: start as many"),
        (COLLECTION, 4, False, "has no table 't', which the model has"),
        (nn.ModuleDict({"users": COLLECTION}), 4, True, "has no table 't' in users, which the module has"),
    ],
    ids=["devices", "processes", "tables", "exported-tables"],
)
def test_plans_of_other_processes_or_modules_are_named(  # noqa: PLR0917 - the case
    towers: tuple[GivenPlan, dict[str, dict[str, str]]],
    tmp_path: Path,
    module: nn.Module,
    world_size: int,
    is_exported: bool,  # noqa: FBT001 - the case
    problem: str,
) -> None:
    """With their file, before anything is trained."""
    plan, _ = towers
    file = tmp_path / "plan.json"
    file.write_text((TorchRecPlan.of(plan) if is_exported else plan).to_json())

    with pytest.raises(DropInError, match=f"plan.json: .*{problem}"):
        plans_for({"ours": str(file)}, module, None, world_size=world_size)


def test_an_exported_plan_of_other_shapes_is_named(tmp_path: Path) -> None:
    """TorchRec itself would leave rows out."""
    made = planner()
    made.plan(nn.ModuleDict({"bags": COLLECTION}))
    file = tmp_path / "plan.json"
    file.write_text(TorchRecPlan.of(planned(made), module_path="bags").to_json())
    other = nn.ModuleDict({"bags": EmbeddingBagCollection(tables=[config("t", rows=2000)], device=META)})

    with pytest.raises(DropInError, match="table 't' has 1000 x 16, the module's has 2000 x 16"):
        plans_for({"ours": str(file)}, other, None, world_size=4)


def test_an_exported_plan_with_more_than_shards_is_refused(
    towers: tuple[GivenPlan, dict[str, dict[str, str]]], tmp_path: Path
) -> None:
    """The script would train another exchange than the one that the plan is priced for."""
    exported = TorchRecPlan.of(towers[0])
    codecs = TorchRecCodecs(forward=WireType.FP16, backward=WireType.FP16)
    file = tmp_path / "plan.json"
    file.write_text(exported.model_copy(update={"codecs": codecs}).to_json())

    with pytest.raises(DropInError, match=r"plan.json: is priced for narrow types on the wire"):
        plans_for({"ours": str(file)}, TwoTowers(), None, world_size=4)


def test_a_script_that_the_command_did_not_start_is_an_error_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also one without a process group, or whose request cannot be read."""
    monkeypatch.delenv(COMPARISON_VARIABLE, raising=False)
    with pytest.raises(DropInError, match="there is no process group"):
        compare_given_plans(lambda _: pytest.fail("is not called"), COLLECTION)
    with process_group_of_one():
        with pytest.raises(DropInError, match="NEUROSHARD_COMPARISON is not set; hint: start the script with"):
            compare_given_plans(lambda _: pytest.fail("is not called"), COLLECTION)
        monkeypatch.setenv(COMPARISON_VARIABLE, str(tmp_path / "nothing.json"))
        with pytest.raises(DropInError, match=r"nothing\.json"):
            compare_given_plans(lambda _: pytest.fail("is not called"), COLLECTION)
