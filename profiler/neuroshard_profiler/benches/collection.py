"""Measures what a further collection of tables adds to a step, for jobs whose groups may have one each.

Tables are trained by TorchRec twice, in turns: as one collection, and as two of half the tables each, whose exchanges
begin one after the other as in the trainer's model of grouped tables. Both exchange the same. The parts of steps are
those that the trainer reports.

On a GPU the trainer's pipeline keeps the device busy while the host launches a step, so that gaps between launches do
not show. Here a kernel that spins does: the indices travel first, since the host waits for their sizes, and all else of
a step is queued while the device spins.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from neuroshard_api.documents.bundle import CollectionParts
from neuroshard_api.documents.records import CollectionSample, CollectionTimes, ProfileRecord
from neuroshard_api.documents.tables import Optimizer
from neuroshard_trainer.dense.optimizers import embedding_sharder
from neuroshard_trainer.measure.embedding_timers import EmbeddingTimers
from neuroshard_trainer.measure.step_marks import StepMarks, TimedPart
from neuroshard_trainer.measure.step_reporter import MarkedStep, step_times
from neuroshard_trainer.ranks.clocks import clock_of
from neuroshard_trainer.sharding.live_sharding import sharded_collections
from torch import nn
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_profiler.devices.base import TimedDevice
from neuroshard_profiler.devices.cuda import CudaDevice
from neuroshard_profiler.devices.cuda_runtime import CudaRuntime
from neuroshard_profiler.records import RecordsFile

BATCH_SIZES = (256, 1024, 4096)
POOLING = (1, 10)
_TABLES, _ROWS, _COLUMNS = 8, 50_000, 64
_WARM_STEPS, _TIMED_STEPS = 4, 20
_LEARNING_RATE, _GRADIENT = 0.01, 1e-3
SPIN_CYCLES = 2**26
"""34 ms at 1.98 GHz: a slow host queues a step of two collections in 10."""
_PARTS = (
    TimedPart.INPUT_COMMUNICATION,
    TimedPart.FORWARD_COMPUTE,
    TimedPart.BACKWARD_COMPUTE,
    TimedPart.FORWARD_COMMUNICATION,
    TimedPart.BACKWARD_COMMUNICATION,
)


def collection_samples() -> Iterator[CollectionSample]:
    """Yield the samples to train."""
    for batch_size in BATCH_SIZES:
        for pooling in POOLING:
            yield CollectionSample(
                batch_size_per_device=batch_size, num_tables=_TABLES, embedding_dim=_COLUMNS, pooling_factor=pooling
            )


def measured_collections(
    sample: CollectionSample, device: torch.device, cuda: CudaRuntime | None = None
) -> CollectionTimes:
    """Time the steps of one and of two collections; every rank calls this and gets the same answer.

    Args:
        sample: what is trained.
        device: trains it.
        cuda: the device's queue, in which it spins. None: it has none, a call returns when it is done.
    """
    trained = [_Trained(sample, num_collections, device, cuda) for num_collections in (1, 2)]
    for step in range(_WARM_STEPS + _TIMED_STEPS):
        for each in trained if step % 2 else reversed(trained):
            each.step()
    one, two = (each.parts() for each in trained)
    return CollectionTimes(one=one, two=two)


def collect_collections(
    device: TimedDevice,
    path: Path,
    *,
    measure: Callable[[CollectionSample, torch.device, CudaRuntime | None], CollectionTimes] = measured_collections,
) -> None:
    """Measure with all ranks each sample that the file lacks; rank 0 appends the records.

    Raises:
        RecordsError: on rank 0: the file is broken or holds another machine's records.
    """
    with ExitStack() as stack:
        file = stack.enter_context(RecordsFile(path, source=device.source)) if dist.get_rank() == 0 else None
        first = [len(file.records) if file else 0]
        dist.broadcast_object_list(first, src=0)
        cuda = device.cuda if isinstance(device, CudaDevice) else None
        environment = device.environment(("fbgemm-gpu", "fbgemm-gpu-cpu", "torchrec"))
        for sample in list(collection_samples())[first[0] :]:
            times = measure(sample, device.torch, cuda)
            if file is not None:
                file.append(
                    ProfileRecord(
                        source=device.source,
                        collections=sample,
                        collection_times=times,
                        num_repeats=_TIMED_STEPS,
                        environment=environment,
                    )
                )


class _PooledBags(nn.Module):
    """Pooled embeddings of collections side by side."""

    def __init__(self, names: Sequence[Sequence[str]], sample: CollectionSample) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            EmbeddingBagCollection(
                tables=[
                    EmbeddingBagConfig(
                        name=name, num_embeddings=_ROWS, embedding_dim=sample.embedding_dim, feature_names=[name]
                    )
                    for name in members
                ],
                device=torch.device("meta"),
            )
            for members in names
        )

    def forward(self, lookups: Sequence[KeyedJaggedTensor]) -> torch.Tensor:
        """Return [samples, columns of all tables]."""
        awaited = [tables(own) for tables, own in zip(self.tables, lookups, strict=True)]  # all exchanges begin first
        return torch.cat([each.values() for each in awaited], dim=1)


class _Trained:
    """Tables in some collections, and the marks of their steps."""

    def __init__(
        self, sample: CollectionSample, num_collections: int, device: torch.device, cuda: CudaRuntime | None
    ) -> None:
        world = dist.group.WORLD
        assert world is not None, "the ranks have met"
        names = [f"t{index}" for index in range(sample.num_tables)]
        members = [names[first::num_collections] for first in range(num_collections)]
        model = _PooledBags(members, sample)
        sharder = embedding_sharder(Optimizer.ROWWISE_ADAGRAD, learning_rate=_LEARNING_RATE, device=device)
        plans = {
            f"tables.{number}": construct_module_sharding_plan(
                tables,
                per_param_sharding={
                    name: table_wise(rank=position % world.size(), compute_kernel=EmbeddingComputeKernel.FUSED.value)
                    for position, name in enumerate(members[number])
                },
                sharder=sharder,
                world_size=world.size(),
                device_type=device.type,
            )
            for number, tables in enumerate(model.tables)
        }
        self._model = DistributedModelParallel(
            model,
            env=ShardingEnv.from_process_group(world),
            device=device,
            plan=ShardingPlan(plan=plans),
            sharders=[sharder],
        )
        self._collections = sharded_collections(self._model)
        self._cuda = cuda
        self._few_bytes = torch.zeros(1, device=device)
        self._clock = clock_of(device)
        self._marks = StepMarks(self._clock)
        EmbeddingTimers(self._model, self._marks)
        self._steps: list[MarkedStep] = []
        samples, pooling = sample.batch_size_per_device, sample.pooling_factor
        self._lookups = [
            KeyedJaggedTensor(
                keys=own,
                values=torch.randint(_ROWS, (len(own) * samples * pooling,), device=device),
                lengths=torch.full((len(own) * samples,), pooling, device=device),
            )
            for own in members
        ]
        self._gradient = torch.full((samples, sample.num_tables * sample.embedding_dim), _GRADIENT, device=device)

    def step(self) -> None:
        """Look up, and update. All ranks must call this."""
        dist.barrier()
        self._marks.start()
        begun = self._clock.mark()
        pooled = self._model(self._lookups) if self._cuda is None else self._queued(self._cuda)
        torch.autograd.backward(pooled, self._gradient)
        self._steps.append(MarkedStep(begun, self._clock.mark(), (), tuple(self._marks.stop())))

    def _queued(self, cuda: CudaRuntime) -> torch.Tensor:
        """Return the same pooled embeddings of a device that spins until the host has queued all that makes them."""
        entered = self._marks.mark()
        every = [(each, each.create_context()) for each in self._collections]
        begun = [each.input_dist(context, own) for (each, context), own in zip(every, self._lookups, strict=True)]
        arrived = [indices.wait().wait() for indices in begun]
        self._marks.end(TimedPart.INPUT_COMMUNICATION, None, entered)
        cuda.spin(SPIN_CYCLES)
        dist.all_reduce(self._few_bytes)  # is queued too, so that all devices begin together
        awaited = [
            each.compute_and_output_dist(context, own) for (each, context), own in zip(every, arrived, strict=True)
        ]
        return torch.cat([each.values() for each in awaited], dim=1)

    def parts(self) -> CollectionParts:
        """Return the medians over the steps, but for the first, of the means over ranks."""
        found = [step_times(self._clock, step) for step in self._steps[_WARM_STEPS:]]
        own = [[each[part.value] for part in _PARTS] for each in found]
        everyone: list[list[list[float]]] = [[]] * dist.get_world_size()
        dist.all_gather_object(everyone, own)
        indices, *compute, forward, backward = np.median(np.mean(everyone, axis=0), axis=0).tolist()
        return CollectionParts(indices_ms=indices, compute_ms=(compute[0], compute[1]), exchange_ms=(forward, backward))
