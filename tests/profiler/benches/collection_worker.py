"""One of two ranks: measures small collections for the samples of a profile. Argument: folder of the records."""

from collections.abc import Iterator
from pathlib import Path

import torch
from neuroshard_api.documents.records import CollectionSample, CollectionTimes
from neuroshard_profiler.benches.collection import collect_collections, measured_collections
from neuroshard_profiler.devices.cpu import CpuDevice
from support.trainer.rank_server import joined_ranks


class StoppedError(Exception):
    """The profile ends here."""


def main(folder: str) -> None:
    """Measure one sample, stop, and resume; of each sample only a few narrow tables."""
    path = Path(folder) / "collections.jsonl"
    device = CpuDevice(core=0)
    first: Iterator[bool] = iter((True,))

    def measured(sample: CollectionSample, device: torch.device) -> CollectionTimes:
        small = {"batch_size_per_device": 32, "num_tables": 4, "embedding_dim": 8}
        return measured_collections(sample.model_copy(update=small), device)

    def stopped(sample: CollectionSample, device: torch.device) -> CollectionTimes:
        if next(first, False):
            return measured(sample, device)
        raise StoppedError

    with joined_ranks():
        try:
            collect_collections(device, path, measure=stopped)
        except StoppedError:
            collect_collections(device, path, measure=measured)
