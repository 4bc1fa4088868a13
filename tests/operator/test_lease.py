"""Leadership: against an API server that answers, is silent, refuses connections, or belongs to another replica."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from neuroshard_cluster.bare_api import BareApi
from neuroshard_cluster.ports import held_port
from neuroshard_cluster.waiting import eventually
from neuroshard_operator.cluster.api import ApiError, KubernetesApi
from neuroshard_operator.main import LEASE_CALL_TIMEOUT_S
from neuroshard_operator.process.lease import Lease, LeaseLostError, LeaseTimes, while_leading
from support.operator.virtual_time import run_in_virtual_time

TIMES = LeaseTimes()
HANGS_AFTER_S = 600.0
"""Virtual seconds that no story takes."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


class LeaseServer:
    """The Lease endpoints of an API server, with its optimistic locking, on a real port."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.answers = asyncio.Event()
        self.answers.set()
        self._version = 0
        self._runner: web.AppRunner | None = None
        self._held = held_port()
        self.port = int(self._held.getsockname()[1])

    @property
    def holder(self) -> str:
        """The replica that the Lease names."""
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])

    async def start(self) -> None:
        """Accept connections."""
        app = web.Application()
        app.router.add_get(f"{LEASES}/operators", self._get)
        app.router.add_put(f"{LEASES}/operators", self._put)
        app.router.add_post(LEASES, self._post)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_port=True).start()

    async def stop(self) -> None:
        """Refuse connections."""
        assert self._runner is not None
        await self._runner.cleanup()

    def close(self) -> None:
        """Leave the port to others."""
        self._held.close()

    def hand_over(self, holder: str) -> None:
        """Let another replica hold the Lease."""
        assert self.lease is not None
        self._write({**self.lease, "spec": {**self.lease["spec"], "holderIdentity": holder}})

    def _write(self, lease: dict[str, Any]) -> web.Response:
        self._version += 1
        self.lease = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(self._version)}}
        return web.json_response(self.lease)

    async def _get(self, _request: web.Request) -> web.Response:
        await self._hang()
        if self.lease is None:
            return web.json_response({"reason": "NotFound", "message": "no lease"}, status=404)
        return web.json_response(self.lease)

    async def _post(self, request: web.Request) -> web.Response:
        await self._hang()
        if self.lease is not None:
            return web.json_response({"reason": "AlreadyExists", "message": "there is one"}, status=409)
        return self._write(await request.json())

    async def _put(self, request: web.Request) -> web.Response:
        await self._hang()
        body = await request.json()
        if self.lease is None or body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            return web.json_response({"reason": "Conflict", "message": "it changed"}, status=409)
        return self._write(body)

    async def _hang(self) -> None:
        await self.answers.wait()


class Work:
    """What a leader does: nothing, until it is cancelled."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self.ended = asyncio.Event()

    async def __call__(self) -> None:
        """Work for ever."""
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


def lease_api(client: ApiClient, **more: Any) -> KubernetesApi:
    """Return the calls of the election, as the operator makes them."""
    untold: Any = {"on_call": lambda _verb: None, "on_error": lambda _verb, _code: None}
    return KubernetesApi(client, timeout_s=LEASE_CALL_TIMEOUT_S, **untold, **more)


@asynccontextmanager
async def api_of(server: LeaseServer) -> AsyncIterator[KubernetesApi]:
    """Give a client of a server, as the operator makes it."""
    configuration: Any = Configuration()
    configuration.host = f"http://127.0.0.1:{server.port}"
    async with ApiClient(configuration) as client:
        yield lease_api(client)


def lease_of(api: KubernetesApi, identity: str, **more: Any) -> Lease:
    """Return one replica's part in the election."""
    clock = asyncio.get_running_loop().time
    return Lease(api, name="operators", namespace="default", identity=identity, **{"clock": clock, **more})


