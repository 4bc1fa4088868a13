"""Trains a job under plans in turns."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from neuroshard_api.documents.training_comparison import TrainingComparison, file_names
from neuroshard_api.job.sizes import under_plan
from neuroshard_api.job.training_job import DLRMTrainingJob

from neuroshard_trainer.communication.gradient_codec import with_gradient_codec
from neuroshard_trainer.compare.comparison import Contestant, compare_contestants
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.drift import with_statistics
from neuroshard_trainer.data.readers import start_server
from neuroshard_trainer.data.training_data import open_training_data, readers_of
from neuroshard_trainer.dense.optimizers import dense_optimizer, replicated_optimizer
from neuroshard_trainer.model.dlrm import TABLES_PATH
from neuroshard_trainer.ranks.failures import lost_peers
from neuroshard_trainer.ranks.precision import autocast, set_matmul_precision
from neuroshard_trainer.ranks.process import Launched, Process, start_process
from neuroshard_trainer.run import sharded_job_model
from neuroshard_trainer.sharding.live_sharding import prove_sharding
from neuroshard_trainer.sharding.plan_adapter import read_plan, require_lasting_gradients
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer


def compare(
    job: DLRMTrainingJob, plan_files: Sequence[Path], *, data_dir: Path, run_dir: Path, rounds: int, steps: int
) -> tuple[TrainingComparison, bool]:
    """Train a job under each plan in turns, from equal weights on equal batches. All ranks must call this.

    Steps follow each other (no pipeline), so that a plan's exchange of indices counts.

    Args:
        job: what to train.
        plan_files: the first is what the others are compared with; named by their files.
        data_dir: what relative paths of spec.data start from.
        run_dir: for what cannot be written next to the data.
        rounds: counted ones.
        steps: of each round and plan.

    Returns:
        The comparison, and whether this is the first rank.

    Raises:
        ExpectedError: of the kind that says what to do.
    """
    launched = Launched.from_environment()
    inline = job.spec.model.inline_tables(job.metadata.name)
    tables = None if inline is None else inline.tables
    plans = [read_plan(file, world_size=launched.world_size, tables=tables) for file in plan_files]
    job = under_plan(job, plans[0])
    for plan in plans:
        require_lasting_gradients(plan)
    process = start_process(job, plans[0], launched, "auto", nccl_log_folder=run_dir)
    set_matmul_precision(job.spec.training.precision)
    if readers_of(job, process):
        start_server()
    made_for = with_statistics(plans[0].resolved.tables, inline)
    data = open_training_data(job, made_for, process, root=data_dir, spare=run_dir)
    contestants = {}
    for name, plan in zip(file_names(plan_files), plans, strict=True):
        model = sharded_job_model(job, plan, process)
        prove_sharding(model, plan, process.group)
        with_gradient_codec(model, plan, device=process.device)
        training = job.spec.training
        of_copies = replicated_optimizer(
            model,
            job.spec.model.embedding_optimizer.optimizer,
            learning_rate=float(training.embedding_learning_rate),
        )
        of_dense = dense_optimizer(model, training, tables_path=TABLES_PATH)
        optimizer = StepOptimizer(model, of_dense, of_copies, training, step=0)
        positions = range(0, (rounds + 1) * steps * data.global_batch_size, data.global_batch_size)
        batches = data.deduplicated(plan.deduplication or (), plan.resolved.wire).training(positions, process.device)
        contestants[name] = Contestant(_Steps(job, process, model, optimizer, batches), model, of_copies)
    with lost_peers(lambda: "while plans were compared", trains=lambda: True):
        found = compare_contestants(contestants, rounds=rounds, steps_per_round=steps, device=process.device)
    return found, process.is_first


class _Steps:
    """The steps of one model."""

    def __init__(
        self,
        job: DLRMTrainingJob,
        process: Process,
        model: torch.nn.Module,
        optimizer: StepOptimizer,
        batches: Iterator[Batch],
    ) -> None:
        self._precision = job.spec.training.precision
        self._device = process.device
        self._model = model
        self._optimizer = optimizer
        self._batches = batches

    def __call__(self) -> torch.Tensor:
        """Train on the next batch and return its loss."""
        batch = next(self._batches)
        self._optimizer.zero_grad()
        with autocast(self._precision, self._device):
            logits = self._model(*batch.inputs)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.float(), batch.labels)
        torch.autograd.backward(loss)
        self._optimizer.step()
        return loss.detach()
