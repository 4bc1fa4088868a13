"""The drift watch of rank 0: takes in all ranks' steps and its own batches, and writes what changed.

    step times of the slowest rank -> detector: slower since a step
    sampled batches -> statistics: features that changed -> placement: what that explains -> input-statistics.json
    medians of all ranks, reference and recent, with both of these -> causes -> drift-report.json
    the same batches, labels of each step, the mean loss -> data watch: findings, which the progress has

One detector over the slowest rank's steps decides whether training is slower: ranks wait for each other in every step.
Which part of which rank is slower, the medians of all ranks' parts tell.

Steps are compared at every report. Batches are counted and files written as often as the work budget allows, and at
the report in which a change begins or ends.
"""

import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from neuroshard_api.documents.document import DocumentError, read_data
from neuroshard_api.documents.drift_report import DriftChange, DriftReport
from neuroshard_api.documents.finding import DataFinding
from neuroshard_api.documents.input_statistics import InputStatistics
from neuroshard_api.documents.plan import any_plan
from neuroshard_api.documents.step_report import HostBoundShares, RankTimes
from neuroshard_api.job.stage_commands import DRIFT_REPORT_FILE, INPUT_STATISTICS_FILE
from numpy.typing import NDArray

from neuroshard_trainer.data.data_columns import DataColumns
from neuroshard_trainer.drift.attribution import UNCHANGED_INPUTS, causes
from neuroshard_trainer.drift.data_watch import DataWatch, SampleCount
from neuroshard_trainer.drift.detector import REFERENCE_STEPS, WARM_UP_STEPS, ShiftDetector, Slowdown
from neuroshard_trainer.drift.drift_state import DriftState
from neuroshard_trainer.drift.held_causes import HeldCauses
from neuroshard_trainer.drift.input_statistics import HELD_SAMPLES
from neuroshard_trainer.drift.input_watch import InputWatch
from neuroshard_trainer.drift.placement import FeaturePlacement
from neuroshard_trainer.drift.work_budget import WorkBudget
from neuroshard_trainer.files import write_file
from neuroshard_trainer.ranks.run_identity import RunIdentity

STATE_FILE: Final = "drift-state.json"
CHANGED_SHARE: Final = 0.75
"""Of the steps that medians are taken over: a cause is looked for once that many of them are after the change."""
TIMES: Final = tuple(
    name for name, field in RankTimes.model_fields.items() if name.endswith("_ms") and field.default is not None
)

logger = logging.getLogger(__name__)


def forget(folder: Path) -> None:
    """Remove what the watch of an earlier start wrote."""
    for name in (DRIFT_REPORT_FILE, INPUT_STATISTICS_FILE, STATE_FILE):
        (folder / name).unlink(missing_ok=True)


class ReferenceTimes:
    """The medians of one rank's first steps after the warm-up: those that the detector's reference is of.

    Those of parts are over the steps among them that were timed in parts. Averages of copies count with their mean over
    all, as in step reports: most steps have none.
    """

    def __init__(self) -> None:
        self._left_out = WARM_UP_STEPS
        self._sync_ms = 0.0
        self._step_ms: list[float] = []
        self._parts: list[tuple[float, ...]] = []
        self._host_bound: list[frozenset[str]] = []
        self.medians: dict[str, Any] | None = None
        """By field of RankTimes. None: not known yet."""

    def add(
        self,
        step_ms: float,
        parts: Mapping[str, float] | None,
        *,
        sync_ms: float = 0.0,
        host_bound: frozenset[str] | None = None,
    ) -> None:
        """Take in the times of a step.

        Args:
            step_ms: from begin to end.
            parts: by field of RankTimes. None: it was not timed in parts.
            sync_ms: of the average of copies, which ``backward_communication_ms`` leaves out.
            host_bound: parts that the host bound. None: it was not timed in parts, or the host is what computes.
        """
        if self.medians is not None:
            return
        if self._left_out:
            self._left_out -= 1
            return
        self._step_ms.append(step_ms)
        self._sync_ms += sync_ms
        if parts is not None:
            self._parts.append(tuple(parts[name] for name in TIMES))
        if host_bound is not None:
            self._host_bound.append(host_bound)
        if len(self._step_ms) == REFERENCE_STEPS:
            middles = np.median(np.array(self._parts), axis=0)
            self.medians = dict(zip(TIMES, middles.tolist(), strict=True))
            self.medians["step_ms"] = float(np.median(self._step_ms))
            self.medians["backward_communication_ms"] += self._sync_ms / REFERENCE_STEPS
            self.medians["host_bound"] = HostBoundShares.of(self._host_bound) if self._host_bound else None
            self._step_ms.clear()
            self._parts.clear()


