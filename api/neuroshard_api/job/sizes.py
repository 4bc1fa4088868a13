"""An elastic job at one number of nodes: the job that is planned and trained there.

``trainer.numNodes`` is the size that a job is written for: its batch and its learning rates are those on that many
nodes. At any other size the job is the same one with other values in these fields, so that everything that reads a job
(the planner's request, the workers, the hashes of plans) needs to know nothing of sizes.
"""

from decimal import Decimal

from neuroshard_api.job.elastic import Elastic, ElasticBatch, LearningRateScale
from neuroshard_api.job.model import MAX_BATCH_SIZE
from neuroshard_api.job.training_job import DLRMTrainingJob, Spec
from neuroshard_api.job.variants import JobVariant


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
        training = spec.training
        rates = {
            "embedding_learning_rate": _scaled(training.embedding_learning_rate, share),
            "dense_learning_rate": _scaled(training.dense_learning_rate, share),
        }
        changed["training"] = training.model_copy(update=rates)
        if spec.variants is not None:
            changed["variants"] = tuple(_with_scaled_rates(each, share) for each in spec.variants)
    return job.model_copy(update={"spec": spec.model_copy(update=changed)})


def _batch(spec: Spec, elastic: Elastic, num_nodes: int) -> int | None:
    """Return the batch of each device on that many nodes. None: it would not be a whole number, or too large."""
    own = spec.model.batch_size_per_device
    if elastic.batch is ElasticBatch.PER_DEVICE:
        return own
    batch, rest = divmod(own * spec.trainer.num_nodes, num_nodes)
    return None if rest or batch > MAX_BATCH_SIZE else batch


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
