"""Leader election: the replica that holds the Lease works, the others wait.

Times are those of client-go's leader election. A leader renews the Lease every `retry_s` and stops at the latest
`renew_within_s` after the start of its last successful renewal, by a clock that runs on while the process is frozen. A
follower takes the Lease once it has not seen it change for `duration_s`, which is longer. Between the two, none works.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from neuroshard_operator.cluster.api import CONFLICT, NOT_FOUND, ApiError, Json

KIND = "Lease"
logger = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """Another replica holds the Lease, or it was not renewed in time: the process must end and start as a follower."""


class LeaseApi(Protocol):
    """The calls of the API server that the election makes."""

    async def get(self, kind: str, namespace: str, name: str) -> Json:
        """Return one object. Raises ApiError."""

    async def create(self, manifest: Mapping[str, Any]) -> Json:
        """Create an object and return it. Raises ApiError."""

    async def replace(self, body: Mapping[str, Any]) -> Json:
        """Replace an object whose resourceVersion the body names. Raises ApiError."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseTimes:
    """How long a Lease holds, in seconds."""

    duration_s: float = 15.0
    """Time without a change after which a follower takes the Lease."""
    renew_within_s: float = 10.0
    """Time without a renewal after which the leader stops."""
    retry_s: float = 2.0
    """Time between renewals, and between a follower's reads."""


