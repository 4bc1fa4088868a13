"""TorchRec's TrainPipelineSparseDist around this trainer's model: the indices of the next batches travel during a step.

    step        n                             n+1
    batch n     lookups, dense part, backward
    batch n+1   all-to-all of the indices     lookups, dense part, backward
    batch n+2   copy to the device            all-to-all of the indices

Only indices travel ahead, never weights or gradients, so the numbers are those of the plain loop, bit by bit.
"""

from collections.abc import Callable, Iterator

import torch
from torchrec.distributed.model_parallel import DistributedModelParallel
from torchrec.distributed.train_pipeline.train_pipelines import TrainPipelineSparseDist

from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from neuroshard_trainer.variants import summed

Loss = Callable[[Batch], torch.Tensor]


class BatchPipeline:
    """Trains on batches that it takes in ahead.

    Args:
        model: to be traced by torch.fx down to its tables.
        optimizer: is called as in a plain loop.
        loss: of one batch, with a graph for its gradients.
        device: to compute on.
    """

    def __init__(
        self, model: DistributedModelParallel, optimizer: StepOptimizer, loss: Loss, device: torch.device
    ) -> None:
        def forward(batch: Batch | None) -> tuple[torch.Tensor, torch.Tensor]:
            assert batch is not None, "progress ends before the batches do"
            found = loss(batch)
            return summed(found), found.detach()

        self._pipeline = TrainPipelineSparseDist(
            model,
            optimizer,
            device,
            custom_model_fwd=forward,
            dmp_collection_sync_interval_batches=None,  # the optimizer averages copies, when that is due
        )

    def progress(self, batches: Iterator[Batch]) -> torch.Tensor:
        """Take a step and return its loss. Raises StopIteration once all batches are used."""
        loss: torch.Tensor = self._pipeline.progress(batches)
        return loss

    def detach(self) -> None:
        """Let the model compute batches that are not from the pipeline; the next step goes on with what is inside."""
        self._pipeline.detach()
