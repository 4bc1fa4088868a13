"""Workers that train, in one pass: what they report, what a restart of them would cost, and the record of restarts."""

from dataclasses import dataclass
from typing import Final

from neuroshard_api.job.replanning import ReplanningStatus, TrainedPlan
from neuroshard_api.job.step_cost import is_host_bound
from neuroshard_api.replanning.decision import Restart
from neuroshard_api.replanning.record import US_PER_MS, outcomes_of, since_replan_s, with_measured_gain, with_restart

from neuroshard_decisions.conditions import Reason
from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.objects import ChildJob
from neuroshard_decisions.observed.results import DriftSummary
from neuroshard_decisions.stages.checkpoints import keeps_checkpoints
from neuroshard_decisions.stages.planning import Planned
from neuroshard_decisions.stages.reports import latest

MS_PER_S: Final = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingWorkers:
    """Workers that train under a plan."""

    context: Context
    planned: Planned
    """The plan in force."""
    workers: ChildJob
    drift: DriftSummary | None
    """What they report of their steps under this plan. None: nothing."""

    @property
    def record(self) -> ReplanningStatus:
        """The record of further plans, with what the newest one brought, once that was measured.

        A drift report of it has a reference, which was learned after the warm-up.
        """
        recorded, cost = self.context.status.replanning or ReplanningStatus(), self.context.status.cost
        if self.drift is None:
            return recorded
        return with_measured_gain(
            recorded,
            plan_hash=self.plan_hash,
            measured_us=None if self.is_host_bound else self.measured_us,
            steps=cost.measured.steps if cost is not None and cost.measured is not None else None,
        )

    @property
    def plan_hash(self) -> str:
        """Hash of the plan in force, as the status has it."""
        return f"sha256:{self.planned.summary.hash}"

    @property
    def measured_us(self) -> int | None:
        """Measured time of the embedding part of a step, in microseconds. None: not known."""
        cost = self.context.status.cost
        return cost.measured.total_microseconds if cost is not None and cost.measured is not None else None

    @property
    def is_host_bound(self) -> bool:
        """Whether the host bound that time."""
        cost = self.context.status.cost
        return cost is not None and is_host_bound(cost.measured)

    @property
    def planned_ms(self) -> float | None:
        """Predicted embedding part of a step, for the inputs that the plan was made for. None: not known."""
        predicted = self.planned.summary.predicted
        planned_us = None if predicted is None else predicted.total_microseconds
        return None if planned_us is None else planned_us / US_PER_MS

    def entry(self, reason: Reason, message: str | None = None) -> TrainedPlan:
        """Return the plan in force as the history names it, if it was taken now or is the first."""
        predicted = self.planned.summary.predicted
        is_first = reason is Reason.PLAN_WRITTEN
        return TrainedPlan(
            candidate=None if is_first else self.record.accepted,
            hash=self.plan_hash,
            placement_hash=self.planned.summary.placement_hash,
            reason=reason.value,
            message=message,
            start_time=(self.context.ready_since if is_first else None) or self.context.now,
            from_step=None if is_first or self.drift is None else self.drift.last_step,
            predicted_microseconds=None if predicted is None else predicted.total_microseconds,
        )

    def with_restart(self, taken: TrainedPlan) -> ReplanningStatus:
        """Return the record of a restart for what is taken now."""
        first = self.entry(Reason.PLAN_WRITTEN)
        return with_restart(self.record, in_force=first, measured_us=self.measured_us, taken=taken)

    def restart(self, drift: DriftSummary) -> Restart:
        """Return the price of a restart of the workers, and what remains to gain."""
        report, record = latest(self.context), self.record
        created, started = self.workers.meta.created, self.workers.start_time
        waited_s = (started - created).total_seconds() if created and started and self.context.is_queued else 0.0
        return Restart(
            step_ms=drift.step_ms,
            step=drift.last_step,
            num_steps=report.progress.num_steps if report and report.progress else None,
            checkpoint_ms=drift.checkpoint_ms,
            start_ms=drift.start_ms,
            admission_ms=MS_PER_S * max(waited_s, 0.0),
            keeps_checkpoints=self.context.rules.keeps_checkpoints or keeps_checkpoints(self.context),
            replans=record.replans or 0,
            since_replan_s=since_replan_s(record, self.context.now),
            outcomes=outcomes_of(record, self.plan_hash),
        )
