"""Steps on all lists and without the repeats of one group, in turns, on the same samples in two processes."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch.distributed as dist
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm
from neuroshard_api.documents.step_report import RankTimes, StepReport
from neuroshard_api.documents.tables import TableSet
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.data.collation import BatchMaker
from neuroshard_trainer.data.deduplication import WithoutRepeats
from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.measure.step_reporter import StepReporter

from benchmarks.plan_times import ProcessorClock
from benchmarks.sharded_training import NUM_DENSE, SMALL_MODEL, ShardedTraining

WARM_STEPS = 4
PLAIN = "plain"
FORMS = (DeduplicationForm.FIRST_SAMPLE, DeduplicationForm.GROUPED)
ONCE = "grouped, product once"
"""The grouped form, in which DCNv2's first product takes the part of the group once per list."""
CLOCK, PROCESSOR = "clock", "processor"
PARTS = (
    "forward_compute_ms",
    "backward_compute_ms",
    "input_communication_ms",
    "forward_communication_ms",
    "backward_communication_ms",
    "expansion_ms",
)
"""Fields of RankTimes that are the embedding part of a step."""
STEP = "step_ms"
"""A whole step, without waiting for data."""
StepParts = dict[str, float]
"""Milliseconds of PARTS and STEP: of each, the mean over the processes."""
FormTimes = dict[str, list[StepParts]]
"""By form, of each step."""


class TimedForm:
    """One form under a plan, whose steps are timed by the clock and by processor time.

    Args:
        plan: placement of the tables.
        tables: of the model.
        group: features whose repeats are left out.
        name: PLAIN for all lists, a form, or ONCE.
        maker: of this rank's batches.
        num_batches: that the steps go through in turn.
        num_dense: dense features of a sample.
        folder: for the plan that reports refer to.
        model: fields of the settings of the dense part.
    """

    def __init__(
        self,
        plan: Plan,
        tables: TableSet,
        group: Sequence[str],
        name: str,
        maker: BatchMaker,
        *,
        num_batches: int,
        num_dense: int,
        folder: Path,
        model: Mapping[str, Any],
    ) -> None:
        form = None if name == PLAIN else DeduplicationForm(name.partition(",")[0])
        keys = [feature.name for feature in features_of(tables.tables)]
        self.factor = 1.0
        """Samples over distinct ones in the batches."""
        if form is not None:
            members = tuple(keys.index(name) for name in group)
            apart = frozenset({0} if form is DeduplicationForm.GROUPED else ())
            maker = maker.collating(WithoutRepeats(groups=(members,), apart=apart))
        made = [maker.training(index * maker.global_batch_size) for index in range(num_batches)]
        if form is not None:
            num_samples = sum(len(each.labels) for each in made)
            self.factor = num_samples / sum(each.num_distinct[0] for each in made)
            own = DeduplicatedGroup(
                group=group[0],
                features=tuple(group),
                form=form,
                factor=self.factor,
                product_saved_ms=0.0 if name == ONCE else None,
            )
            plan = plan.model_copy(update={"deduplication": (own,)})
        file = folder / f"{name}-{dist.get_rank()}.plan.json"
        file.write_text(plan.to_json())
        self._training = ShardedTraining(plan, tables, num_dense=num_dense, model=model)
        self._reports: dict[str, list[StepReport]] = {CLOCK: [], PROCESSOR: []}
        self._clock, self._processor = (
            StepReporter(
                self._training.model,
                file,
                write=self._reports[by].append,
                report_every=sys.maxsize,
                window=1,
                drift=False,
                clock=clock,
            )
            for by, clock in ((CLOCK, None), (PROCESSOR, ProcessorClock()))
        )
        batches = cycle(Batch.of(each, keys) for each in made)
        self._steps: Iterator[Batch] = self._clock.steps(self._processor.steps(batches))

    def step(self) -> None:
        """Take a timed step. Both processes must call this."""
        dist.barrier()
        batch = next(self._steps)
        self._training.step(batch)
        self._processor.end_step()
        self._clock.end_step()
        self._processor.report()
        self._clock.report()

    def times(self, by: str) -> list[StepParts]:
        """Return the times of all steps after the warm ones, on rank 0; on the other an empty list."""
        return [_parts(report.ranks) for report in self._reports[by]][WARM_STEPS:]


def timed_forms(
    plan: Plan,
    tables: TableSet,
    group: Sequence[str],
    maker: BatchMaker,
    *,
    num_batches: int,
    steps: int,
    folder: Path,
    num_dense: int = NUM_DENSE,
    without_repeats: Sequence[str] = FORMS,
    model: Mapping[str, Any] = SMALL_MODEL,
) -> Mapping[str, object]:
    """Train all lists and forms without repeats, in turns. Both processes must call this.

    Returns:
        ``factor`` of the batches, and FormTimes by ``clock`` and by ``processor``.
    """
    forms = {
        str(name): TimedForm(
            plan, tables, group, name, maker, num_batches=num_batches, num_dense=num_dense, folder=folder, model=model
        )
        for name in (PLAIN, *without_repeats)
    }
    names = list(forms)
    for step in range(WARM_STEPS + steps):
        first = step % len(names)
        for name in names[first:] + names[:first]:
            forms[name].step()
    times = {by: {name: form.times(by) for name, form in forms.items()} for by in (CLOCK, PROCESSOR)}
    return {"factor": forms[names[-1]].factor, **times}


def _parts(ranks: Sequence[RankTimes]) -> StepParts:
    """Return the mean over ranks."""
    parts = {name: sum(getattr(each, name) or 0.0 for each in ranks) / len(ranks) for name in PARTS}
    return {**parts, STEP: sum(each.step_ms - each.data_wait_ms for each in ranks) / len(ranks)}


def embedding_ms(parts: StepParts) -> float:
    """Return the embedding part of a step."""
    return sum(parts[name] for name in PARTS)
