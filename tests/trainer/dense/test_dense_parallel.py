"""Dense parts that ranks share: the numbers of replicas, and checkpoints that go on under any other layout."""

import json
from pathlib import Path

import pytest
from neuroshard_api.documents.dense_layout import (
    DenseGroup,
    DensePolicy,
    DenseStrategy,
)
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_planner.errors import InfeasibleError
from neuroshard_trainer.dense_profile import dense_profile
from support import builders
from support.trainer.dense_plans import highest, planned
from support.trainer.rank_server import RankServer
from support.trainer.trainer_builders import TABLES, job_data, write_job, write_plan

NUM_PLANS = 12
DEVICES = builders.topology(4, num_nodes=2)
JOB = job_data(
    world_size=4,
    model={
        "architecture": "DCNv2",
        "crossNetwork": {"numLayers": 3, "lowRankDim": 16},
        "overArchLayerSizes": [128] * 10,
        "embeddingOptimizer": "SGD",
    },
    data={"numSamples": 2000},
    training={"evalEverySteps": 3, "gradientClipNorm": "1"},
    checkpoint={"everySteps": 4},
)
"""Twelve layers of about 64 KiB on samples of a few: weights, gradients, and Adam are most of its memory."""


@pytest.mark.processes
@pytest.mark.slow
def test_every_layout_trains_as_replicas_do(tmp_path: Path, ranks: RankServer) -> None:
    """Losses and weights after 5 steps of SGD or multi-tensor Adam, clipped or not, next to tables cut by columns.

    A checkpoint goes on under another layout with equal bits. A job whose replicas do not fit is planned and trained:
    with evaluations under TorchRec's pipeline, a proven layout, and a second start from its checkpoint.
    """
    counted = dense_profile(DLRMTrainingJob.from_data(JOB), builders.table_set(*TABLES), multi_tensor=False)
    policies = DensePolicy.REPLICATE, DensePolicy.SHARD
    most_bytes = sum(highest(planned(counted, DEVICES, policy)) for policy in policies) // 2
    with pytest.raises(InfeasibleError, match="shard the dense part"):
        planned(counted, DEVICES, DensePolicy.REPLICATE, most_bytes=most_bytes)
    plan = planned(counted, DEVICES, DensePolicy.SHARD, most_bytes=most_bytes)
    assert highest(plan) <= most_bytes
    files = write_job(tmp_path, JOB), write_plan(tmp_path, plan)

    worker = Path(__file__).with_name("dense_worker.py")
    ranks.succeed(f"{worker}:main", tmp_path, NUM_PLANS, *files, folder=tmp_path, count=4, per_node=2)

    found = json.loads((tmp_path / "differences.json").read_text())
    sharded = {f"{strategy}/{group}" for strategy in list(DenseStrategy)[1:] for group in DenseGroup}
    wanted = {f"{kind}/{checkpointed}" for kind in (*sharded, "replicate/None") for checkpointed in (True, False)}
    assert wanted | {f"split/{group}" for group in DenseGroup} <= set(found["kinds"])
    assert all(difference < 1e-6 for difference in found["largest"].values()), found["largest"]
    assert found["trained"] == {"first_steps": [0, 8], "is_planned": True}
