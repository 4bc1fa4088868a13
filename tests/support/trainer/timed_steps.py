"""Steps of a sharded model of one process, under a step reporter."""

import time
from typing import Any

import torch
from neuroshard_trainer.measure.step_reporter import StepReporter
from support.trainer.trainer_models import lookups_of_zero
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLES = 64
MEMORY = ("peak_memory_bytes", "peak_reserved_bytes", "device_used_bytes")
"""Fields of RankTimes that are of a moment."""


def batch() -> tuple[torch.Tensor, KeyedJaggedTensor]:
    """Return dense features and one lookup of each table."""
    return torch.zeros(SAMPLES, 3), lookups_of_zero(SAMPLES)


def trained(model: DistributedModelParallel, reporter: StepReporter, num_steps: int, *, wait_ms: float = 0) -> None:
    """Take some steps; the data comes late by ``wait_ms``."""

    def batches() -> Any:
        for _ in range(num_steps):
            until = time.perf_counter() + wait_ms / 1000
            while time.perf_counter() < until:
                pass
            yield batch()

    for dense, lookups in reporter.steps(batches()):
        torch.autograd.backward(model(dense, lookups).sum())