def play(story: Callable[[LeaseServer, KubernetesApi], Awaitable[None]]) -> None:
    """Run a story against a server that has just started."""

    async def played() -> None:
        server = LeaseServer()
        await server.start()
        try:
            async with asyncio.timeout(HANGS_AFTER_S), api_of(server) as api:
                await story(server, api)
        finally:
            server.answers.set()
            await server.stop()
            server.close()

    run_in_virtual_time(played())


@asynccontextmanager
async def leading(api: KubernetesApi, identity: str) -> AsyncIterator[tuple[Work, "asyncio.Task[None]"]]:
    """Give a replica that leads."""
    work = Work()
    running = asyncio.create_task(while_leading(lease_of(api, identity), work, stop=asyncio.Event()))
    await work.began.wait()
    try:
        yield work, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def test_a_leader_renews_and_releases() -> None:
    """Another replica waits while the first renews, and works as soon as the first has given the Lease up."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        second = Work()
        async with leading(api, "first") as (first, running):
            waiting = asyncio.create_task(while_leading(lease_of(api, "second"), second, stop=asyncio.Event()))
            await asyncio.sleep(1.2 * TIMES.duration_s)
            assert server.holder == "first"
            assert not second.began.is_set()
            running.cancel()
            await first.ended.wait()
            async with asyncio.timeout(TIMES.duration_s):
                await second.began.wait()
        assert server.lease is not None
        assert (server.holder, server.lease["spec"]["leaseTransitions"]) == ("second", 1)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    play(story)


def test_a_renewal_whose_answer_was_lost_does_not_keep_the_lease() -> None:
    """The Lease has another version then, and is this replica's all the same."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        lease = lease_of(api, "first")
        await lease.acquire()
        server.hand_over("first")
        await lease.release()
        assert server.holder == ""

    play(story)


def test_a_leader_survives_an_api_server_that_is_away_for_a_moment() -> None:
    """A refused connection is an attempt that failed, and the next one renews."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        async with leading(api, "first") as (work, running):
            await server.stop()
            await asyncio.sleep(TIMES.renew_within_s / 3)
            await server.start()
            await asyncio.sleep(1.2 * TIMES.renew_within_s)
            assert not work.ended.is_set()
            assert not running.done()

    play(story)


@pytest.mark.parametrize("how", ["silent", "refusing"])
def test_a_leader_stops_when_it_cannot_renew(how: str) -> None:
    """A leader stops before a follower may begin, whether the API server does not answer or refuses connections."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        async with leading(api, "first") as (work, running):
            server.answers.clear()
            if how == "refusing":
                await server.stop()
            async with asyncio.timeout(TIMES.duration_s):
                await work.ended.wait()
            with pytest.raises(LeaseLostError, match="was not renewed within 10 s"):
                await running
            if how == "refusing":
                await server.start()

    play(story)


def test_a_leader_stops_at_once_when_another_replica_holds_the_lease() -> None:
    """It does not use up the time that it could have renewed in."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        async with leading(api, "first") as (work, running):
            server.hand_over("second")
            async with asyncio.timeout(TIMES.renew_within_s):
                await work.ended.wait()
            with pytest.raises(LeaseLostError, match="is held by second"):
                await running
        assert server.holder == "second"

    play(story)


def test_a_leader_that_was_frozen_may_not_write() -> None:
    """When it wakes up, the first write fails, before the election has noticed anything."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        now_s = 0.0
        lease = lease_of(api, "first", clock=lambda: now_s)
        await lease.acquire()
        guarded = lease_api(api._client, may_write=lambda: lease.is_held)
        assert server.lease is not None
        await guarded.replace({"apiVersion": "v1", "kind": "Lease", **server.lease})
        now_s += TIMES.renew_within_s
        with pytest.raises(ApiError, match="this replica does not hold the lease"):
            await guarded.replace({"apiVersion": "v1", "kind": "Lease", **server.lease})

    play(story)


