"""What rank 0 says before a training: where job, plan, data and folder are not what one would expect together."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.job.plan_request import dense_signature
from neuroshard_api.job.sizes import LEAST_STEPS
from neuroshard_api.job.training_job import DLRMTrainingJob

from neuroshard_trainer.ranks.process import Process
from neuroshard_trainer.schedule import Schedule
from neuroshard_trainer.state.checkpoint import MANIFEST_FILE

EXPECTED_REPEATS = 0.5
"""Share of the repeats that a plan expects; a first batch with fewer is warned of."""
SHOWN_REPEATS = 8
"""Features whose repeats in the first batch are logged: those that repeat most."""

logger = logging.getLogger(__name__)


def warn_of_earlier_checkpoints(folder: Path) -> None:
    """Name the checkpoint of an earlier run that a later start with another policy would resume from."""
    newest = max((path.parent for path in folder.glob(f"*/{MANIFEST_FILE}")), default=None)
    if newest is not None:
        logger.warning(
            "spec.experimental.checkpoint.resumePolicy: None trains from the start; %s of an earlier run stays until "
            "this run is past its step, and Latest would resume from it; hint: remove it, or set "
            "spec.checkpoint.folder",
            newest,
        )


def warn_of_other_conditions(job: DLRMTrainingJob, plan: GivenPlan, process: Process) -> None:
    """Log the differences between the job and the conditions of the plan's predicted costs."""
    found = {
        "batchSizePerDevice": (plan.request.batch_size_per_device, job.spec.model.samples_per_device),
        "embeddingOptimizer": (", ".join(plan.request.optimizers), job.spec.model.embedding_optimizer.optimizer.value),
    }
    if plan.request.dense is not None and process.is_first:
        for problem in plan.request.dense.other_settings(dense_signature(job)):
            logger.warning("the plan's dense part %s: its memory will differ from the ledger", problem)
    for field, (planned, wanted) in found.items():
        if planned != wanted and process.is_first:
            logger.warning(
                "the plan is for %s %s, the job has %s: measured times will differ from the prediction",
                field, planned, wanted,
            )  # fmt: skip


def log_batch(job: DLRMTrainingJob) -> None:
    """Log the batch that the plan chose, and the learning rates for it."""
    training = job.spec.training
    logger.info(
        "spec.model.batchSizePerDevice: Auto: %s samples per device by the plan; learning rates of embeddings %s, of "
        "the dense part %s",
        f"{job.spec.model.samples_per_device:,}", training.embedding_learning_rate, training.dense_learning_rate,
    )  # fmt: skip


def warn_of_few_steps(plan: GivenPlan, schedule: Schedule, process: Process) -> None:
    """Log that an epoch has few steps of a batch that was chosen without knowing the number of samples."""
    num_samples, num_steps = schedule.epoch_samples, schedule.epoch_samples // schedule.global_batch_size
    if plan.batch is None or num_steps >= LEAST_STEPS or not process.is_first:
        return
    enough = max(1, num_samples // (LEAST_STEPS * process.num_trainers))
    logger.warning(
        "spec.model.batchSizePerDevice: Auto: the plan's batch leaves %d steps in an epoch of %s samples; hint: give a "
        "number, such as %s, with which it has %d or more",
        num_steps, f"{num_samples:,}", f"{1 << (enough.bit_length() - 1):,}", LEAST_STEPS,
    )  # fmt: skip


def warn_of_few_repeats(plan: GivenPlan, factors: Sequence[float]) -> None:
    """Log the groups that repeat much less in the first batch than the plan expects."""
    for planned, found in zip(plan.deduplication or (), factors, strict=True):
        if found - 1 < EXPECTED_REPEATS * (planned.factor - 1):
            logger.warning(
                "group %r: %.2f samples per distinct list in the first batch, the plan expects %.2f; "
                "cluster the log with `neuroshard cluster-sessions`, and name its session in spec.data.sessionColumn",
                planned.group, found, planned.factor,
            )  # fmt: skip


def log_repeats(factors: Mapping[str, float]) -> None:
    """Log the features that repeat most within the sessions of the first batch."""
    most = sorted(factors.items(), key=lambda each: -each[1])[:SHOWN_REPEATS]
    if most:
        shown = ", ".join(f"{name} {factor:.2f}" for name, factor in most)
        logger.info("samples per distinct list in the first batch: %s", shown)
