"""Two processes: steps on all lists and without repeats take turns, on synthetic samples or a log of MovieLens.

Arguments: the folder of interleaved_loops; the chance of a change, or MovieLens-100K and the folder of its clustered
log. benchmarks.deduplication starts it.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeduplicationForm
from neuroshard_api.documents.tables import Table, TableSet
from neuroshard_api.job.model import Architecture, CrossNetwork
from neuroshard_api.job.training import SyntheticGroup, SyntheticSessions
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.parquet import ParquetSource
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.sessions import Sessions
from neuroshard_trainer.data.synthetic import SyntheticSource

from benchmarks import movielens_log
from benchmarks.forms import FORMS, ONCE, timed_forms
from benchmarks.interleaved_loops import BLOCKS_FILE, PLAN_FILE
from benchmarks.session_log import LABEL, SESSION, TIME
from benchmarks.sharded_training import NUM_BATCHES, NUM_DENSE, WORLD_SIZE, start_process

BATCH_SIZE = 2048  # of each process
COLUMNS = 64
USER = tuple(f"user{index}" for index in range(4))
TABLES = TableSet(
    name="sessions",
    tables=(
        *(Table(name=name, num_embeddings=200_000, embedding_dim=COLUMNS, pooling_factor=20.0) for name in USER),
        *(Table(name=f"item{index}", num_embeddings=200_000, embedding_dim=COLUMNS) for index in range(4)),
    ),
)
RUN = 8
CHANGES = ("1", "0.43", "0.14", "1e-6")
"""Chances that a sample has other lists: factors of about 1, 2, 4, and 8 in runs of 8."""
STEPS = 32
CROSSED = "DCNv2"
CROSSED_TABLES = TableSet(
    name="crossed",
    tables=tuple(
        Table(name=f"{kind}{index}", num_embeddings=50_000, embedding_dim=COLUMNS, pooling_factor=pooling)
        for kind, pooling in (("user", 3.0), ("item", 1.0))
        for index in range(13)
    ),
)
CROSSED_USER = tuple(table.name for table in CROSSED_TABLES.tables[:13])
CROSSED_MODEL = {
    "architecture": Architecture.DCN_V2,
    "cross_network": CrossNetwork(num_layers=3, low_rank_dim=128),
    "dense_arch_layer_sizes": (128,),
    "over_arch_layer_sizes": (256, 128),
}
CROSSED_CHANGE, CROSSED_STEPS = "1e-6", 12
MOVIELENS = "MovieLens-100K"


def source_of(
    change: str,
    *,
    num_samples: int,
    samples_per_session: str = "1e6",
    tables: TableSet = TABLES,
    user: tuple[str, ...] = USER,
) -> SyntheticSource:
    """Return samples whose user lists change together; few sessions, so that runs are full."""
    group = SyntheticGroup(features=user, change_probability=change)
    sessions = SyntheticSessions(samples_per_session=samples_per_session, concurrency=16, groups=(group,))
    return SyntheticSource(
        tables, features_of(tables.tables), num_dense=NUM_DENSE, num_samples=num_samples, seed=0, sessions=sessions
    )


def log_of(files: Sequence[Path], tables: TableSet, *, num_dense: int) -> ParquetSource:
    """Return a log of Parquet files."""
    return ParquetSource(
        [DataFile(str(file)) for file in files],
        features_of(tables.tables),
        label_column=LABEL,
        dense_columns=[f"dense_{column}" for column in range(num_dense)],
        session_column=SESSION,
        time_column=TIME,
    )


def maker_of(source: SyntheticSource | ParquetSource, tables: TableSet, *, batch_size: int = BATCH_SIZE) -> BatchMaker:
    """Return the maker of this rank's batches, in a shuffled order of runs."""
    order = SampleOrder(
        source.block_sizes, validation_percent=0, seed=0, shuffle=True, sessions=Sessions(source=source, run=RUN)
    )
    return BatchMaker(
        source,
        order,
        features_of(tables.tables),
        rank=dist.get_rank(),
        world_size=WORLD_SIZE,
        batch_size=batch_size,
    )


def main() -> None:
    """Measure a chance or the log, and have rank 0 write what it measured."""
    scratch, name, *logs = sys.argv[1:]
    folder = Path(scratch)
    start_process()
    plan = Plan.read(folder / PLAN_FILE)
    if name == MOVIELENS:
        tables = movielens_log.movielens_tables(COLUMNS)
        files = sorted(Path(logs[0]).glob("*.parquet"))
        maker = maker_of(log_of(files, tables, num_dense=movielens_log.NUM_DENSE), tables)
        found = timed_forms(
            plan,
            tables,
            movielens_log.USER,
            maker,
            num_batches=NUM_BATCHES,
            steps=STEPS,
            num_dense=movielens_log.NUM_DENSE,
            folder=folder,
            without_repeats=(DeduplicationForm.FIRST_SAMPLE,),  # films, in no group, share a table with histories
        )
    elif name == CROSSED:
        count = NUM_BATCHES * WORLD_SIZE * BATCH_SIZE
        source = source_of(CROSSED_CHANGE, num_samples=count, tables=CROSSED_TABLES, user=CROSSED_USER)
        found = timed_forms(
            plan,
            CROSSED_TABLES,
            CROSSED_USER,
            maker_of(source, CROSSED_TABLES),
            num_batches=NUM_BATCHES,
            steps=CROSSED_STEPS,
            folder=folder,
            without_repeats=(*FORMS, ONCE),
            model=CROSSED_MODEL,
        )
    else:
        source = source_of(name, num_samples=NUM_BATCHES * WORLD_SIZE * BATCH_SIZE)
        maker = maker_of(source, TABLES)
        found = timed_forms(plan, TABLES, USER, maker, num_batches=NUM_BATCHES, steps=STEPS, folder=folder)
    if dist.get_rank() == 0:
        (folder / BLOCKS_FILE).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
