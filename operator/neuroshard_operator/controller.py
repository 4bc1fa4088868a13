"""The loop: takes a key from the queue, looks, decides, acts, and sets the next pass. Holds no state of jobs."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from neuroshard_decisions.actions import Event, EventReason
from neuroshard_decisions.context import Context, UnreadableJob, earliest
from neuroshard_decisions.observed.objects import Observed
from neuroshard_decisions.reconcile import read, reads_needed, reconcile
from neuroshard_decisions.status import has_ended, needs_profile

from neuroshard_operator.children.writing import Writer, as_writes
from neuroshard_operator.cluster.api import Api, ApiError
from neuroshard_operator.cluster.caches import Caches
from neuroshard_operator.cluster.cluster import Cluster, StaleError
from neuroshard_operator.cluster.resync import Resync, reachable
from neuroshard_operator.cluster.watched import JobKey
from neuroshard_operator.logs import about
from neuroshard_operator.pace import StatusPace
from neuroshard_operator.process.metrics import OperatorMetrics
from neuroshard_operator.queue import KeyedQueue
from neuroshard_operator.settings import Settings
from neuroshard_operator.writes import Writes

MOST_READS = 5
"""Rounds of reading before one pass: Jobs that no watch shows, results, nodes, files of users, the profile."""
PASS_TIMEOUT_S = 300.0
"""One pass with all its calls takes less; a longer one is given up and begins again."""
START_S = 900.0
"""Until a start that has not brought everything counts as dead: lists of a large cluster take minutes."""
MISSED_RESYNCS = 3
"""That many intervals without a resync, and the operator counts as dead."""
RESYNC_SPREAD = 0.1
"""Of the interval, over which a resync wakes jobs one after the other: an event need not wait for all of them."""
FILL_AGAIN_S = 1.0
"""Until everything is listed again, while the watches have not brought all that is there."""
REST_S = 0.2
"""Between two passes at a job: its children's events come in bursts, our own writes among them."""
STALE_S, LONGEST_STALE_S = 0.5, 30.0
"""Until the watch has brought what made a pass stale, doubled each time that the next pass is stale too; at most."""
STALE_AND_REPORTED = 5
"""Stale passes in a row after which an event and the log have the cause: a watch is late by less."""

logger = logging.getLogger(__name__)


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


class NamespacesChangedError(Exception):
    """A watched namespace was deleted or has come back; the watches must be started again without or with it."""


async def gathered(
    cluster: Cluster, observed: Observed, *, now: datetime, settings: Settings
) -> Context | UnreadableJob:
    """Return a job as read, with everything that its reconcile pass needs and no watch brings.

    Raises ApiError, and StaleError.
    """
    context = read(await cluster.with_spec(observed), now=now, rules=settings.rules)
    reads = reads_needed(context)
    for _ in range(MOST_READS):
        context = replace(context, observed=await cluster.fetch(context.observed, reads))
        reads = reads_needed(context)
        if not reads:
            break
    return context


def decided(context: Context | UnreadableJob, settings: Settings) -> Writes:
    """Return the writes of one pass."""
    if isinstance(context, UnreadableJob):
        return as_writes(context, reconcile(context), settings)
    writer = Writer(context=context, settings=settings)
    return as_writes(context, reconcile(context, places_of=writer.places_of), settings)


