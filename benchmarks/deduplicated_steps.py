"""Two processes: steps on all lists and steps without repeats take turns, on the same synthetic samples.

Argument: the folder of interleaved_loops. benchmarks.deduplication starts it.
"""

import json
import sys
from pathlib import Path

import torch.distributed as dist
from neuroshard_api.job_training import SyntheticGroup, SyntheticSessions
from neuroshard_api.plan import Plan
from neuroshard_api.tables import Table, TableSet
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.deduplication import deduplicated
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import Sessions
from neuroshard_trainer.data.synthetic import SyntheticSource

from benchmarks.interleaved_loops import BLOCKS_FILE, PLAN_FILE, Times, timed
from benchmarks.sharded_training import NUM_BATCHES, NUM_DENSE, WORLD_SIZE, ShardedTraining, start_process

BATCH_SIZE = 2048  # of each process
USER = tuple(f"user{index}" for index in range(4))
TABLES = TableSet(
    name="sessions",
    tables=(
        *(Table(name=name, num_embeddings=200_000, embedding_dim=64, pooling_factor=20.0) for name in USER),
        *(Table(name=f"item{index}", num_embeddings=200_000, embedding_dim=64) for index in range(4)),
    ),
)
RUN = 8
CHANGES = ("1", "0.43", "0.14", "1e-6")
"""Chances that a sample has other lists: factors of about 1, 2, 4, and 8 in runs of 8."""
WARM_STEPS, STEPS = 4, 32


def source_of(change: str, *, num_samples: int, samples_per_session: str = "1e6") -> SyntheticSource:
    """Return samples whose user lists change together; few sessions, so that runs are full."""
    group = SyntheticGroup(features=USER, change_probability=change)
    sessions = SyntheticSessions(samples_per_session=samples_per_session, concurrency=16, groups=(group,))
    return SyntheticSource(
        TABLES, features_of(TABLES.tables), num_dense=NUM_DENSE, num_samples=num_samples, seed=0, sessions=sessions
    )


def batches(change: str) -> tuple[list[Batch], list[Batch], float]:
    """Return this rank's batches with all lists and without repeats, and samples over distinct ones."""
    features = features_of(TABLES.tables)
    keys = [feature.name for feature in features]
    source = source_of(change, num_samples=NUM_BATCHES * WORLD_SIZE * BATCH_SIZE)
    order = SampleOrder(
        source.block_sizes, validation_percent=0, seed=0, shuffle=True, sessions=Sessions(source=source, run=RUN)
    )
    maker = BatchMaker(source, order, features, rank=dist.get_rank(), world_size=WORLD_SIZE, batch_size=BATCH_SIZE)
    whole = [maker.training(index * maker.global_batch_size) for index in range(NUM_BATCHES)]
    without = [deduplicated(each, [tuple(keys.index(name) for name in USER)]) for each in whole]
    factor = NUM_BATCHES * BATCH_SIZE / sum(each.num_distinct[0] for each in without)
    return [Batch.of(each, keys) for each in whole], [Batch.of(each, keys) for each in without], factor


def main() -> None:
    """Measure every chance, and have rank 0 write what it measured."""
    folder = Path(sys.argv[1])
    start_process()
    plan = Plan.read(folder / PLAN_FILE)
    found: dict[str, dict[str, float | list[Times]]] = {}
    for change in CHANGES:
        plain, without = ShardedTraining(plan, TABLES), ShardedTraining(plan, TABLES, groups=[USER])
        of_plain, of_without, factor = batches(change)
        times: dict[str, list[Times]] = {"plain": [], "without": []}
        for step in range(WARM_STEPS + STEPS):
            pair = [
                timed(plain.step, of_plain[step % NUM_BATCHES]),
                timed(without.step, of_without[step % NUM_BATCHES]),
            ]
            if step >= WARM_STEPS:
                times["plain"].append(pair[0])
                times["without"].append(pair[1])
        found[change] = {"factor": factor, **times}
    if dist.get_rank() == 0:
        (folder / BLOCKS_FILE).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
