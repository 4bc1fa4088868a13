"""One of several ranks: trains a job, and records the samples of each step by their ids, which table ``user`` has."""

from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from neuroshard_trainer.__main__ import main as train
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.training import TrainingLoop


def main(folder: str, arguments: Sequence[str]) -> int:
    """Train; each rank appends a line per step to a file of its own: the step before, and the ids."""
    loss_of = TrainingLoop._loss

    def recorded(loop: TrainingLoop, batch: Batch) -> torch.Tensor:
        ids = batch.lookups["user"].values().tolist()
        with Path(folder, f"{dist.get_world_size()}-{dist.get_rank()}.ids").open("a") as file:
            file.write(" ".join(map(str, (loop.step, *ids))) + "\n")
        return loss_of(loop, batch)

    setattr(TrainingLoop, "_loss", recorded)  # noqa: B010 - a method in place of another
    return train(arguments)
