"""The memory of a sharded dense part, held by the kernel: the plan's ledger is what the ranks may allocate."""

import json
from pathlib import Path

import pytest
from neuroshard_api.documents.dense_layout import DensePolicy
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_planner.errors import InfeasibleError
from neuroshard_trainer.dense_profile import dense_profile
from support import builders
from support.trainer.dense_plans import highest, planned
from support.trainer.rank_server import RankServer, output
from support.trainer.trainer_builders import TABLES, job_data, write_job, write_plan

WORLD_SIZE = 2
JOB = job_data(
    world_size=WORLD_SIZE,
    model={"overArchLayerSizes": [2048] * 25, "embeddingOptimizer": "SGD"},
    data={"numSamples": 400},
    training={"maxSteps": 2},
    checkpoint={"everySteps": 100},
)
"""24 layers of 16 MiB: replicated 1.5 GiB with gradients and Adam, and half of it where two ranks share them."""
DEVICES = builders.topology(WORLD_SIZE)
MARGIN_BYTES = 256 * 2**20
"""What no ledger counts: stacks of threads, arenas of the allocator, and buffers of gloo."""


@pytest.mark.processes
@pytest.mark.slow
def test_a_job_that_does_not_fit_replicated_trains_sharded_in_the_memory_of_its_ledger(
    tmp_path: Path, ranks: RankServer
) -> None:
    """Under one limit of memory the sharded plan trains, and the replicated one, which is refused, could not."""
    counted = dense_profile(DLRMTrainingJob.from_data(JOB), builders.table_set(*TABLES), multi_tensor=False)
    replicated, sharded = (planned(counted, DEVICES, each) for each in (DensePolicy.REPLICATE, DensePolicy.SHARD))
    most_bytes = highest(sharded) + MARGIN_BYTES
    assert highest(replicated) > most_bytes
    with pytest.raises(InfeasibleError, match="shard the dense part"):
        planned(counted, DEVICES, DensePolicy.REPLICATE, most_bytes=most_bytes)
    worker = f"{Path(__file__).with_name('dense_limit_worker.py')}:main"
    job = write_job(tmp_path, JOB)

    ranks.succeed(worker, tmp_path, most_bytes, job, write_plan(tmp_path, sharded), folder=tmp_path, count=WORLD_SIZE)
    ended = ranks.run(
        worker, tmp_path, most_bytes, job, write_plan(tmp_path, replicated), folder=tmp_path, count=WORLD_SIZE
    )

    assert json.loads((tmp_path / "trained.json").read_text()) == {"step": 2}
    assert any(ended.codes)
    assert "can't allocate memory" in "".join(output(tmp_path, rank) for rank in range(WORLD_SIZE))