def test_a_follower_takes_over_from_a_leader_that_is_gone() -> None:
    """By its own clock: what the clock of the other replica wrote does not matter."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        await lease_of(api, "first").acquire()
        assert server.lease is not None
        server.lease["spec"]["renewTime"] = "2100-01-01T00:00:00.000000Z"
        await lease_of(api, "second").acquire()
        assert server.holder == "second"

    play(story)


def test_a_follower_waits_for_an_api_server_that_is_away() -> None:
    """It does not end, so that no restart of the control plane makes replicas crash."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        await server.stop()
        acquiring = asyncio.create_task(lease_of(api, "first").acquire())
        await asyncio.sleep(5 * TIMES.retry_s)
        assert not acquiring.done()
        await server.start()
        await acquiring
        assert server.holder == "first"

    play(story)


def test_a_follower_stops_when_asked() -> None:
    """It ends without having worked, and leaves the Lease as it is."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        work, stop = Work(), asyncio.Event()
        async with leading(api, "first"):
            waiting = asyncio.create_task(while_leading(lease_of(api, "second"), work, stop=stop))
            await asyncio.sleep(2 * TIMES.retry_s)
            stop.set()
            await waiting
            assert not work.began.is_set()
            assert server.holder == "first"

    play(story)


def test_a_deleted_lease_ends_the_leader() -> None:
    """Any replica may make the next one."""

    async def story(server: LeaseServer, api: KubernetesApi) -> None:
        async with leading(api, "first") as (_, running):
            server.lease = None
            with pytest.raises(LeaseLostError, match="is held by nobody"):
                await running

    play(story)


@pytest.mark.api_server
@pytest.mark.slow
def test_the_holder_of_the_lease_works_and_is_named_in_it(bare_api: BareApi) -> None:
    """On a real API server the Lease is created, renewed, and given up at the end."""
    seen: list[str] = []

    def spec() -> dict[str, Any]:
        found: dict[str, Any] = bare_api.kubectl.get("lease", "operators")["spec"]
        return found

    async def work() -> None:
        taken = spec()
        while spec()["renewTime"] == taken["renewTime"]:  # noqa: ASYNC110 - kubectl has no event
            await asyncio.sleep(0)
        seen.append(taken["holderIdentity"])

    async def run() -> None:
        configuration: Any = Configuration()
        load: Any = config.load_kube_config  # the package's types are partial
        await load(config_file=str(bare_api.kubectl.kubeconfig), client_configuration=configuration)
        async with ApiClient(configuration) as client:
            api = KubernetesApi(
                client, timeout_s=LEASE_CALL_TIMEOUT_S, on_call=lambda _verb: None, on_error=lambda _verb, _code: None
            )
            lease = Lease(api, name="operators", namespace="default", identity="first", times=LeaseTimes(retry_s=0.01))
            await while_leading(lease, work, stop=asyncio.Event())

    asyncio.run(run())

    assert seen == ["first"]
    assert not spec().get("holderIdentity")


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: test, context: {cluster: test, user: test}}]
users: [{name: test, user: {}}]
"""


@pytest.mark.slow
def test_the_process_of_a_follower_ends_on_sigterm(tmp_path: Path) -> None:
    """As pid 1 of its container nothing else would end it before the grace period does."""
    kubeconfig, log = tmp_path / "kubeconfig", tmp_path / "log"
    kubeconfig.write_text(KUBECONFIG)
    images = {f"NEUROSHARD_{room}_IMAGE": room for room in ("PROFILER", "PLANNER", "TRAINER")}
    settings = {"NEUROSHARD_LEASE": "operators", "NEUROSHARD_HTTP_PORT": "0", "KUBECONFIG": str(kubeconfig)}
    with log.open("wb") as output:
        follower = subprocess.Popen(
            [sys.executable, "-m", "neuroshard_operator"],
            env={**os.environ, **images, **settings},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually("the follower waits", lambda: "trying again" in log.read_text(), within_s=60)
        follower.send_signal(signal.SIGTERM)

        assert follower.wait(timeout=60) == 0, log.read_text()
    finally:
        follower.kill()
        follower.wait()
