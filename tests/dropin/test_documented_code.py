"""Code and commands of the guide and the README, run unchanged."""

import itertools
import os
import pickle
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from neuroshard_api.documents.comparison_request import COMPARISON_VARIABLE
from neuroshard_api.documents.training_comparison import TrainingComparison
from neuroshard_cli.main import run
from neuroshard_torchrec import NeuroShardPlanner
from support.dropin.dropin_models import TwoTowers, batch
from support.trainer.trainer_builders import process_group_of_one
from support.trainer.training_builders import comparison_request
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.optim.optimizers import in_backward_optimizer_filter

pytestmark = [pytest.mark.torchrec, pytest.mark.filterwarnings("ignore:Please use DTensor:FutureWarning")]

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guides" / "use-with-torchrec.md"
PARTS = """
from support.dropin.dropin_models import TwoTowers, batch

class Model(TwoTowers):
    pass

class Loaded:
    def __init__(self, seed):
        users = batch({"id_id": 2, "country_id": 3}, samples=8, seed=seed)
        self.features = users, batch({"item": 1, "last_item": 2, "tags_id": 4}, samples=8, seed=seed)

def loader():
    return map(Loaded, range(30))
"""


def block_with(text: str, *, kind: str = "python", page: Path = GUIDE) -> str:
    """Return the only block of a page that contains a text."""
    blocks = re.findall(rf"```{kind}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    [found] = [each for each in blocks if text in each]
    return str(found)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Join a group of this process alone, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    with process_group_of_one():
        yield


def names() -> dict[str, Any]:
    """Return the names that the blocks take from the script around them."""
    return {
        "topology": Topology(world_size=1, compute_device="cpu"),
        "model": TwoTowers(CPU),
        "sharders": [EmbeddingBagCollectionSharder()],
        "constraints": {"tags": ParameterConstraints(min_partition=16)},
        "dist": dist,
        "NeuroShardPlanner": NeuroShardPlanner,
    }


def executed(code: str, **given: Any) -> dict[str, Any]:
    """Run a block and return its names."""
    found = {**names(), **given}
    exec(code, found)  # noqa: S102 - our own documents
    return found


@pytest.mark.usefixtures("alone")
def test_the_one_line_of_guide_and_readme_shards_a_model() -> None:
    """All of its tables are where the plan has them."""
    readme = executed(block_with("NeuroShardPlanner", page=ROOT / "README.md"))
    guide = executed(block_with("# was: planner = EmbeddingShardingPlanner"))

    assert sorted(readme["plan"].plan) == ["items", "users"]
    guide["planner"].prove(guide["model"])


@pytest.mark.usefixtures("alone")
def test_the_guides_table_set_is_written(tmp_path: Path) -> None:
    """As `neuroshard plan` takes it."""
    executed(block_with("table_set_of(model)"))

    assert run(["plan", str(tmp_path / "tables.json"), "--devices", "2", "--device-type", "h100-80gb"]) == 0


@pytest.mark.usefixtures("alone")
def test_the_guides_own_cost_model_plans() -> None:
    """Three methods, under the name that the plan has as its source."""
    planner = executed(block_with("class Costs:"))["planner"]
    planner.plan(TwoTowers())

    assert planner.last_plan.bundle.name == "mine"


@pytest.mark.usefixtures("alone")
def test_the_guides_estimator_serves_torchrecs_planner() -> None:
    """Which plans every table by our prices."""
    planner = executed(block_with("ours.estimator(model, sharders)"))["planner"]
    plan = planner.plan(TwoTowers(), [EmbeddingBagCollectionSharder()])

    assert sorted(plan.plan) == ["items", "users"]


@pytest.mark.usefixtures("alone")
def test_the_guides_comparison_trains_both_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From equal weights on equal batches: without a cut table the losses are equal. Table and plot name both plans."""
    planner = EmbeddingShardingPlanner(topology=names()["topology"])
    plan = planner.plan(TwoTowers(CPU), names()["sharders"])
    found = executed(block_with("compare_training({"), build=build, their_plan=plan, our_plan=plan)["found"]

    assert isinstance(found, TrainingComparison)
    assert found.rounds == 20
    assert found.plans["neuroshard"].largest_loss_difference == 0
    printed, plot = capsys.readouterr().out, (tmp_path / "rounds.svg").read_text(encoding="utf-8")
    for name in ("torchrec", "neuroshard"):
        assert any(line.startswith(f"{name} ") for line in printed.splitlines())
        assert f"{name}: {found.plans[name].steps_per_second:.2f} steps/s" in plot


@pytest.mark.usefixtures("alone")
def test_the_guides_script_trains_the_plans_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rounds as the command asks for, into the file that it names."""
    planner = NeuroShardPlanner(names()["topology"], device_type="h100-80gb")
    planner.plan(TwoTowers(CPU), names()["sharders"])
    assert planner.last_plan is not None
    (tmp_path / "plan.json").write_text(planner.last_plan.to_json())
    files = {name: str(tmp_path / "plan.json") for name in ("theirs", "ours")}
    request = comparison_request(plans=files, result=str(tmp_path / "found.json"))
    (tmp_path / "request.json").write_text(request.to_json())
    monkeypatch.setenv(COMPARISON_VARIABLE, str(tmp_path / "request.json"))
    executed(block_with("compare_given_plans(make, model, sharders)"), build=build)
    found = TrainingComparison.read(tmp_path / "found.json")

    assert (list(found.plans), found.rounds, found.steps_per_round) == (["theirs", "ours"], 2, 1)
    assert found.plans["ours"].largest_loss_difference == 0


def build(plan: ShardingPlan) -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    """Return a model under a plan, and its step."""
    model = DistributedModelParallel(TwoTowers(CPU), device=CPU, plan=plan, sharders=names()["sharders"])
    dense = torch.optim.SGD(dict(in_backward_optimizer_filter(model.named_parameters())).values(), lr=0.1)
    seeds = itertools.count()

    def step() -> torch.Tensor:
        users = batch({"id_id": 2, "country_id": 3}, samples=2, seed=next(seeds))
        loss: torch.Tensor = model(users, batch({"item": 1, "last_item": 2, "tags_id": 4}, samples=2)).square().mean()
        dense.zero_grad()
        torch.autograd.backward(loss)
        dense.step()
        return loss

    return model, step


def test_the_guides_module_is_counted_planned_and_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the section, on a module of the name that it has there."""
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "parts.py").write_text(PARTS, encoding="utf-8")
    (shop / "model.py").write_text(block_with("# shop/model.py"), encoding="utf-8")
    topology = Topology(world_size=8, compute_device="cuda", hbm_cap=80 * 2**30)
    theirs = EmbeddingShardingPlanner(
        topology=topology,
        constraints={
            name: ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
            for name in ("id", "country", "tags")
        },
    )
    (tmp_path / "plan.pkl").write_bytes(pickle.dumps(theirs.plan(TwoTowers(), names()["sharders"])))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [os.fspath(tmp_path), *sys.path])
    commands = block_with("neuroshard score", kind="console").splitlines()

    assert len(commands) == 3
    try:
        assert [run(shlex.split(command)[1:]) for command in commands] == [0, 0, 0]
    finally:
        for name in ("shop", "shop.model", "shop.parts"):
            sys.modules.pop(name, None)
