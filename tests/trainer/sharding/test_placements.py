"""Every family of placements on four ranks, as two nodes of two: the unsharded model's numbers, and checkpoints."""

import json
from pathlib import Path

import pytest
from neuroshard_api.sharding.kinds import ShardingType
from support.trainer.rank_server import RankServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a minute where nothing else runs
NUM_PLANS = 24
TOLERANCE = {"logits": 1e-6, "sgd weights": 1e-6, "adagrad weights": 1e-6, "rowwise_adagrad weights": 5e-6}
"""The root of row-wise Adagrad's mean of squares enlarges what small gradients are rounded by."""


@pytest.mark.processes
def test_random_plans_of_all_families_compute_what_the_unsharded_model_does(tmp_path: Path, ranks: RankServer) -> None:
    """Logits, and weights after two updates; row-wise Adagrad where no table has blocks of columns."""
    worker = Path(__file__).with_name("placements_worker.py")
    ranks.succeed(f"{worker}:main", tmp_path, NUM_PLANS, 0, folder=tmp_path, count=4, per_node=2)

    found = json.loads((tmp_path / "differences.json").read_text())
    assert set(found["tables"]) == set(ShardingType), "every family was drawn"
    assert set(found["largest"]) == set(TOLERANCE)
    assert all(difference < TOLERANCE[kind] for kind, difference in found["largest"].items()), found


@pytest.mark.processes
def test_a_checkpoint_of_any_family_loads_under_any_other(tmp_path: Path, ranks: RankServer) -> None:
    """Weights and sums of squared gradients to the last bit, row-wise and element-wise."""
    worker = Path(__file__).with_name("families_worker.py")
    ranks.succeed(f"{worker}:main", tmp_path, folder=tmp_path, count=4, per_node=2)


@pytest.mark.processes
def test_tables_of_mixed_types_train_as_the_unsharded_model(tmp_path: Path, ranks: RankServer) -> None:
    """FP16 and FP32 in one plan: equal logits, and weights within the type's rounding."""
    worker = Path(__file__).with_name("placements_worker.py")
    ranks.succeed(f"{worker}:main_of_mixed_types", folder=tmp_path, count=4, per_node=2)


@pytest.mark.processes
def test_a_checkpoint_between_types_rounds_once(tmp_path: Path, ranks: RankServer) -> None:
    """Where a table has another type; elsewhere, and in optimizer state, every bit stays."""
    worker = Path(__file__).with_name("families_worker.py")
    ranks.succeed(f"{worker}:main_of_types", tmp_path, folder=tmp_path, count=4, per_node=2)
