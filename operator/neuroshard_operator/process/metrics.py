"""Prometheus metrics of the operator. No label names a job: their number does not grow with the cluster."""

from collections.abc import Callable, Iterable
from functools import partial

from neuroshard_api.job.policies import ConditionStatus
from neuroshard_api.job.status import Stage, StageState, Status
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

FAST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
LONG_S = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 4 * 3600.0, 24 * 3600.0, 7 * 24 * 3600.0)
SHARES = (-0.5, -0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
SPEEDUPS = (0.9, 1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 2.0, 3.0)


class OperatorMetrics:
    """All metrics, in their own registry."""

    def __init__(self) -> None:
        """Make them, all at zero."""
        self.registry = CollectorRegistry()
        self.queue_depth = self._gauge("neuroshard_queue_depth", "Jobs that wait to be reconciled.")
        self.queue_wait = self._histogram(
            "neuroshard_queue_wait_seconds", "Time from a job's wake-up to the start of its reconcile pass.", FAST_S
        )
        self.reconcile = self._histogram(
            "neuroshard_reconcile_seconds", "Time of one reconcile pass, API calls included.", FAST_S, ["outcome"]
        )
        self.turn = self._histogram(
            "neuroshard_loop_turn_seconds",
            "Processor time between two turns of the event loop, 0.25 s apart if it has nothing to do. A large one "
            "means that the operator itself delays events, and not the machine.",
            FAST_S,
        )
        self.jobs = Gauge(
            "neuroshard_jobs", "Jobs by the stage that their status shows.", ["stage"], registry=self.registry
        )
        self.watched = Gauge(
            "neuroshard_watched_objects",
            "Objects that the watches have brought and not deleted, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.stage = self._histogram(
            "neuroshard_stage_seconds",
            "Time that a stage took, from its start to its end.",
            LONG_S,
            ["stage", "outcome"],
        )
        self.ended = Counter(
            "neuroshard_jobs_ended", "Jobs that ended, by reason.", ["outcome", "reason"], registry=self.registry
        )
        self.restarts = Counter(
            "neuroshard_worker_restarts", "Restarts of all workers of a job.", ["counted"], registry=self.registry
        )
        self.drift = Counter(
            "neuroshard_drift",
            "Steps of a job that became lastingly slower, by cause.",
            ["cause"],
            registry=self.registry,
        )
        self.replans = Counter(
            "neuroshard_replans",
            "Restarts of workers under another plan, or elsewhere, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.promised_gain = self._histogram(
            "neuroshard_replan_promised_gain_ratio",
            "Expected decrease of the embedding part of a step by another plan.",
            SHARES,
        )
        self.measured_gain = self._histogram(
            "neuroshard_replan_measured_gain_ratio", "Measured decrease; below 0 it is an increase.", SHARES
        )
        self.repairs = Counter(
            "neuroshard_repairs", "Children and results restored after an edit or a loss.", registry=self.registry
        )
        self.plan_gain = self._histogram(
            "neuroshard_plan_gain_ratio", "Predicted cost of the best baseline over that of the plan.", SPEEDUPS
        )
        self.prediction_error = self._histogram(
            "neuroshard_prediction_error_ratio", "Measured over predicted cost, less 1, at the end of a job.", SHARES
        )
        self.api_errors = Counter(
            "neuroshard_api_errors",
            "API calls that failed, by verb and HTTP status (0: no answer).",
            ["verb", "code"],
            registry=self.registry,
        )
        self.api_calls = Counter(
            "neuroshard_api_calls", "API calls by verb, watches not counted.", ["verb"], registry=self.registry
        )
        self.resync_age = self._gauge("neuroshard_resync_age_seconds", "Seconds since all jobs were last listed.")

    def watch_age(self, age_s: Callable[[], float], depth: Callable[[], float]) -> None:
        """Read the age of the last resync and the queue's depth whenever metrics are scraped."""
        self.resync_age.set_function(age_s)
        self.queue_depth.set_function(depth)

    def watch_objects(self, kinds: Iterable[str], count: Callable[[str], float]) -> None:
        """Read the number of objects of each kind in the watches whenever metrics are scraped."""
        for kind in kinds:
            self.watched.labels(kind=kind).set_function(partial(count, kind))

    def called(self, verb: str) -> None:
        """Count a call."""
        self.api_calls.labels(verb=verb).inc()

    def failed_call(self, verb: str, code: int) -> None:
        """Count a call that failed."""
        self.api_errors.labels(verb=verb, code=str(code)).inc()

    def status_written(self, before: Status, after: Status) -> None:
        """Count the changes between two statuses of a job."""
        for stage in after.stages:
            ended = stage.state in {StageState.SUCCEEDED, StageState.FAILED}
            known = next((each for each in before.stages if each.name is stage.name), None)
            if not ended or (known is not None and known.state is stage.state):
                continue
            if stage.start_time is not None and stage.completion_time is not None:
                took_s = (stage.completion_time - stage.start_time).total_seconds()
                outcome = "succeeded" if stage.state is StageState.SUCCEEDED else "failed"
                self.stage.labels(stage=stage.name.value, outcome=outcome).observe(took_s)
        counted = (after.restarts_count_towards_max or 0) - (before.restarts_count_towards_max or 0)
        restarted = (after.restarts or 0) - (before.restarts or 0)
        self.restarts.labels(counted="true").inc(max(counted, 0))
        self.restarts.labels(counted="false").inc(max(restarted - counted, 0))
        self._replanned(before, after)
        if after.plan is not None and (before.plan is None or before.plan.hash != after.plan.hash):
            self._planned(after)
        if after.stage in {Stage.SUCCEEDED, Stage.FAILED} and before.stage is not after.stage:
            self.ended.labels(outcome=after.stage.value, reason=after.reason or "").inc()
            if after.cost is not None and after.cost.error_percent is not None:
                self.prediction_error.observe(after.cost.error_percent / 100)

    def event_told(self, reason: str) -> None:
        """Count the events that stand for a repair."""
        if reason == "ChildRepaired":
            self.repairs.inc()

    def _replanned(self, before: Status, after: Status) -> None:
        """Count a cause that is new, a restart for it, and the gain that was measured since."""
        steady, was = (
            next((each for each in status.conditions if each.type == "Steady"), None) for status in (after, before)
        )
        is_slow = steady is not None and steady.status is ConditionStatus.FALSE
        if (
            is_slow
            and steady is not None
            and (was is None or (was.status, was.reason) != (steady.status, steady.reason))
        ):
            self.drift.labels(cause=steady.reason).inc()
        known = before.replanning.history[-1:] if before.replanning else ()
        for newest in after.replanning.history[-1:] if after.replanning else ():
            is_new = not known or known[0].start_time != newest.start_time
            if is_new:
                self.replans.labels(reason=newest.reason).inc()
                if newest.promised_gain_percent is not None:
                    self.promised_gain.observe(newest.promised_gain_percent / 100)
            if newest.measured_gain_percent is not None and (is_new or known[0].measured_gain_percent is None):
                self.measured_gain.observe(newest.measured_gain_percent / 100)

    def _planned(self, status: Status) -> None:
        cost = status.cost
        baseline = cost.baseline.total_microseconds if cost and cost.baseline else None
        predicted = cost.predicted.total_microseconds if cost and cost.predicted else None
        if baseline and predicted:
            self.plan_gain.observe(baseline / predicted)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, registry=self.registry)

    def _histogram(
        self, name: str, meaning: str, buckets: tuple[float, ...], labels: list[str] | None = None
    ) -> Histogram:
        return Histogram(name, meaning, labels or [], buckets=buckets, registry=self.registry)
