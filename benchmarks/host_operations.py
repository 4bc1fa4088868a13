"""What the host does in a step of TorchRec: torch's operations, and processor time, counted on two processes of a CPU.

    python -m benchmarks host_operations

A small model trains under TorchRec's TrainPipelineSparseDist, with row counts, widths, and batches so small that
kernels take next to nothing: what is left is Python, dispatch, and autograd. Each setting has other collections,
sharding types, tables, types, and dense layers. Operations are events of torch's profiler in one step. Processor time
is that of the thread that trains, without the profiler, so that gloo's threads and other processes are not in it: the
median step of each round, of the least disturbed round. Parts are fitted to settings alone that are not held out.
"""

import argparse
import dataclasses
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from scipy.optimize import nnls
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.sharding_plan import (
    column_wise,
    construct_module_sharding_plan,
    data_parallel,
    row_wise,
    table_wise,
)
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.streamable import Pipelineable

from benchmarks.results_file import cpu_model, hardware_slug, write_result
from benchmarks.sharded_training import WORLD_SIZE, measured_by_ranks

ROWS, COLUMNS, BATCH_SIZE, NUM_DENSE, WIDTH = 20, 8, 2, 4, 8
STEPS, WARM_UP_STEPS, ROUNDS = 30, 8, 6
CPU = torch.device("cpu")
PARTS = (
    *("step", "collection", "columns", "rows", "copies", "call", "encoded exchange", "column_table", "feature"),
    *("linear layer", "activation"),
)
"""What settings have in different numbers. Columns, rows, and copies are collections times sharding types: TorchRec
exchanges and looks up the tables of each type on their own."""
QUIET = re.compile(
    r"autograd::|torch::|profiler|aten::(as_strided|view|_?reshape|empty|to$|detach|slice|select|narrow|t$|transpose|numpy_T"
    r"|permute|expand|resolve_|item|_local_scalar|lift_fresh|unsqueeze|squeeze|alias|split|chunk|new_empty|flatten|linear"
    r"|zeros$|contiguous|result_type|is_|set_|_to_copy|clone|ones_like|zeros_like|empty_like)"
)
"""Operations that launch no kernel themselves."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """One model. Tables of each collection by type: table, column, row, copy, and half for table_wise in FP16."""

    collections: Sequence[Mapping[str, int]]
    layers: int = 1
    activations: int = 1
    """After each layer."""
    narrow: bool = False
    """Whether exchanges are encoded in BF16."""
    held_out: bool = False

    @property
    def counts(self) -> Sequence[int]:
        """The numbers of PARTS."""
        each = self.collections
        types = [{_TYPE[kind] for kind in tables} for tables in each]
        columns, rows, copies = (
            sum(bool(_FAMILY[kind] == family) for found in types for kind in found)
            for family in ("columns", "rows", "copies")
        )
        calls = sum(len(tables) for tables in each)
        encoded = columns + rows if self.narrow else 0
        cut = sum(tables.get("column", 0) for tables in each)
        features = sum(sum(tables.values()) for tables in each)
        exchanges = (columns, rows, copies, calls, encoded)
        return (1, len(each), *exchanges, cut, features, self.layers, self.layers * self.activations)

    def __str__(self) -> str:
        parts = ["+".join(f"{number} {kind}" for kind, number in tables.items()) for tables in self.collections]
        dense = f"{self.layers} layers" + (f" with {self.activations} activations" if self.activations > 1 else "")
        return f"{', then '.join(parts)}; {dense}{', BF16 exchanges' if self.narrow else ''}"


_TYPE = {"table": "table", "half": "table", "column": "column", "row": "row", "copy": "copy"}
_FAMILY = {"table": "columns", "column": "columns", "row": "rows", "copy": "copies"}
SETTINGS = (
    Setting(collections=[{"table": 4}]),
    Setting(collections=[{"table": 104}]),
    Setting(collections=[{"table": 4}], layers=20),
    Setting(collections=[{"table": 4}], layers=20, activations=4),
    Setting(collections=[{"table": 4}], narrow=True),
    Setting(collections=[{"table": 4, "row": 4}], narrow=True),
    Setting(collections=[{"table": 4}, {"table": 4}]),
    Setting(collections=[{"table": 4}, {"table": 4}, {"table": 4}, {"table": 4}]),
    Setting(collections=[{"table": 2, "half": 2}]),
    Setting(collections=[{"table": 2, "half": 2}, {"table": 2, "half": 2}]),
    Setting(collections=[{"table": 2, "half": 2, "row": 4}]),
    Setting(collections=[{"column": 4}]),
    Setting(collections=[{"column": 40}]),
    Setting(collections=[{"row": 4}]),
    Setting(collections=[{"row": 4}, {"row": 4}]),
    Setting(collections=[{"copy": 4}]),
    Setting(collections=[{"copy": 4}, {"copy": 4}]),
    Setting(collections=[{"table": 4, "row": 4}]),
    Setting(collections=[{"table": 4, "copy": 4}]),
    Setting(collections=[{"table": 4, "row": 4, "copy": 4}], layers=4),
    Setting(collections=[{"table": 26}], layers=9, held_out=True),
    Setting(collections=[{"table": 13, "row": 7, "copy": 6}], layers=8, held_out=True),
    Setting(collections=[{"table": 10, "column": 10}, {"row": 6}, {"copy": 10}], layers=8, held_out=True),
    Setting(collections=[{"table": 26, "row": 4}], layers=7, activations=2, narrow=True, held_out=True),
    Setting(collections=[{"table": 30, "half": 20}, {"table": 20, "row": 10}], layers=3, held_out=True),
)


def main() -> None:
    """Measure, and write the result; or be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure is not None:
        measure(options.measure)
        return
    load = os.getloadavg()[0]
    measured = measured_by_ranks(Path(__file__))
    print(
        write_result(
            "host-operations", report(measured["settings"], measured["alone"], load=load), hardware=hardware_slug()
        )
    )