def boot_clock() -> float:
    """Return seconds of a clock that also runs while the process is stopped or the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """One replica's part in the election.

    Args:
        api: its calls must time out well within `renew_within_s`.
        name: of the Lease.
        namespace: of the Lease.
        identity: of this replica, different from that of all others.
        times: equal in all replicas.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        api: LeaseApi,
        *,
        name: str,
        namespace: str,
        identity: str,
        times: LeaseTimes = LeaseTimes(),
        clock: Callable[[], float] = boot_clock,
    ) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._times = times
        self._clock = clock
        self._record: Json | None = None
        """The Lease as it was read or written last."""
        self._changed_at_s = clock()
        self._held_until_s: float | None = None

    @property
    def is_held(self) -> bool:
        """Whether this replica may write now. It is no longer once the time of the last renewal is over."""
        return self._held_until_s is not None and self._clock() < self._held_until_s

    async def acquire(self) -> None:
        """Wait until this replica holds the Lease, for as long as it takes, also while the API server is away."""
        problem = ""
        while not await self._tried():
            if self._problem != problem and self._problem:
                logger.warning("lease %s: %s; trying again", self._name, self._problem)
            problem = self._problem
            await asyncio.sleep(self._times.retry_s)
        logger.info("lease %s is held by this replica, %s", self._name, self._identity)

    async def keep(self) -> None:
        """Renew the Lease until it is lost.

        Raises:
            LeaseLostError: at once when another replica holds it, else when it was not renewed in time.
        """
        while True:
            await asyncio.sleep(min(self._times.retry_s, max(self._left_s(), 0.0)))
            try:
                async with asyncio.timeout(max(self._left_s(), 0.0)):
                    await self._renew()
            except TimeoutError:
                self._problem = "no answer"
            if not self.is_held:
                self._held_until_s = None
                raise LeaseLostError(
                    f"lease {self._name} was not renewed within {self._times.renew_within_s:g} s: {self._problem}"
                )

    async def release(self) -> None:
        """Give the Lease up, so that a follower need not wait for its end; nothing where it is not held."""
        if not self.is_held or self._record is None:
            return
        try:
            async with asyncio.timeout(max(self._left_s(), 0.0)):
                await self._give_up()
        except (ApiError, TimeoutError) as error:
            logger.warning("lease %s was not released: %s", self._name, error or "no answer")
        self._held_until_s = None

    async def _give_up(self) -> None:
        """Write that nobody holds the Lease. Raises ApiError."""
        try:
            await self._api.replace(self._manifest(holder=""))
        except ApiError as error:
            if error.code != CONFLICT:
                raise
            found = await self._read()  # a renewal that was cancelled may have arrived
            if found is not None and _holder(found) == self._identity:
                self._record = found
                await self._api.replace(self._manifest(holder=""))

    _problem = ""
    """Why the last try came to nothing; empty where another replica holds the Lease."""

    async def _tried(self) -> bool:
        """Read the Lease and take it where it is free; return whether it is held."""
        started_s = self._clock()
        self._problem = ""
        try:
            found = await self._read()
            if found is None:
                self._held(await self._api.create(self._manifest(holder=self._identity)), since_s=started_s)
                return True
            self._see(found)
            if not self._is_free(found):
                return False
            self._held(await self._api.replace(self._manifest(holder=self._identity)), since_s=started_s)
        except ApiError as error:
            if error.code != CONFLICT:  # another replica was faster
                self._problem = str(error)
            return False
        return True

    async def _renew(self) -> None:
        """Renew once; what fails is tried again later. Raises LeaseLostError."""
        started_s = self._clock()
        try:
            try:
                self._held(await self._api.replace(self._manifest(holder=self._identity)), since_s=started_s)
            except ApiError as error:
                if error.code not in {CONFLICT, NOT_FOUND}:
                    raise
                await self._renew_changed(started_s)
        except ApiError as error:
            self._problem = str(error)

    async def _renew_changed(self, started_s: float) -> None:
        """Renew a Lease that was changed since the last renewal, unless it is another replica's now."""
        found = await self._read()
        holder = "nobody" if found is None else _holder(found)
        if found is None or holder != self._identity:
            self._held_until_s = None
            raise LeaseLostError(f"lease {self._name} is held by {holder or 'nobody'}")
        self._record = found
        self._held(await self._api.replace(self._manifest(holder=self._identity)), since_s=started_s)

    async def _read(self) -> Json | None:
        try:
            return await self._api.get(KIND, self._namespace, self._name)
        except ApiError as error:
            if error.code == NOT_FOUND:
                return None
            raise

    def _see(self, found: Json) -> None:
        """Remember a Lease, and when it changed by this replica's own clock: clocks of replicas may differ."""
        if self._record is None or _version(found) != _version(self._record):
            self._changed_at_s = self._clock()
        self._record = found

    def _is_free(self, found: Json) -> bool:
        over = self._clock() - self._changed_at_s >= self._times.duration_s
        return _holder(found) in {"", self._identity} or over

    def _held(self, record: Json, *, since_s: float) -> None:
        self._record = record
        self._held_until_s = since_s + self._times.renew_within_s

    def _left_s(self) -> float:
        return 0.0 if self._held_until_s is None else self._held_until_s - self._clock()

    def _manifest(self, *, holder: str) -> Json:
        """Return the Lease as this replica writes it: based on the one that was seen last, whose version it names."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        before: Mapping[str, Any] = self._record["spec"] if self._record else {}
        changes = holder != before.get("holderIdentity")
        version = {"resourceVersion": _version(self._record)} if self._record else {}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": KIND,
            "metadata": {"name": self._name, "namespace": self._namespace, **version},
            "spec": {
                **before,
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, round(self._times.duration_s)),
                "renewTime": now,
                "acquireTime": now if changes else before.get("acquireTime", now),
                "leaseTransitions": int(before.get("leaseTransitions") or 0)
                + (changes and bool(holder) and bool(before)),
            },
        }


def _holder(record: Json) -> str:
    return str(record["spec"].get("holderIdentity") or "")


def _version(record: Json) -> str:
    return str(record["metadata"].get("resourceVersion", ""))


async def while_leading(lease: Lease, work: Callable[[], Awaitable[None]], *, stop: asyncio.Event) -> None:
    """Wait for the Lease, then work for as long as it is held; release it at the end.

    Returns when the work ends, or when `stop` is set while the Lease is another replica's.

    Raises:
        LeaseLostError: the Lease was lost, and the work was cancelled and has ended.
    """
    if not await _acquired(lease, stop):
        return
    keeping = asyncio.ensure_future(lease.keep())
    working = asyncio.ensure_future(work())
    try:
        await asyncio.wait({keeping, working}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        lost = keeping.done()
        await _ended(working)
        await _ended(keeping)
        await lease.release()
    if lost:
        keeping.result()
    if not working.cancelled():
        working.result()


async def _acquired(lease: Lease, stop: asyncio.Event) -> bool:
    acquiring, stopping = asyncio.ensure_future(lease.acquire()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({acquiring, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        is_acquired = acquiring.done() and not acquiring.cancelled()
        await _ended(acquiring)
        await _ended(stopping)
    if is_acquired:
        acquiring.result()
    return is_acquired


async def _ended(task: "asyncio.Future[Any]") -> None:
    """Cancel a task and wait for its end; its result is asked for elsewhere."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
