"""One of two ranks: measures small collections for the samples of a profile. Argument: folder of the records."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from neuroshard_api.documents.records import CollectionSample, CollectionTimes
from neuroshard_profiler.benches.collection import collect_collections, measured_collections
from neuroshard_profiler.devices.cpu import CpuDevice
from neuroshard_profiler.devices.cuda_runtime import CudaRuntime
from support.profiler.fake_cuda import FakeCuda
from support.trainer.rank_server import joined_ranks
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

SMALL = {"batch_size_per_device": 32, "num_tables": 4, "embedding_dim": 8}


class StoppedError(Exception):
    """The profile ends here."""


def main(folder: str) -> None:
    """Measure one sample, stop, and resume; of each sample only a few narrow tables."""
    path = Path(folder) / "collections.jsonl"
    device = CpuDevice(core=0)
    first: Iterator[bool] = iter((True,))

    def measured(sample: CollectionSample, device: torch.device, cuda: CudaRuntime | None) -> CollectionTimes:
        return measured_collections(sample.model_copy(update=SMALL), device, cuda)

    def stopped(sample: CollectionSample, device: torch.device, cuda: CudaRuntime | None) -> CollectionTimes:
        if next(first, False):
            return measured(sample, device, cuda)
        raise StoppedError

    with joined_ranks():
        try:
            collect_collections(device, path, measure=stopped)
        except StoppedError:
            collect_collections(device, path, measure=measured)


def queue(folder: str) -> None:
    """Measure one sample as on a GPU, whose queue is a made-up one, and write what is queued in which order."""
    cuda = FakeCuda()
    sample = CollectionSample(num_tables=4, batch_size_per_device=32, embedding_dim=8, pooling_factor=2)

    def noted(name: str) -> Callable[..., Any]:
        call = getattr(ShardedEmbeddingBagCollection, name)

        def wrapped(*arguments: Any) -> Any:
            cuda.log.append(name)
            return call(*arguments)

        return wrapped

    with joined_ranks():
        calls: dict[str, Any] = {name: noted(name) for name in ("input_dist", "compute_and_output_dist")}
        with patch.multiple(ShardedEmbeddingBagCollection, **calls):
            times = measured_collections(sample, torch.device("cpu"), cuda)
        if dist.get_rank() == 0:
            found = {"log": cuda.log, "times": times.model_dump(mode="json")}
            (Path(folder) / "queue.json").write_text(json.dumps(found))
