"""Dense parts that ranks share: the numbers of replicas, and checkpoints that go on under any other layout."""

import json
from pathlib import Path

import pytest
from neuroshard_api.dense_layout import DenseGroup, DenseStrategy
from rank_server import RankServer

NUM_PLANS = 12


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_every_layout_trains_as_replicas_do(tmp_path: Path, ranks: RankServer) -> None:
    """Losses and weights after 5 steps of SGD or multi-tensor Adam, clipped or not, next to tables cut by columns.

    A checkpoint goes on under another layout with equal bits. A whole job runs with evaluations under TorchRec's
    pipeline, proves its layout, and resumes.
    """
    worker = Path(__file__).with_name("dense_worker.py")
    ranks.succeed(f"{worker}:main", tmp_path, NUM_PLANS, folder=tmp_path, count=4, per_node=2)

    found = json.loads((tmp_path / "differences.json").read_text())
    sharded = {f"{strategy}/{group}" for strategy in list(DenseStrategy)[1:] for group in DenseGroup}
    wanted = {f"{kind}/{checkpointed}" for kind in (*sharded, "replicate/None") for checkpointed in (True, False)}
    assert wanted <= set(found["kinds"])
    assert all(difference < 1e-6 for difference in found["largest"].values()), found["largest"]
    first, resumed = found["trained"]["metrics"]
    assert (first["from"], resumed["from"]) == (0, 8)
    assert found["trained"]["is_planned"]
