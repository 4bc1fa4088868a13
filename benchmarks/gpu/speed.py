"""The trainer's loop and a plain loop of TorchRec over the same model, plan, and batches, in turns in one process."""

import json
import os
import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu.jobs import bundle
from benchmarks.gpu.rows import CPU, WORK, attempt, device, emit


def speed() -> None:
    """Time both loops with TF32 and with BF16."""
    os.environ.update(
        RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT="29611"
    )
    if CPU:
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(0)
        dist.init_process_group("nccl", device_id=device())
    for precision in ("TF32", "BF16"):
        attempt(precision, partial(_speed, precision))
    dist.destroy_process_group()


def _speed(precision: str) -> None:  # noqa: C901, PLR0915 - both loops share the data, the plan, and the precision
    from neuroshard_api.documents.presets import preset
    from neuroshard_api.documents.request import PlanRequest
    from neuroshard_api.documents.tables import Optimizer, Table, TableSet
    from neuroshard_api.job.model import Model
    from neuroshard_api.job.training import DenseOptimizer, Precision, Training
    from neuroshard_costs.bundle import load_bundle
    from neuroshard_planner.pipeline import plan
    from neuroshard_trainer.data.batches import Batch
    from neuroshard_trainer.dense.optimizers import dense_optimizer, embedding_sharder
    from neuroshard_trainer.measure.step_reporter import StepReporter
    from neuroshard_trainer.model.dlrm import TABLES_PATH, RecommendationModel
    from neuroshard_trainer.pipeline import BatchPipeline
    from neuroshard_trainer.ranks.precision import autocast, set_matmul_precision
    from neuroshard_trainer.ranks.process import new_group
    from neuroshard_trainer.ranks.stopping import StepVote
    from neuroshard_trainer.sharding.plan_adapter import sharding_plan
    from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
    from torch.nn.functional import binary_cross_entropy_with_logits
    from torchrec.datasets.utils import Batch as TorchRecBatch
    from torchrec.distributed.model_parallel import DistributedModelParallel
    from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDist
    from torchrec.distributed.types import ShardingEnv
    from torchrec.models.dlrm import DLRM, DLRMTrain
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection
    from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

    width, batch_size, dense_features = (32, 64, 13) if CPU else (128, 8192, 13)
    dense_sizes, over_sizes = ((64,), (64,)) if CPU else ((512, 256), (1024, 1024, 512, 256))
    shapes = (
        [(1000, 1), (500, 3)]
        if CPU
        else [(4_000_000, 1), (2_000_000, 3), (1_000_000, 1), (500_000, 10)] + [(100_000, 1)] * 22
    )
    tables = TableSet(
        name="speed",
        tables=tuple(
            Table(name=f"t{index}", num_embeddings=rows, embedding_dim=width, pooling_factor=float(pooling))
            for index, (rows, pooling) in enumerate(shapes)
        ),
    )
    costs = load_bundle(bundle())
    given = plan(
        PlanRequest(
            tables=tables,
            topology=preset(bundle().name).topology(num_nodes=1, devices_per_node=1),
            batch_size_per_device=batch_size,
        ),
        bundle=costs,
    )
    WORK.mkdir(parents=True, exist_ok=True)
    plan_file = WORK / "speed-plan.json"
    plan_file.write_text(given.to_json())
    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(8):
        lengths = torch.tensor([pooling for _, pooling in shapes]).repeat_interleave(batch_size)
        values = torch.cat(
            [torch.randint(rows, (batch_size * pooling,), generator=generator) for rows, pooling in shapes]
        )
        dense = torch.randn(batch_size, dense_features, generator=generator)
        labels = torch.randint(2, (batch_size,), generator=generator).float()
        if not CPU:
            lengths, values, dense, labels = (each.pin_memory() for each in (lengths, values, dense, labels))
        lookups = KeyedJaggedTensor(
            keys=[table.name for table in tables.tables],
            values=values,
            lengths=lengths,
            length_per_key=[batch_size * pooling for _, pooling in shapes],
        )
        data.append(Batch(dense=dense, lookups=lookups, labels=labels, num_real=batch_size))
    set_matmul_precision(Precision[precision])

    def sharded(model: Any, module_path: str) -> Any:
        return DistributedModelParallel(
            model,
            env=ShardingEnv.from_process_group(dist.group.WORLD),
            device=device(),
            plan=sharding_plan(given, module_path=module_path, compute_device="cpu" if CPU else "cuda"),
            sharders=[embedding_sharder(Optimizer.ROWWISE_ADAGRAD, learning_rate=0.01, device=device())],
        )

    def public() -> Iterator[Any]:
        path = "model.sparse_arch.embedding_bag_collection"
        torch.manual_seed(0)
        model = sharded(
            DLRMTrain(
                DLRM(
                    EmbeddingBagCollection(
                        tables=[
                            EmbeddingBagConfig(
                                name=each.name,
                                num_embeddings=each.num_embeddings,
                                embedding_dim=width,
                                feature_names=[each.name],
                            )
                            for each in tables.tables
                        ],
                        device=torch.device("meta"),
                    ),
                    dense_features,
                    [*dense_sizes, width],
                    [*over_sizes, 1],
                )
            ),
            path,
        )
        own = {name: weight for name, weight in model.named_parameters() if path not in name}
        optimizer = CombinedOptimizer(
            [model.fused_optimizer, KeyedOptimizerWrapper(own, lambda weights: torch.optim.SGD(weights, lr=0.01))]
        )
        more: dict[str, Any] = {}
        if precision == "BF16":

            def forward(batch: Any) -> Any:
                with torch.autocast(device().type, dtype=torch.bfloat16):
                    return model(batch)

            more = {"custom_model_fwd": forward}
        pipeline = TrainPipelineSparseDist(model, optimizer, device(), **more)
        iterator = (
            TorchRecBatch(each.dense, each.lookups, each.labels.int() if CPU else each.labels.int().pin_memory())
            for each in _forever(data)
        )
        while True:
            yield pipeline.progress(iterator)

    def own() -> Iterator[Any]:
        training = Training(
            dense_optimizer=DenseOptimizer.SGD,
            dense_learning_rate="0.01",
            embedding_learning_rate="0.01",
            precision=Precision[precision],
        )
        settings = Model.model_construct(
            num_dense_features=dense_features, dense_arch_layer_sizes=dense_sizes, over_arch_layer_sizes=over_sizes
        )
        torch.manual_seed(0)
        model = sharded(RecommendationModel(settings, tables.tables), TABLES_PATH)
        optimizer = StepOptimizer(
            model, dense_optimizer(model, training, tables_path=TABLES_PATH), None, training, step=0
        )

        def loss_of(batch: Any) -> Any:
            with autocast(training.precision, device()):
                logits = model(batch.dense, batch.lookups)
            return binary_cross_entropy_with_logits(logits.float(), batch.labels)

        pipeline = BatchPipeline(model, optimizer, loss_of, device())
        reporter = StepReporter(model, plan_file, write=WORK / "speed-step-report.json", samples_per_step=batch_size)
        vote, losses = StepVote(new_group(60.0)), list[torch.Tensor]()
        for loss in reporter.pipelined(_forever(data), pipeline.progress):
            losses.append(loss)
            if len(losses) == 100:  # noqa: PLR2004 - as the trainer adds them up
                torch.stack(losses).sum()
                losses.clear()
            vote.wish(save_is_due=False)
            reporter.end_step()
            yield loss

    loops = {"public": public(), "own": own()}
    steps, blocks = (3, 2) if CPU else (60, 5)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for block in range(blocks + 1):
        for name, loop in loops.items():
            if not CPU:
                torch.cuda.synchronize()
            begun = time.perf_counter()
            for _ in range(steps):
                next(loop)
            if not CPU:
                torch.cuda.synchronize()
            if block:
                times[name].append(1e3 * (time.perf_counter() - begun) / steps)
    medians = {name: statistics.median(each) for name, each in times.items()}
    report = WORK / "speed-step-report.json"
    emit(
        precision=precision,
        step_ms=medians,
        blocks=times,
        ratio_of_steps_per_second=medians["public"] / medians["own"],
        memory=None
        if CPU
        else {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "free_and_total": torch.cuda.mem_get_info(),
        },
        step_report=json.loads(report.read_text()) if report.exists() else None,
    )
    for name, loop in loops.items():
        attempt(f"kernels of {name}", partial(_kernels_of, name, loop))


def _kernels_of(name: str, loop: Iterator[Any], steps: int = 5) -> None:
    """Emit what the device's kernels take of a step: the rest is the host's, which launches them."""
    if CPU:
        return
    from torch.autograd import DeviceType  # type: ignore[attr-defined] # torch documents it here
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(steps):
            next(loop)
        torch.cuda.synchronize()
    kernels = [each for each in found.key_averages() if each.device_type == DeviceType.CUDA]
    longest = sorted(kernels, key=lambda each: -each.self_device_time_total)[:25]
    emit(
        loop=name,
        kernels_ms_per_step=sum(each.self_device_time_total for each in kernels) / steps / 1e3,
        launches_per_step=sum(each.count for each in kernels) / steps,
        longest={each.key[:90]: [each.count / steps, each.self_device_time_total / steps / 1e3] for each in longest},
    )


def _forever(data: list[Any]) -> Iterator[Any]:
    while True:
        yield from data
