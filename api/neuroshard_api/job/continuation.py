"""What must be the same in a training and its continuation, for the trainer, the operator's workers, and one machine.

A checkpoint has tensors and a position in the samples. Both mean the same as long as the facts here are the same, on
any number of devices and under any plan: batches are cut from one order of all samples. Learning rates, steps, epochs,
and the batch size may change.
"""

import json
from collections.abc import Mapping, Sequence

from neuroshard_api.documents.tables import Pooling, Table
from neuroshard_api.job.id_rules import default_rule, id_rule_of
from neuroshard_api.job.model import Architecture
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import expanded


def continuation_facts(job: DLRMTrainingJob, tables: Sequence[Table]) -> dict[str, str]:
    """Return the facts of a job that a continuation must share, as JSON text by field path.

    Args:
        job: that trains.
        tables: of its model, with the job's statistics.
    """
    model, data, training = job.spec.model, job.spec.data, job.spec.training
    rows = [
        [
            table.name,
            table.num_embeddings,
            table.embedding_dim,
            table.data_type,
            *([Pooling.MEAN] if table.is_mean else []),
            *([rule] if (rule := id_rule_of(table, data.format)) is not default_rule(data.format) else []),
        ]
        for table in tables
    ]
    dense = [model.num_dense_features, model.dense_arch_layer_sizes, model.over_arch_layer_sizes]
    values: Mapping[str, object] = {
        "spec.model.embeddingTables": rows,
        "spec.model.embeddingOptimizer": model.embedding_optimizer,
        "spec.model.architecture": [model.architecture, *dense],
        "spec.model.crossNetwork": model.cross.model_dump(),
        "spec.training.denseOptimizer": training.dense_optimizer,
        "spec.training.seed": training.seed,
        "spec.data.format": data.format,
        "spec.data.shuffle": data.shuffle,
    }
    # A job without these has the facts of earlier releases.
    if model.architecture is Architecture.WUKONG:
        values = {**values, "spec.model.wukong": model.wukong_layers.model_dump()}
    if job.spec.sample_seed != training.seed:
        values = {**values, "spec.experimental.data.seed": job.spec.sample_seed}
    if job.spec.variants:
        values = {**values, "spec.variants": _of_variants(job)}
    if job.spec.has_sessions:  # they decide the order
        sessions = [data.session_column, data.time_column, job.spec.experimental.data.session_run]
        values = {**values, "spec.data (sessionColumn, timeColumn), experimental.data.sessionRun": sessions}
    return {field: json.dumps(value) for field, value in values.items()}


def _of_variants(job: DLRMTrainingJob) -> list[object]:
    """Return the facts that decide the tables, the dense part, and the initial weights of each variant."""
    found: list[object] = []
    jobs = expanded(job)
    for each in job.spec.variants or ():
        model, training = jobs[each.name].spec.model, jobs[each.name].spec.training
        sizes: list[object] = [model.dense_arch_layer_sizes, model.over_arch_layer_sizes]
        if model.architecture is Architecture.DCN_V2:
            sizes.append(model.cross.model_dump())
        if model.architecture is Architecture.WUKONG:
            sizes.append(model.wukong_layers.model_dump())
        found.append([each.name, each.model.embedding_dim, model.architecture, *sizes, training.seed])
    return found


def other_facts(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return a phrase with both values for each fact that differs; empty: the training can be continued.

    Args:
        before: facts of what was trained.
        now: facts of the job.
    """
    return tuple(
        f"was trained with {field} = {before.get(field)}, the job has {now.get(field)}"
        for field in dict.fromkeys((*now, *before))
        if before.get(field) != now.get(field)
    )