class Controller:
    """Workers over one queue. Belongs to one event loop."""

    def __init__(
        self,
        *,
        api: Api,
        caches: Caches,
        settings: Settings,
        metrics: OperatorMetrics,
        now: Callable[[], datetime] = utc_now,
        namespaces: Sequence[str] | None = None,
    ) -> None:
        """Work on the jobs of `caches` through `api`; `namespaces` are those of the settings that can be watched."""
        self.queue: KeyedQueue[JobKey] = KeyedQueue(rest_s=REST_S)
        self._api = api
        self._caches = caches
        self._cluster = Cluster(api, caches, settings)
        self._pace = StatusPace()
        self._settings = settings
        self._metrics = metrics
        self._now = now
        self._resynced_s = time.monotonic()
        self._namespaces = settings.namespaces if namespaces is None else namespaces
        self._lists = Resync(api, caches.watched, self._namespaces)
        self._stalled: tuple[str, ...] = ()
        self._stages: dict[JobKey, str] = {}
        self._stale: dict[JobKey, int] = {}
        self._filled = asyncio.Event()
        metrics.watch_age(lambda: self.resync_age_s, lambda: len(self.queue))

    @property
    def resync_age_s(self) -> float:
        """Seconds since all jobs were last listed and woken by a replica that is ready; the start counts as one."""
        return time.monotonic() - self._resynced_s

    @property
    def is_alive(self) -> bool:
        """Whether the last resync is recent and found no watch that has stopped."""
        most_s = MISSED_RESYNCS * self._settings.resync_seconds
        return not self._stalled and self.resync_age_s < (most_s if self.is_ready else max(most_s, START_S))

    @property
    def is_ready(self) -> bool:
        """Whether the watches have brought what is there: from then on this replica does its work."""
        return self._filled.is_set()

    async def run(self) -> None:
        """Work until cancelled. Raises NamespacesChangedError."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._resync_forever())
                for _ in range(self._settings.workers):
                    tasks.create_task(self._work_forever())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group  # the task that broke; the others were cancelled
        finally:
            self.queue.close()

    def wake(self, key: JobKey) -> None:
        """Ask for a pass at a job."""
        self.queue.wake(key)

    def wake_for_profile(self, namespace: str) -> None:
        """Wake the jobs of a namespace that may be about the profile that came or went."""
        for key in self._caches.known():
            job = self._caches.training_job(key) if key[0] == namespace else None
            if job is not None and needs_profile(job.status):
                self.queue.wake(key)

    async def _resync_forever(self) -> None:
        while True:
            try:
                await self._resync()
            except ApiError as error:
                logger.warning("jobs could not be listed: %s", error)
            except NamespacesChangedError:
                raise
            except Exception:
                logger.exception("jobs could not be listed")
            await asyncio.sleep(self._settings.resync_seconds if self.is_ready else FILL_AGAIN_S)

    async def _resync(self) -> None:
        """Compare what the watches show with the API server, and wake every job.

        Raises:
            NamespacesChangedError: another set of namespaces can be watched than the one that is.
        """
        done = await self._lists.run()
        if self._settings.namespaces:
            now_reachable = await reachable(self._api, self._settings.namespaces)
            if set(now_reachable) != set(self._namespaces):
                found = ", ".join(now_reachable) or "none"
                raise NamespacesChangedError(f"the namespaces that can be watched are now: {found}")
        self._stalled = done.stalled if self.is_ready else ()
        if self._stalled:
            logger.error("the watches of these kinds have stopped: %s", ", ".join(self._stalled))
        known = {*self._caches.known(), *done.jobs}
        for key in self._stages.keys() - known:
            self.queue.wake(key)
        pause_s = RESYNC_SPREAD * self._settings.resync_seconds / max(1, len(known))
        for number, key in enumerate(known):
            self.queue.wake_after(key, number * pause_s)
        # Before, a pass would miss children that are there.
        if not self.is_ready and await self._lists.is_filled():
            self._filled.set()
        if self.is_ready:
            self._resynced_s = time.monotonic()

    async def _work_forever(self) -> None:
        await self._filled.wait()
        while True:
            key, waited_s = await self.queue.take()
            self._metrics.queue_wait.observe(waited_s)
            began_s = time.monotonic()
            outcome = "error"
            try:
                async with asyncio.timeout(PASS_TIMEOUT_S):
                    outcome = await self._reconcile_one(key)
            except StaleError as error:
                outcome = "stale"
                number = self._stale[key] = self._stale.get(key, 0) + 1
                pause_s = min(STALE_S * 2.0 ** min(number - 1, 10), LONGEST_STALE_S)
                self.queue.wake_after(key, pause_s)
                level = logging.WARNING if number >= STALE_AND_REPORTED else logging.DEBUG
                logger.log(level, "%s; again in %.1f s", error, pause_s, extra=self._about(key))
                if number == STALE_AND_REPORTED:
                    await self._report_stale(key, error)
            except (ApiError, TimeoutError) as error:
                pause_s = self.queue.failed(key)
                problem = str(error) or "the pass took too long"
                logger.warning("%s; again in %.0f s", problem, pause_s, extra=self._about(key))
            except Exception:
                pause_s = self.queue.failed(key)
                logger.exception("a pass failed; again in %.0f s", pause_s, extra=self._about(key))
            finally:
                self._metrics.reconcile.labels(outcome=outcome).observe(time.monotonic() - began_s)
                self.queue.done(key)

    async def _reconcile_one(self, key: JobKey) -> str:
        now = self._now()
        observed = self._cluster.observe(key)
        if observed is None:
            self._forget(key)
            return "gone"
        context = await gathered(self._cluster, observed, now=now, settings=self._settings)
        before = context.status
        decision = self._pace.paced(key, before, decided(context, self._settings))
        due_s = await self._cluster.apply(context.observed, decision)
        if decision.status is not None:
            self._pace.wrote(key)
        self.queue.succeeded(key)
        self._stale.pop(key, None)
        after = decision.status or before
        if has_ended(after):
            self._cluster.forget_contents(key)
            self._pace.forget(key)
        if decision.status is not None:
            self._metrics.status_written(before, after)
            logger.info("%s", after.message or after.stage, extra={**self._about(key), "reason": after.reason})
        for event in decision.events:
            self._metrics.event_told(event.reason)
        self._note_stage(key, after.stage.value if after.stage else "Pending")
        again_s = earliest([due_s, decision.requeue_after_s])
        if again_s is not None:
            self.queue.wake_after(key, again_s)
        return "changed" if decision.status is not None or decision.actions else "unchanged"

    async def _report_stale(self, key: JobKey, error: StaleError) -> None:
        """Write an event: a status that says so would be refused as well, where the job itself keeps changing."""
        hint = "hint: see which controller or user keeps changing it"
        message = f"{error}, {STALE_AND_REPORTED} times in a row; nothing is done for the job meanwhile; {hint}"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PASS_TIMEOUT_S):
                await self._cluster.report(key, Event(reason=EventReason.VIEW_OUTDATED, message=message))

    def _about(self, key: JobKey) -> dict[str, Any]:
        job = self._caches.training_job(key)
        return about(*key, job.status if job else {})

    def _forget(self, key: JobKey) -> None:
        self.queue.forget(key)
        self._cluster.forget(key)
        self._pace.forget(key)
        self._stale.pop(key, None)
        stage = self._stages.pop(key, None)
        if stage is not None:
            self._metrics.jobs.labels(stage=stage).dec()

    def _note_stage(self, key: JobKey, stage: str) -> None:
        before = self._stages.get(key)
        if before == stage:
            return
        if before is not None:
            self._metrics.jobs.labels(stage=before).dec()
        self._metrics.jobs.labels(stage=stage).inc()
        self._stages[key] = stage
