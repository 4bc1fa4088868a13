"""What torch's allocator gives out at most in each of some real training steps, on one of two processes.

Started by ``memory_error`` and ``dense_memory_error``.

Arguments: files of a job and of a plan in turn, and the folder for the results, one file of each rank.
"""

import ctypes
import gc
import json
import logging
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from neuroshard_api.documents.document import read_data
from neuroshard_api.documents.plan import GivenPlan, any_plan
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.order import SampleOrder
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.data.synthetic import SyntheticSource
from neuroshard_trainer.dense.optimizers import dense_optimizer, embedding_sharder, replicated_optimizer
from neuroshard_trainer.dense.parallel import DenseParallelWrapper
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
from neuroshard_trainer.sharding.plan_adapter import sharding_plan
from torch._C._profiler import _EventType
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.profiler import ProfilerActivity, profile, record_function
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.types import ShardingEnv
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

NUM_STEPS = 5
STEP = "step"
"""Name of a step in the profiler's events."""
CPU = torch.device("cpu")


def main(arguments: Sequence[str]) -> None:
    """Train each job under its plan, and write the peaks of this rank by step."""
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    count_on_all_threads()
    *files, folder = arguments
    peaks = [
        _step_peaks(read_job(Path(job)), any_plan(read_data(Path(plan)), where=plan))
        for job, plan in zip(files[::2], files[1::2], strict=True)
    ]
    (Path(folder) / f"{dist.get_rank()}.json").write_text(json.dumps(peaks))
    dist.barrier()


def _step_peaks(job: DLRMTrainingJob, plan: GivenPlan) -> list[int]:
    """Return the most bytes that were allocated at once, of each step."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        torch.empty(1)  # its event tells what was allocated before
        _train(job, plan)
    return step_peaks(profiler)


def step_peaks(profiler: profile) -> list[int]:
    """Return the most bytes that were allocated at once in each step, above what was there when the profile began."""
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    tree = results.experimental_event_tree()
    totals = sorted(each for root in tree for each in _allocated(root))
    starts = sorted(root.start_time_ns for root in tree if root.name == STEP)
    peaks = [0] * len(starts)
    for time, total in totals:
        if step := bisect_right(starts, time):
            peaks[step - 1] = max(peaks[step - 1], total - totals[0][1])
    return peaks


def _train(job: DLRMTrainingJob, plan: GivenPlan) -> None:
    _, step = planned_training(job, plan)
    for batch in batches_of(job, plan, NUM_STEPS):
        with record_function(STEP):
            step(_in_torchs_memory(batch))


def planned_training(job: DLRMTrainingJob, plan: GivenPlan) -> tuple[DistributedModelParallel, Callable[[Batch], None]]:
    """Return a job's model under a plan, and what takes a step on a batch. All ranks must call this."""
    spec, tables = job.spec, plan.request.tables
    world = dist.group.WORLD
    assert world is not None
    model = DistributedModelParallel(
        RecommendationModel(spec.model, tables.tables),
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=sharding_plan(plan, module_path=TABLES_PATH, compute_device="cpu"),
        sharders=[embedding_sharder(plan.request.optimizer, learning_rate=0.01, device=CPU)],
        data_parallel_wrapper=None if plan.dense is None else DenseParallelWrapper(plan),
    )
    optimizer = dense_optimizer(model, spec.training, tables_path=TABLES_PATH)
    copies = replicated_optimizer(model, plan.request.optimizer, learning_rate=0.01)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        if copies is not None:
            copies.zero_grad()
        loss = binary_cross_entropy_with_logits(model(batch.dense, batch.lookups), batch.labels)
        torch.autograd.backward(loss)
        optimizer.step()
        if copies is not None:
            copies.step()

    return model, step


def batches_of(job: DLRMTrainingJob, plan: GivenPlan, num_steps: int) -> list[Batch]:
    """Return this rank's synthetic batches."""
    size, num_dense = job.spec.model.samples_per_device, job.spec.model.num_dense_features
    features = features_of(plan.request.tables.tables)
    count = num_steps * dist.get_world_size() * size
    source = SyntheticSource(plan.request.tables, features, num_dense=num_dense, num_samples=count, seed=0)
    order = SampleOrder(source.block_sizes, validation_percent=0, seed=0, shuffle=False)
    maker = BatchMaker(source, order, features, rank=dist.get_rank(), world_size=dist.get_world_size(), batch_size=size)
    keys = [feature.name for feature in features]
    return [Batch.of(maker.training(index * maker.global_batch_size), keys) for index in range(num_steps)]


def _in_torchs_memory(batch: Batch) -> Batch:
    """Return a copy of a batch, which torch allocates as it does the copy to a GPU; batches are NumPy's otherwise."""
    lookups = batch.lookups
    return Batch(
        dense=batch.dense.clone(),
        lookups=KeyedJaggedTensor(
            keys=lookups.keys(),
            values=lookups.values().clone(),
            lengths=lookups.lengths().clone(),
            length_per_key=lookups.length_per_key(),
        ),
        labels=batch.labels.clone(),
        num_real=batch.num_real,
    )


def _allocated(event: Any) -> Iterator[tuple[int, int]]:  # noqa: ANN401 - torch gives no type
    """Yield time and total of what was allocated, after each allocation."""
    if event.tag == _EventType.Allocation and event.extra_fields.device.type == "cpu":
        yield event.start_time_ns, event.extra_fields.total_allocated
    for child in event.children:
        yield from _allocated(child)


def count_on_all_threads() -> None:
    """Let torch's allocator count what any thread frees: gloo's threads are often the last to hold a buffer.

    Without it the count takes part in the threads that are profiled alone, and what others free is never subtracted.
    """
    library = Path(torch.__file__).parent / "lib" / "libc10.so"
    ctypes.c_bool.in_dll(ctypes.CDLL(str(library)), "FLAGS_caffe2_report_cpu_memory_usage").value = True


if __name__ == "__main__":
    main(sys.argv[1:])
