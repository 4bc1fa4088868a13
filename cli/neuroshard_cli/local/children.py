"""Processes of a run as decisions see a job: each in the place of a Kubernetes Job with one pod."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from neuroshard_decisions import names
from neuroshard_decisions.actions import Run, WorkersRun
from neuroshard_decisions.observed.objects import ChildConfigMap, ChildJob, ChildPod, JobEnd, Meta, Termination
from neuroshard_decisions.observed.results import Unreadable
from neuroshard_decisions.stages.stage_job import DEADLINE_EXCEEDED

UID = "local"
"""uid of the job, which owns all that is in its folder."""


def present_time() -> datetime:
    """Return the present time, with its zone."""
    return datetime.now(UTC)


class Children:
    """Processes that one command has started for decisions.

    Args:
        clock: the present time, with its zone.
    """

    def __init__(self, *, clock: Callable[[], datetime] = present_time) -> None:
        self._clock = clock
        self._jobs: dict[str, ChildJob] = {}
        self._pods: dict[str, ChildPod] = {}
        self._results: dict[str, ChildConfigMap] = {}

    @property
    def now(self) -> datetime:
        """The present time."""
        return self._clock()

    @property
    def jobs(self) -> tuple[ChildJob, ...]:
        """What was started, as Jobs."""
        return tuple(self._jobs.values())

    @property
    def pods(self) -> tuple[ChildPod, ...]:
        """What was started, as pods."""
        return tuple(self._pods.values())

    @property
    def results(self) -> tuple[ChildConfigMap, ...]:
        """Results that nothing was published to, or nothing that can be used."""
        return tuple(self._results.values())

    @property
    def workers(self) -> str | None:
        """Name of the workers that run. None: none do."""
        running = (job.meta.name for job in self._jobs.values() if job.role == names.WORKER and job.outcome is None)
        return next(running, None)

    def started(self, run: Run) -> None:
        """Note that a process was started."""
        now = self.now
        attempt = run.attempt if isinstance(run, WorkersRun) else 0
        meta = Meta(name=run.name, uid=run.name, owner_uid=UID, created=now, labels=run.labels)
        self._jobs[run.name] = ChildJob(meta=meta, role=run.role, attempt=attempt)
        self._pods[run.name] = ChildPod(
            meta=Meta(name="", owner_uid=run.name, created=now), role=run.role, attempt=attempt, phase="Running"
        )
        if not isinstance(run, WorkersRun):
            result = Meta(name=run.result, owner_uid=UID, created=now)
            self._results[run.name] = ChildConfigMap(meta=result, role=run.role, is_read=True)

    def ready(self, name: str, *, are_ready: bool) -> None:
        """Note whether workers train."""
        self._pods[name] = replace(self._pods[name], ready=are_ready)

    def ended(self, name: str, exit_code: int, log_tail: str, *, timed_out: bool = False) -> None:
        """Note how a process ended."""
        now, succeeded = self.now, exit_code == 0 and not timed_out
        reason = DEADLINE_EXCEEDED if timed_out else ""
        job, pod = self._jobs[name], self._pods[name]
        outcome = JobEnd(succeeded=succeeded, reason=reason, message="", time=now)
        end = Termination(container=job.role, exit_code=exit_code, reason=reason, message=log_tail, time=now)
        self._jobs[name] = replace(job, outcome=outcome)
        self._pods[name] = replace(
            pod, phase="Succeeded" if succeeded else "Failed", termination=None if succeeded else end
        )

    def published(self, name: str, *, problem: str = "") -> None:
        """Note that a process has published its result, or why that cannot be used."""
        if not problem:
            del self._results[name]
        else:
            self._results[name] = replace(self._results[name], document=Unreadable(problem=problem))

    def forget(self, name: str) -> None:
        """Forget a process: nothing of it is left."""
        for known in (self._jobs, self._pods, self._results):
            known.pop(name, None)
