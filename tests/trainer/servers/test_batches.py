"""Batches of trainings with embedding servers: a trainer's, and a server's, which have no samples."""

from pathlib import Path
from typing import Any, cast

import torch
from neuroshard_api.documents.tables import TableSet
from neuroshard_trainer.data.training_data import TrainingData, open_training_data
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.ranks.process import Process
from support.trainer.trainer_builders import TABLES, job_data, write_job

CPU = torch.device("cpu")
NO_GROUP = cast("Any", None)
"""No collective is called."""


def opened(folder: Path, *, rank: int, **data: Any) -> TrainingData:
    """Return the data of one of two trainers, or of the server behind them, which has the first table."""
    spec: dict[str, Any] = {"data": {"numSamples": 4000, "validationPercent": 75}, "experimental": {"data": data}}
    job = read_job(write_job(folder, job_data(world_size=2, model={"batchSizePerDevice": 2048}, **spec)))
    process = Process(rank=rank, world_size=3, device=CPU, group=NO_GROUP, num_servers=1)
    found = open_training_data(job, TableSet(name="model", tables=TABLES), process, root=folder, spare=folder)
    return found.served(TABLES[:1], has_samples=not process.is_server)


def test_the_lists_of_tables_on_servers_are_apart_from_a_batch(tmp_path: Path) -> None:
    """A trainer's have all of its samples; a server's have none, and the same keys."""
    of_trainer, of_server = (
        next(iter(opened(tmp_path, rank=rank, readerProcesses=0).training(range(1), CPU))) for rank in (1, 2)
    )

    for batch in (of_trainer, of_server):
        (far,) = batch.group_lookups
        assert far.keys() == ["user"]
        assert set(batch.lookups.keys()) == {"item", "country"}
    assert (len(of_trainer.labels), len(of_server.labels)) == (2048, 0)
    assert of_trainer.group_lookups[0].lengths().shape == (2048,)
    assert of_trainer.lookups_by_sample.lengths().shape == (3 * 2048,)


def test_no_device_gets_lookups_of_tables_on_servers(tmp_path: Path) -> None:
    """They travel from host memory; what watches a batch has all lookups on its device."""
    (batch,) = opened(tmp_path, rank=0, readerProcesses=0).training(range(1), torch.device("meta"))

    assert {batch.dense.device.type, batch.labels.device.type, batch.lookups.values().device.type} == {"meta"}
    (far,) = batch.group_lookups
    assert far.values().device == CPU
    assert batch.lookups_by_sample.values().device.type == "meta"
    assert batch.lookups_by_sample.lengths().shape == (3 * 2048,)


def test_a_server_has_as_many_batches_as_trainers_whose_readers_share_an_evaluation(tmp_path: Path) -> None:
    """A server reads nothing, and answers each batch that a trainer has."""
    found = [opened(tmp_path, rank=rank, readerProcesses=2) for rank in (0, 1, 2)]

    assert [each.readers.num_processes for each in found] == [2, 2, 0]
    assert len({(each.evaluate.global_batch_size, each.num_validation) for each in found}) == 1
    assert found[2].evaluate.global_batch_size < found[2].global_batch_size
