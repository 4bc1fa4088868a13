"""A job at one size: on one number of nodes where it is elastic, with one batch where the plan chooses it.

``trainer.numNodes`` is the size that a job is written for: its batch and its learning rates are those on that many
nodes. At any other size the job is the same one with other values in these fields, so that everything that reads a job
(the planner's request, the workers, the hashes of plans) needs to know nothing of sizes. Where the plan chooses the
batch, a job's learning rates are those at the default batch, and the job under a plan is the one with the plan's batch.
"""

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.request import MAX_GLOBAL_BATCH_SIZE
from neuroshard_api.job.elastic import Elastic, ElasticBatch, LearningRateScale, kept_batch
from neuroshard_api.job.model import DEFAULT_BATCH_SIZE
from neuroshard_api.job.spec import Spec
from neuroshard_api.job.training import Training
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import JobVariant

LEAST_CHOSEN: Final = 512
MOST_CHOSEN: Final = 65_536
"""Samples per device between which a plan chooses: by rule a 16th and 8 times those that learning rates are for."""
LEAST_STEPS: Final = 100
"""Steps that an epoch keeps where the job says how many samples it has."""


def sizes_of(spec: Spec) -> tuple[int, ...]:
    """Return the numbers of nodes that a job may train on, in ascending order; one of a job that is not elastic."""
    most, elastic = spec.trainer.num_nodes, spec.experimental.elastic
    if elastic is None:
        return (most,)
    return tuple(nodes for nodes in range(elastic.min_nodes, most + 1) if _batch(spec, elastic, nodes) is not None)


def sized(job: DLRMTrainingJob, num_nodes: int) -> DLRMTrainingJob:
    """Return a job as it is on that many nodes, which must be one of `sizes_of` it."""
    spec = job.spec
    elastic = spec.experimental.elastic
    if elastic is None or num_nodes == spec.trainer.num_nodes:
        return job
    batch, share = _batch(spec, elastic, num_nodes), Decimal(num_nodes) / spec.trainer.num_nodes
    assert batch is not None, "it is one of the sizes"
    changed: dict[str, object] = {
        "trainer": spec.trainer.model_copy(update={"num_nodes": num_nodes}),
        "model": spec.model.model_copy(update={"batch_size_per_device": batch}),
    }
    if elastic.scale_learning_rate is LearningRateScale.LINEAR:
        changed["training"] = _with_scaled(spec.training, share)
        if spec.variants is not None:
            changed["variants"] = tuple(_with_scaled_rates(each, share) for each in spec.variants)
    return job.model_copy(update={"spec": spec.model_copy(update=changed)})


def batch_sizes(spec: Spec) -> tuple[int, ...]:
    """Return the samples per device that the plan may choose, in ascending order; one where the job gives them.

    They are powers of two and the half steps between them.
    """
    if not spec.model.chooses_batch_size:
        return (spec.model.samples_per_device,)
    most, samples = MAX_GLOBAL_BATCH_SIZE // spec.trainer.world_size, spec.data.num_samples
    if samples is not None:
        most = min(most, samples // (LEAST_STEPS * spec.trainer.world_size))
    first, *others = _halved_steps()
    return (first, *(size for size in others if size <= most))


def _halved_steps() -> Iterator[int]:
    size = LEAST_CHOSEN
    while size < MOST_CHOSEN:
        yield from (size, size + size // 2)
        size *= 2
    yield size


def at_batch_size(job: DLRMTrainingJob, samples_per_device: int) -> DLRMTrainingJob:
    """Return a job whose plan chooses the batch with a number in its place, and its learning rates for that.

    They are linear in the share of samples. A job that gives its batch is returned as it is.
    """
    spec = job.spec
    if not spec.model.chooses_batch_size:
        return job
    model = spec.model.model_copy(update={"batch_size_per_device": samples_per_device})
    training = _with_scaled(spec.training, Decimal(samples_per_device) / DEFAULT_BATCH_SIZE)
    return job.model_copy(update={"spec": spec.model_copy(update={"model": model, "training": training})})


def under_plan(job: DLRMTrainingJob, plan: GivenPlan) -> DLRMTrainingJob:
    """Return a job as it is trained under a plan: with its batch where the plan chose that."""
    return at_batch_size(job, plan.request.batch_size_per_device)


def _with_scaled(training: Training, share: Decimal) -> Training:
    rates = {
        "embedding_learning_rate": _scaled(training.embedding_learning_rate, share),
        "dense_learning_rate": _scaled(training.dense_learning_rate, share),
    }
    return training.model_copy(update=rates)


def _batch(spec: Spec, elastic: Elastic, num_nodes: int) -> int | None:
    """Return the batch of each device on that many nodes. None: it would not be a whole number, or too large."""
    own = spec.model.samples_per_device
    if elastic.batch is ElasticBatch.PER_DEVICE:
        return own
    return kept_batch(own, spec.trainer.num_nodes, num_nodes)


def _scaled(rate: int | str, share: Decimal) -> str:
    return f"{float(Decimal(rate) * share):.9g}"


def _with_scaled_rates(variant: JobVariant, share: Decimal) -> JobVariant:
    own = variant.training
    rates = {
        name: _scaled(rate, share)
        for name, rate in (
            ("embedding_learning_rate", own.embedding_learning_rate),
            ("dense_learning_rate", own.dense_learning_rate),
        )
        if rate is not None
    }
    return variant.model_copy(update={"training": own.model_copy(update=rates)})