class _Batch(Pipelineable):  # type: ignore[misc] # torchrec, untyped
    """Samples with one lookup of each feature."""

    def __init__(self, dense: torch.Tensor, lookups: KeyedJaggedTensor) -> None:
        self.dense = dense
        self.lookups = lookups

    def to(self, device: torch.device, non_blocking: bool = False) -> "_Batch":  # noqa: FBT001, FBT002 - TorchRec's
        """Return the batch on a device."""
        return _Batch(
            self.dense.to(device, non_blocking=non_blocking), self.lookups.to(device, non_blocking=non_blocking)
        )

    def record_stream(self, stream: Any) -> None:  # noqa: ANN401 - a CPU has none
        """Do nothing: a CPU has no streams."""


class _Model(nn.Module):
    """Collections side by side, below linear layers."""

    def __init__(self, collections: Sequence[EmbeddingBagCollection], num_layers: int, num_activations: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(collections)
        width = NUM_DENSE + sum(each.embedding_dim for one in collections for each in one.embedding_bag_configs())
        layers: list[nn.Module] = []
        for _ in range(num_layers):
            layers += [nn.Linear(width, WIDTH), *(nn.ReLU() for _ in range(num_activations))]
            width = WIDTH
        self.over = nn.Sequential(*layers)

    def forward(self, batch: _Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a loss, and the same without its graph."""
        pooled = [collection(batch.lookups).values() for collection in self.tables]
        loss = self.over(torch.cat([batch.dense, *pooled], dim=1)).sum()
        return loss, loss.detach()


def measure(result: Path) -> None:
    """Train every setting on this rank, and write rank 0's counts and times."""
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = [{"milliseconds": []} for _ in SETTINGS]
    for _ in range(ROUNDS):  # in turns, so that a busy minute does not hit one setting alone
        for setting, numbers in zip(SETTINGS, found, strict=True):
            operations, launches, times_ms = _measured(setting)
            numbers["operations"], numbers["launches"] = operations, launches
            numbers["milliseconds"].append(times_ms)
    alone = _call_alone()
    if dist.get_rank() == 0:
        result.write_text(json.dumps({"settings": found, "alone": alone}), encoding="utf-8")
    dist.barrier()


def _measured(setting: Setting) -> tuple[int, int, list[float]]:
    """Return operations of a step, those that launch a kernel, and processor milliseconds of steps."""
    model, features = _sharded(setting)
    optimizer = torch.optim.SGD(
        [weight for name, weight in model.named_parameters() if "over." in name], lr=0.01, foreach=True
    )
    pipeline = TrainPipelineSparseDist(model, optimizer, CPU, execute_all_batches=True)
    batches = iter(list(_batches(features, WARM_UP_STEPS + STEPS + 4)))
    for _ in range(WARM_UP_STEPS):
        pipeline.progress(batches)
    times_ms = []
    for _ in range(STEPS):
        start = time.thread_time()
        pipeline.progress(batches)
        times_ms.append(1e3 * (time.thread_time() - start))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        pipeline.progress(batches)
    events = [event for event in profiler.events() if "::" in event.name]
    launches = sum(not QUIET.match(event.name) and not _has_launches_below(event) for event in events)
    return len(events), launches, times_ms


def _has_launches_below(event: Any) -> bool:  # noqa: ANN401 - torch's, without types
    return any("::" in child.name and not QUIET.match(child.name) for child in event.cpu_children)


def _call_alone() -> tuple[float, float]:
    """Return processor milliseconds of a lookup module's call by itself, forward and backward, as profiles measure."""
    place = (ROWS, COLUMNS, EmbeddingLocation.HOST, ComputeDevice.CPU)
    module = SplitTableBatchedEmbeddingBagsCodegen([place] * 4, optimizer=EmbOptimType.EXACT_SGD, learning_rate=0.01)
    indices, offsets = torch.randint(0, ROWS, (4 * BATCH_SIZE,)), torch.arange(4 * BATCH_SIZE + 1)
    times = []
    for _ in range(ROUNDS * STEPS):
        start = time.thread_time()
        pooled = module(indices, offsets)
        middle = time.thread_time()
        pooled.backward(torch.ones_like(pooled))
        times.append((1e3 * (middle - start), 1e3 * (time.thread_time() - middle)))
    forward, backward = (median(each) for each in zip(*times, strict=True))
    return forward, backward


def _sharded(setting: Setting) -> tuple[DistributedModelParallel, list[str]]:
    """Return a setting's model on both ranks, and its features."""
    collections, plans, features = [], {}, list[str]()
    codecs = get_qcomm_codecs_registry(
        QCommsConfig(forward_precision=CommType.BF16, backward_precision=CommType.BF16), device=CPU
    )
    sharder = EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs if setting.narrow else None)
    for number, tables in enumerate(setting.collections):
        configs, kinds = [], {}
        for kind, count in tables.items():
            for _ in range(count):
                name = f"t{len(features)}"
                features.append(f"f{len(features)}")
                configs.append(
                    EmbeddingBagConfig(
                        name=name,
                        num_embeddings=ROWS,
                        embedding_dim=COLUMNS,
                        feature_names=[features[-1]],
                        data_type=DataType.FP16 if kind == "half" else DataType.FP32,
                    )
                )
                kinds[name] = _kind(kind, rank=len(features) % WORLD_SIZE)
        collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": 0.01})
        plans[f"tables.{number}"] = construct_module_sharding_plan(
            collection, kinds, sharder=sharder, local_size=WORLD_SIZE, world_size=WORLD_SIZE, device_type="cpu"
        )
        collections.append(collection)
    world = dist.group.WORLD
    assert world is not None
    model = DistributedModelParallel(
        _Model(collections, setting.layers, setting.activations),
        env=ShardingEnv.from_process_group(world),
        device=CPU,
        plan=ShardingPlan(plan=plans),
        sharders=[sharder],
    )
    return model, features


def _kind(name: str, *, rank: int) -> Any:  # noqa: ANN401 - TorchRec's generators
    match name:
        case "column":
            return column_wise(ranks=list(range(WORLD_SIZE)))
        case "row":
            return row_wise()
        case "copy":
            return data_parallel()
        case _:
            return table_wise(rank=rank)


def _batches(features: Sequence[str], count: int) -> Iterator[_Batch]:
    number = BATCH_SIZE * len(features)
    for _ in range(count):
        lookups = KeyedJaggedTensor(
            keys=list(features), values=torch.randint(0, ROWS, (number,)), lengths=torch.ones(number, dtype=torch.int32)
        )
        yield _Batch(torch.ones(BATCH_SIZE, NUM_DENSE), lookups)


def report(measured: Sequence[Mapping[str, Any]], alone_ms: Sequence[float], *, load: float) -> list[str]:
    """Return the lines of the result."""
    operations, launches = (np.array([float(each[kind]) for each in measured]) for kind in ("operations", "launches"))
    medians = [[median(times_ms) for times_ms in each["milliseconds"]] for each in measured]
    lower = np.array([min(each) for each in medians])
    counts = np.array([each.counts for each in SETTINGS], dtype=np.float64)
    fitted = np.array([not each.held_out for each in SETTINGS])
    parts_ms, _ = nnls(counts[fitted] / lower[fitted, None], np.ones(fitted.sum()))
    parts_operations, _ = nnls(counts[fitted] / operations[fitted, None], np.ones(fitted.sum()))
    parts_launches, _ = nnls(counts[fitted] / launches[fitted, None], np.ones(fitted.sum()))
    rows = []
    for setting, each, count, ms in zip(SETTINGS, medians, operations, lower, strict=True):
        numbers = np.array(setting.counts)
        predicted, said = float(numbers @ parts_ms), float(numbers @ parts_operations)
        spread = f"{ms:.2f} ({median(each):.2f} to {max(each):.2f})"
        rows.append(
            f"| {setting} | {'held out' if setting.held_out else 'fitted'} | {count:.0f} | {said:.0f} | {spread} | "
            f"{predicted:.2f} | {100 * (predicted / ms - 1):+.0f} % |"
        )
    errors = [abs(float(counts[place] @ parts_ms) / lower[place] - 1) for place in np.flatnonzero(~fitted)]
    machine = (
        f"Machine: {cpu_model()}, two cores, shared with other work; load average at the start {load:.1f}, at the end "
        f"{os.getloadavg()[0]:.1f}."
    )
    return [
        "# Host operations of a training step",
        "",
        machine,
        "",
        *str(__doc__).splitlines()[4:],
        "",
        f"{ROUNDS} rounds of {STEPS} steps each. Processor ms: least round (median to highest round).",
        "",
        "| setting | basis | operations | as fitted | processor ms | as fitted | error |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Held out: error of processor time at most {100 * max(errors):.0f} %, mean {100 * np.mean(errors):.0f} %.",
        "",
        f"A lookup module's call alone: {alone_ms[0]:.3f} ms forward, {alone_ms[1]:.3f} ms backward.",
        "",
        "| part | operations | of them launch a kernel | processor ms |",
        "|---|---|---|---|",
        *(
            f"| {name} | {count:.1f} | {number:.1f} | {ms:.4f} |"
            for name, count, number, ms in zip(PARTS, parts_operations, parts_launches, parts_ms, strict=True)
        ),
    ]


if __name__ == "__main__":
    main()
