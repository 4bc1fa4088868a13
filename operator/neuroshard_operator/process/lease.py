"""Which replica works: the one that holds the Lease. Whoever loses it stops at once."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from kubernetes.aio import client as kubernetes
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

# Whole seconds: the client cannot read back a record of fractions that it wrote.
LEASE_S = 15
RENEW_WITHIN_S = 10
RETRY_S = 2

logger = logging.getLogger(__name__)


class LeaseLostError(Exception):
    """Another replica works now, or the API server is out of reach; this one must end and start as a follower."""


class WorkingLeaseLock(LeaseLock):
    """The client's lock, which cannot create its Lease: it passes an argument that its own API refuses."""

    async def create(self, name: str, namespace: str, election_record: Any) -> bool:  # noqa: ANN401 - the client's
        """Create the Lease; False where another replica was faster, or the API server refuses."""
        spec = self.update_lease(election_record)
        body = kubernetes.V1Lease(metadata=kubernetes.V1ObjectMeta(name=name), spec=spec)
        try:
            await self.api_instance.create_namespaced_lease(namespace, body)
        except kubernetes.ApiException:
            logger.exception("Lease %s was not created", name)
            return False
        return True


async def while_leading(
    work: Callable[[], Awaitable[None]], *, client: ApiClient, name: str, namespace: str, identity: str
) -> None:
    """Wait for the Lease, then work for as long as it is held.

    Raises:
        LeaseLostError: the Lease was lost, and the work was cancelled.
    """
    ended = asyncio.Event()
    problems: list[BaseException] = []

    async def lead() -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - raised again below, out of the election's task
            problems.append(error)
        finally:
            ended.set()

    async def stop() -> None:
        ended.set()

    lock: Any = WorkingLeaseLock(name, namespace, identity, client)
    election = LeaderElection(Config(lock, LEASE_S, RENEW_WITHIN_S, RETRY_S, lead, stop))
    campaign = asyncio.create_task(election.run())
    waiting = asyncio.create_task(ended.wait())
    await asyncio.wait({campaign, waiting}, return_when=asyncio.FIRST_COMPLETED)
    lost = campaign.done()
    for task in (campaign, waiting):
        task.cancel()
    ends = await asyncio.gather(campaign, waiting, return_exceptions=True)
    problems += [end for end in ends if isinstance(end, Exception)]
    if problems:
        raise problems[0]
    if lost:
        raise LeaseLostError(f"lease {name} was lost")
