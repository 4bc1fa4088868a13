"""Plans that were made before: when one is read again, and when not."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_costs.bundle import bundled_bundle
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.own_costs import OwnCosts
from neuroshard_costs.shards import FloatArray, ShardArrays
from neuroshard_planner import pipeline
from neuroshard_planner.planning import Bundle
from support.dropin.dropin_models import META, TwoTowers, config
from support.dropin.dropin_planners import planned, planner
from torch import nn
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.types import Topology
from torchrec.modules.embedding_modules import EmbeddingBagCollection


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
    """A source tree on the path has no release by which plans could be distinguished; the plan is made all the same."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("neuroshard_torchrec.question.version", missing)
    found = planner(cache_dir=tmp_path).plan(TwoTowers())

    assert sorted(found.plan) == ["items", "users"]
    assert not list(tmp_path.iterdir())
    assert "the plan is not cached: neuroshard-operator is not installed" in caplog.text


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The plan is returned."""
    (tmp_path / "file").write_text("")
    found = planner(cache_dir=tmp_path / "file" / "plans").plan(TwoTowers())

    assert sorted(found.plan) == ["items", "users"]
    assert "the plan is not cached" in caplog.text


def test_a_plan_is_made_once_per_model_and_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal questions are read from the cache; a damaged file is planned again."""
    searches: list[str] = []
    whole = pipeline.plan

    def search(request: PlanRequest, *, bundle: Bundle) -> Plan:
        searches.append(request.tables.name)
        return whole(request, bundle=bundle)

    monkeypatch.setattr(pipeline, "plan", search)

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


def test_plans_for_processors_and_for_gpus_are_kept_apart(tmp_path: Path) -> None:
    """The shards may be equal; where TorchRec puts them is not."""
    for compute_device in ("cuda", "cpu"):
        topology = Topology(world_size=4, compute_device=compute_device, local_world_size=4, hbm_cap=80 * 2**30)
        planner(topology=topology, cache_dir=tmp_path).plan(
            EmbeddingBagCollection(tables=[config("t")], device=META), [EmbeddingBagCollectionSharder()]
        )

    assert len(list(tmp_path.iterdir())) == 2
