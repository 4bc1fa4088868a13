"""Steps on all lists and without the repeats of one group, in turns, on the same samples in two processes."""

from collections.abc import Sequence

from neuroshard_api.plan import Plan
from neuroshard_api.tables import TableSet
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.deduplication import deduplicated
from neuroshard_trainer.data.samples import features_of

from benchmarks.interleaved_loops import Times, timed
from benchmarks.sharded_training import NUM_DENSE, ShardedTraining

WARM_STEPS = 4
TwoForms = dict[str, float | list[Times]]
"""``factor`` of the batches, and the times of the steps ``plain`` and ``without``."""


def both_forms(
    plan: Plan,
    tables: TableSet,
    group: Sequence[str],
    maker: BatchMaker,
    *,
    num_batches: int,
    steps: int,
    num_dense: int = NUM_DENSE,
) -> TwoForms:
    """Train both forms. Both processes must call this.

    Args:
        plan: of both.
        tables: of the model.
        group: features whose repeats are left out.
        maker: of this rank's batches.
        num_batches: that the steps go through in turn.
        steps: of each form, after WARM_STEPS.
        num_dense: dense features of a sample.
    """
    keys = [feature.name for feature in features_of(tables.tables)]
    whole = [maker.training(index * maker.global_batch_size) for index in range(num_batches)]
    without = [deduplicated(each, [tuple(keys.index(name) for name in group)]) for each in whole]
    plain = ShardedTraining(plan, tables, num_dense=num_dense)
    deduplicating = ShardedTraining(plan, tables, groups=[group], num_dense=num_dense)
    loops = {
        "plain": (plain, [Batch.of(each, keys) for each in whole]),
        "without": (deduplicating, [Batch.of(each, keys) for each in without]),
    }
    times: dict[str, list[Times]] = {name: [] for name in loops}
    for step in range(WARM_STEPS + steps):
        for name, (training, batches) in list(loops.items())[:: 1 if step % 2 else -1]:
            took = timed(training.step, batches[step % num_batches])
            if step >= WARM_STEPS:
                times[name].append(took)
    factor = sum(len(each.labels) for each in without) / sum(each.num_distinct[0] for each in without)
    return {"factor": factor, **times}
