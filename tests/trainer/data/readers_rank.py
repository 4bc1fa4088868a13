"""A rank that is killed while its readers work. Its output is their process ids."""

import os
import signal
from pathlib import Path

import torch
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.criteo import CriteoSource
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.reader_process import GIVES_WAY_BY
from neuroshard_trainer.data.readers import Readers, start_server
from neuroshard_trainer.data.samples import features_of
from support.trainer.data_builders import CRITEO_TABLES, criteo_file

NICEST = 19


def main(folder: str) -> None:
    """Read a batch of each reader, and be killed."""
    features = features_of(CRITEO_TABLES)
    source = CriteoSource([criteo_file(Path(folder), 100)], features, num_dense=13, spare=Path(folder))
    order = SampleOrder(source.block_sizes, validation_percent=10, seed=0, shuffle=True)
    made = BatchMaker(source, order, features, rank=0, world_size=1, batch_size=16)
    start_server()
    keys = [feature.name for feature in features]
    readers = Readers(num_processes=2, keys=keys, pin_memory=False, timeout_seconds=60)
    batches = readers.batches(made.training, range(0, 160, 16), torch.device("cpu"))
    for _ in range(2):
        next(batches)
    pids = [child.pid for child in torch.multiprocessing.active_children() if child.pid is not None]
    print(*pids, flush=True)  # noqa: T201 - for the test
    wanted = min(os.getpriority(os.PRIO_PROCESS, 0) + GIVES_WAY_BY, NICEST)
    print("give way:", *(os.getpriority(os.PRIO_PROCESS, pid) == wanted for pid in pids), flush=True)  # noqa: T201
    os.kill(os.getpid(), signal.SIGKILL)