class DriftWatch:
    """Watches the training of all ranks.

    Args:
        folder: where its files are.
        run: that is watched.
        plan_file: the plan. One that cannot be read as a plan leaves open which ranks hold a feature's table.
        world_size: number of ranks.
        local_world_size: ranks of a node where the plan does not say.
        conditions: what else must be the same for a start to compare its steps with those of the starts before.
        budget: for counting and writing. If unset: a share of the steps' time.
        columns: of the data. If unset: it has no dense columns.
        samples: that the steps use. If unset: not known.
    """

    def __init__(
        self,
        folder: Path,
        *,
        run: RunIdentity,
        plan_file: Path,
        world_size: int,
        local_world_size: int,
        conditions: str = "",
        budget: WorkBudget | None = None,
        columns: DataColumns | None = None,
        samples: SampleCount | None = None,
    ) -> None:
        self._folder = folder
        self.budget = WorkBudget() if budget is None else budget
        """Of counting batches and writing documents."""
        self._run = run
        self._plan_file = plan_file
        self._world_size = world_size
        self._local_world_size = local_world_size
        self._conditions = conditions
        self._placement: FeaturePlacement | None = None
        self._logged: frozenset[tuple[object, ...]] = frozenset()
        """Causes and ranks."""
        self.checkpoint_ms: float | None = None
        """Duration of the last checkpoint. None: there was none."""
        self.start_ms: float | None = None
        """From the start of the process to the end of its first step. None: not known."""
        kept = DriftState.kept(folder / STATE_FILE)
        is_same = kept is not None and kept.fits(run, world_size=world_size, conditions=conditions)
        state = kept if is_same else None
        has_data = kept is not None and kept.has_data_of(run, conditions=conditions)
        self._detector = ShiftDetector(state=None if state is None else state.detector)
        self._reference = () if state is None else state.reference
        self._reference_first_step = None if state is None else state.reference_first_step
        self._first_step: int | None = None
        """Of this start. None: none was measured yet."""
        self._reported: Slowdown | None = None
        """The change that the last report named a cause of; until then a report is written whatever was spent."""
        self._causes = HeldCauses(() if state is None else state.named)
        self.inputs = InputWatch(run, reference=None if state is None else state.inputs)
        """Of this rank's batches."""
        self._statistics: InputStatistics | None = None
        """That were counted, and are not written yet."""
        self.data = DataWatch(columns, samples, kept.data if kept is not None and has_data else None)
        """Of the loss and the data, which another plan does not change."""
        if state is not None:
            self._detector.restarted()
            self._reported = self._detector.change
        else:  # what is there is of another plan or other settings
            forget(folder)

    @property
    def causes(self) -> tuple[DriftChange, ...]:
        """Causes of the slow-down that lasts. Empty: none is named."""
        return self._causes.named

    def offer(self, step: int, batch: object) -> None:
        """Take in the batch of a step."""
        self.inputs.offer(step, batch)
        self.data.offer(step, batch)

    def findings(self) -> tuple[DataFinding, ...]:
        """Return the findings of loss and data, the sampled batch included where the budget allows it."""
        if not self.budget.is_spent:
            with self.budget.spending():
                self._count()
        return self.data.findings

    def add_steps(self, first_step: int, step_ms: Sequence[NDArray[np.float32]]) -> None:
        """Take in the times of consecutive steps, by rank; a step is as long as the slowest rank's.

        Times that are not finite or not above 0 are left out. Of ranks with different numbers of steps the first ones
        count.
        """
        if self._first_step is None:
            self._first_step = first_step
        count = min(map(len, step_ms))
        slowest = np.max([each[:count] for each in step_ms], axis=0)
        self._detector.add_all(first_step, slowest.tolist())
        self.budget.earn(float(slowest[np.isfinite(slowest) & (slowest > 0)].sum()))

    def report(
        self,
        last_step: int,
        recent: Sequence[RankTimes],
        references: Sequence[Mapping[str, Any] | None],
        *,
        num_recent: int,
    ) -> DriftReport | None:
        """Write the drift report after a step, where the budget allows it or a change began or ended.

        Args:
            last_step: number of the last step.
            recent: medians of the last steps, by rank.
            references: medians of the first steps of this start, by rank; None where they are not known yet.
            num_recent: steps that the recent medians are of.

        Returns:
            The report; None before there is a reference, and where nothing is written.

        Raises:
            StorageError: a file cannot be written.
        """
        own = [each for each in references if each is not None]
        if not self._reference and len(own) == self._world_size:
            self._reference = tuple(
                RankTimes(rank=rank, **times, processor_wait_share=now.processor_wait_share)
                for rank, (times, now) in enumerate(zip(own, recent, strict=True))
            )
            self._reference_first_step = None if self._first_step is None else self._first_step + WARM_UP_STEPS
        if self.budget.is_spent and self._detector.change == self._reported:
            return None
        with self.budget.spending():
            report = self._written(last_step, recent, num_recent)
        if report is not None and (report.changes or self._detector.change is None):
            self._reported = self._detector.change
        return report

    def _written(self, last_step: int, recent: Sequence[RankTimes], num_recent: int) -> DriftReport | None:
        """Count the sampled batch and write all documents."""
        self._count()
        if self.inputs.are_others:
            self._learn_again()
            return None
        statistics, self._statistics = self._statistics, None
        if statistics is not None:
            left_out = self._placed(statistics).without_repeats
            named = statistics.model_copy(update={"without_repeats": left_out}) if left_out else statistics
            write_file(self._folder / INPUT_STATISTICS_FILE, named.to_json())
        report = self._report(last_step, [_times_alone(each) for each in recent], num_recent)
        if report is not None:
            write_file(self._folder / DRIFT_REPORT_FILE, report.to_json())
            self._log(report)
        write_file(self._folder / STATE_FILE, self._state().to_json())
        return report

    def _count(self) -> None:
        """Count the sampled batch, if there is one."""
        statistics = self.inputs.count()
        if statistics is None or self.inputs.counted is None:
            return
        self._statistics = statistics
        placed = self._placed(statistics)
        self.data.add_sample(
            *self.inputs.counted,
            rows=placed.rows,
            inputs=(self.inputs.reference, statistics),
            without_repeats=placed.without_repeats,
        )

    def _learn_again(self) -> None:
        """Forget an earlier start whose steps had other batches: their times cannot be compared."""
        logger.warning("batches differ in size or features from those of the start before; drift learns from this one")
        forget(self._folder)
        self._detector, self._reference, self._reported = ShiftDetector(), (), None
        self._causes.clear()
        self.inputs = InputWatch(self._run)

    def _report(self, last_step: int, recent: Sequence[RankTimes], num_recent: int) -> DriftReport | None:
        if not self._reference:
            return None
        return DriftReport(
            source=self._run.source,
            plan_sha256=self._run.plan_sha256,
            run_id=self._run.run_id,
            last_step=last_step,
            reference_steps=REFERENCE_STEPS,
            reference_first_step=self._reference_first_step,
            reference=self._reference,
            recent=tuple(recent),
            changes=self._changes(last_step, recent, num_recent),
            checkpoint_ms=self.checkpoint_ms,
            start_ms=self.start_ms,
        )

    def _changes(self, last_step: int, recent: Sequence[RankTimes], num_recent: int) -> tuple[DriftChange, ...]:
        """Return the causes of a slow-down, once enough is known of times and inputs since then to tell them apart."""
        change = self._detector.change
        if change is None:
            self._causes.clear()
            return ()
        named = self._causes.of(change.since_step)
        if last_step - change.since_step + 1 < CHANGED_SHARE * num_recent:
            return named
        before, since = self.inputs.reference, self.inputs.recent
        if before is not None and self.inputs.num_counted_since(change.since_step) < HELD_SAMPLES:
            return named
        inputs = UNCHANGED_INPUTS
        if before is not None and since is not None and since.changed_features:
            inputs = self._placed(before).input_change(before, since)
        found = causes(
            self._reference,
            recent,
            since_step=change.since_step,
            ranks_per_node=self._placed(before).ranks_per_node,
            inputs=inputs,
        )
        slowest_ms = [max(times.step_ms for times in each) for each in (self._reference, recent)]
        added_ms = slowest_ms[1] - slowest_ms[0]
        return self._causes.take(found, tables=inputs.ranks_of_table, added_ms=added_ms)

    def _placed(self, inputs: InputStatistics | None) -> FeaturePlacement:
        if self._placement is not None:
            return self._placement
        try:
            self._placement = FeaturePlacement.of(any_plan(read_data(self._plan_file), where=str(self._plan_file)))
        except DocumentError:
            features = [] if inputs is None else [each.feature for each in inputs.features]
            world = {"world_size": self._world_size, "ranks_per_node": self._local_world_size}
            return FeaturePlacement.unknown(features, **world)
        return self._placement

    def _log(self, report: DriftReport) -> None:
        """Log changes that were not there at the report before."""
        named = frozenset((change.cause, change.ranks, change.tables) for change in report.changes)
        if named - self._logged:
            logger.warning("%s", report.headline)
        elif self._logged and not named:
            logger.info("steps take as long as at the beginning again")
        self._logged = named

    def _state(self) -> DriftState:
        return DriftState(
            source=self._run.source,
            plan_sha256=self._run.plan_sha256,
            run_id=self._run.run_id,
            world_size=self._world_size,
            conditions=self._conditions,
            detector=self._detector.state,
            reference=self._reference,
            reference_first_step=self._reference_first_step,
            inputs=self.inputs.reference,
            data=self.data.state,
            named=self._causes.named,
        )


def process_age_ms() -> float | None:
    """Return the milliseconds since this process started, by the kernel; None where it does not say."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="utf-8")
        begun_ticks = int(stat.rpartition(")")[2].split()[_START_TIME_FIELD])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - begun_ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return max(0.0, 1000.0 * age_s)


_START_TIME_FIELD: Final = 19
"""Of /proc/<pid>/stat after the name in parentheses: proc(5)'s starttime, in clock ticks since the boot."""


def _times_alone(times: RankTimes) -> RankTimes:
    memory = dict.fromkeys(("peak_memory_bytes", "peak_reserved_bytes", "device_used_bytes"))
    return times.model_copy(update={"collectives": (), **memory})
