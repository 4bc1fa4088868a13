"""What rank 0 tells of a training: lines of the log, and the progress document."""

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.finding import MAX_FINDINGS, DataFinding, FindingKind
from neuroshard_api.documents.progress import (
    MAX_STARTS,
    GuardRecord,
    ProgressPoint,
    TrainingProgress,
    TrainingStart,
    with_point,
)

from neuroshard_trainer.files import write_file
from neuroshard_trainer.ranks.process import Process
from neuroshard_trainer.schedule import Schedule

logger = logging.getLogger(__name__)


class Progress:
    """What rank 0 tells: lines of the log, and the progress document."""

    def __init__(self, file: Path, schedule: Schedule, process: Process, *, plan_sha256: str) -> None:
        self.metrics: dict[str, float] = {}
        self.findings: tuple[DataFinding, ...] = ()
        """Of the drift watch."""
        self.guard: GuardRecord | None = None
        self.gradient_guard: GuardRecord | None = None
        self.checkpoint: tuple[int, Path] | None = None
        """Step and place of the newest."""
        self.checkpoint_stop_ms: float | None = None
        """Time that training stood still for the last one. None: there was none."""
        self._file = file
        self._schedule = schedule
        self._is_first = process.is_first
        self._run_id = process.run_id
        self._began = time.monotonic()
        before = _written(file)
        exploded = (
            each
            for each in before.findings or ()
            if each.kind is FindingKind.LOSS_EXPLODED and each.last_step < schedule.first_step
        )
        self.explosion: DataFinding | None = next(exploded, None)
        """Of the loss, also in an earlier start. None: its cause was not looked for, or no rank has one."""
        self.has_exploded = self.explosion is not None
        found = before.diverged or {}
        self.diverged = {name: step for name, step in found.items() if step <= schedule.first_step}
        self._losses, self._evaluations = (
            tuple(each for each in points if each.step <= schedule.first_step)
            for points in (before.losses, before.evaluations)
        )
        start = TrainingStart(time=datetime.now(UTC), step=schedule.first_step, plan_sha256=plan_sha256)
        self._starts = (*before.starts, start)[-MAX_STARTS:]

    def add_losses(self, step: int, losses: Mapping[str, float], diverged: Mapping[str, int]) -> None:
        """Take in the mean losses of the steps since the last one."""
        self._take(losses, diverged)
        self._losses = with_point(self._losses, self._point(step, losses))

    def add_evaluation(self, step: int, metrics: Mapping[str, float], diverged: Mapping[str, int]) -> None:
        """Take in the metrics of held-out samples after a step."""
        self._take(metrics, diverged)
        self._evaluations = with_point(self._evaluations, self._point(step, metrics))

    def _take(self, metrics: Mapping[str, float], diverged: Mapping[str, int]) -> None:
        """Take in metrics, and forget those of variants that have diverged."""
        self.diverged = dict(diverged)
        self.metrics.update(metrics)
        for name in [each for each in self.metrics if each.rpartition("/")[0] in diverged]:
            del self.metrics[name]

    def _point(self, step: int, metrics: Mapping[str, float]) -> ProgressPoint:
        samples = self._schedule.position(step)
        return ProgressPoint(step=step, samples=samples, time=datetime.now(UTC), metrics=dict(metrics))

    def log(self, step: int, what: str) -> None:
        """Write a line with the step and the samples per second since the start."""
        if self._is_first:
            speed = (self._schedule.position(step) - self._schedule.first_position) / (time.monotonic() - self._began)
            logger.info("step %d of %d: %s, %.0f samples/s", step, self._schedule.num_steps, what, speed)

    def write(self, step: int) -> None:
        """Write the document."""
        if not self._is_first:
            return
        done = step - self._schedule.first_step
        per_step = (time.monotonic() - self._began) / done if done else None
        number, path = self.checkpoint or (None, None)
        progress = TrainingProgress(
            run_id=self._run_id,
            step=step,
            num_steps=self._schedule.num_steps,
            remaining_seconds=None if per_step is None else per_step * (self._schedule.num_steps - step),
            metrics=self.metrics,
            losses=self._losses,
            evaluations=self._evaluations,
            starts=self._starts,
            diverged=self.diverged or None,
            findings=(*self.findings, *([self.explosion] if self.explosion else []))[-MAX_FINDINGS:] or None,
            guard=self.guard,
            gradient_guard=self.gradient_guard,
            checkpoint_step=number,
            checkpoint_path=None if path is None else str(path),
            checkpoint_stop_ms=self.checkpoint_stop_ms,
        )
        write_file(self._file, progress.to_json())


def _written(file: Path) -> TrainingProgress:
    """Return the progress of earlier starts; none where there is no document, or it cannot be read."""
    try:
        return TrainingProgress.read(file)
    except DocumentError:
        return TrainingProgress(step=0)
