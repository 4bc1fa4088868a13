"""Groups of ranks that each hold all tables: the numbers of one model."""

import json
from pathlib import Path

import pytest
from neuroshard_api.sharding.replication import GroupLayout
from support.trainer.rank_server import RankServer

pytestmark = [pytest.mark.processes, pytest.mark.slow]
NUM_PLANS = 4


@pytest.mark.parametrize("layout", list(GroupLayout))
def test_groups_that_average_after_each_step_train_the_unsharded_model(
    tmp_path: Path, ranks: RankServer, layout: GroupLayout
) -> None:
    """With SGD, in every family: logits and weights of three steps, and equal copies to the last bit.

    With row-wise Adagrad and seldom averages, copies of weights and sums differ before an average, and are saved equal.
    """
    worker = Path(__file__).with_name("groups_worker.py")
    ranks.succeed(f"{worker}:main", tmp_path, layout.value, NUM_PLANS, folder=tmp_path, count=4, per_node=2)

    found = json.loads((tmp_path / "differences.json").read_text())
    assert {"table_wise", "column_wise", "row_wise", "data_parallel"} <= set(found["families"])
    assert all(difference < 2e-6 for difference in found["largest"].values()), found
    averages = found["averages"]
    assert averages["weights"] == [2, 4, 6, 8], averages  # in the third steps, and before each of two checkpoints
    assert averages["sums"] == averages["weights"]
    assert averages["saved"] == []
