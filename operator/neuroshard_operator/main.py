"""The operator's process: reads the environment, connects, and runs until it is asked to stop."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import kopf
from kubernetes.aio import config
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_decisions import names

from neuroshard_operator.cluster.api import ApiError, KubernetesApi
from neuroshard_operator.cluster.bounded_session import bounded_session
from neuroshard_operator.cluster.caches import Caches
from neuroshard_operator.cluster.resync import reachable
from neuroshard_operator.cluster.watched import WatchedObjects
from neuroshard_operator.cluster.watches import KINDS_BY_PLURAL, NoMemories, register, watch_settings
from neuroshard_operator.controller import Controller, NamespacesChangedError
from neuroshard_operator.logs import configure_logs
from neuroshard_operator.process.health import health_server
from neuroshard_operator.process.lease import Lease, LeaseLostError, while_leading
from neuroshard_operator.process.metrics import OperatorMetrics
from neuroshard_operator.process.turns import turns_observed
from neuroshard_operator.settings import Settings, settings_from

LEASE_CALL_TIMEOUT_S = 4.0
"""A renewal that gets no answer is tried twice within the time that a Lease must be renewed in."""
AGAIN_S = 10.0
"""Until the API server is asked again for what it did not say."""

logger = logging.getLogger(__name__)
T = TypeVar("T")


class JobSetsChangedError(Exception):
    """The cluster has JobSets by now, or no longer; the watches must be started again."""


class WatchesEndedError(Exception):
    """The watches have ended, and nobody asked for that."""


class Operator:
    """One process: its client, its watches, its controller."""

    def __init__(self, settings: Settings, client: ApiClient) -> None:
        """Work with these settings on the API server of a client."""
        self._settings = settings
        self._client = client
        self._metrics = OperatorMetrics()
        self._controller: Controller | None = None
        self._stop = asyncio.Event()
        self._lease = self._lease_of(settings.lease) if settings.lease else None

    async def run(self) -> None:
        """Serve health and metrics, and work whenever this replica is the one to work."""
        settings = self._settings
        server = health_server(
            port=settings.http_port, registry=self._metrics.registry, is_alive=self._is_alive, is_ready=self._is_ready
        )
        async with turns_observed(self._metrics.turn.observe), server as port:
            logger.info("health and metrics on port %d", port)
            self._stop_on_signals()
            if self._lease is None:
                await self._work()
            else:
                await while_leading(self._lease, self._work, stop=self._stop)

    def _stop_on_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)

    def _lease_of(self, name: str) -> Lease:
        return Lease(
            self._api(timeout_s=LEASE_CALL_TIMEOUT_S, may_write=lambda: True),
            name=name,
            namespace=self._settings.lease_namespace,
            identity=self._settings.identity,
        )

    def _api(self, *, timeout_s: float, may_write: Callable[[], bool]) -> KubernetesApi:
        return KubernetesApi(
            self._client,
            timeout_s=timeout_s,
            on_call=self._metrics.called,
            on_error=self._metrics.failed_call,
            may_write=may_write,
        )

    def _is_alive(self) -> bool:
        return self._controller is None or self._controller.is_alive

    def _is_ready(self) -> bool:
        """A replica that waits for the Lease is ready to take over; one that works has its caches filled."""
        if self._lease is not None and not self._lease.is_held:
            return True
        return self._controller is not None and self._controller.is_ready

    async def _work(self) -> None:
        lease = self._lease
        registry = kopf.OperatorRegistry()
        api = self._api(timeout_s=self._settings.call_timeout_seconds, may_write=lambda: lease is None or lease.is_held)
        has_job_sets = self._settings.job_sets and await self._serves_job_sets(api)
        settings = self._settings.model_copy(update={"job_sets": has_job_sets})
        watched = WatchedObjects(with_job_sets=has_job_sets)
        self._metrics.watch_objects(watched.kinds, watched.count)
        namespaces = await self._reachable(api)
        if self._stop.is_set():
            return
        started: asyncio.Future[Controller] = asyncio.get_running_loop().create_future()

        @kopf.on.login(registry=registry)
        async def login(**context: Any) -> Any:  # noqa: ANN401 - Kopf's
            info = kopf.login_with_service_account(**context) or kopf.login_with_kubeconfig(**context)
            return None if info is None else bounded_session(info, KINDS_BY_PLURAL)

        @kopf.on.startup(registry=registry)
        async def start(**_: Any) -> None:  # noqa: ANN401 - Kopf's
            # Kopf has put its own handlers of signals in place of ours by the next turn.
            asyncio.get_running_loop().call_soon(self._stop_on_signals)
            caches = Caches(watched)
            controller = Controller(
                api=api, caches=caches, settings=settings, metrics=self._metrics, namespaces=namespaces
            )
            started.set_result(controller)

        register(
            registry,
            watched,
            wake=lambda key: started.result().wake(key),
            wake_for_profile=lambda namespace: started.result().wake_for_profile(namespace),
        )
        watching = kopf.OperatorSettings()
        watch_settings(watching, is_clusterwide=not settings.namespaces)
        watch = kopf.operator(
            registry=registry,
            settings=watching,
            memories=NoMemories(),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=namespaces,
            stop_flag=self._stop,
        )
        needed = [watch, *([self._while_job_sets(api, are_served=has_job_sets)] if self._settings.job_sets else [])]
        await self._until_first_ends(needed, started)
        if not self._stop.is_set():
            raise WatchesEndedError("the watches have ended though nobody asked for that")

    async def _serves_job_sets(self, api: KubernetesApi) -> bool:
        """Return whether the cluster has JobSets, once the API server answers."""
        what = "the API server does not say whether it has JobSets"
        return bool(await self._once_answered(lambda: api.serves(names.JOB_SET), what))

    async def _while_job_sets(self, api: KubernetesApi, *, are_served: bool) -> None:
        """Ask now and then whether the cluster has JobSets. Raises JobSetsChangedError."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            if await self._serves_job_sets(api) != are_served and not self._stop.is_set():
                raise JobSetsChangedError("JobSet was installed, or removed")

    async def _reachable(self, api: KubernetesApi) -> tuple[str, ...]:
        """Return the namespaces of the settings that can be watched, once there is one; empty: all are."""
        wanted = self._settings.namespaces
        if not wanted:
            return ()

        async def found() -> tuple[str, ...] | None:
            return await reachable(api, wanted) or None

        return await self._once_answered(found, "namespaces could not be listed") or ()

    async def _once_answered(self, ask: Callable[[], Coroutine[Any, Any, T | None]], what: str) -> T | None:
        """Return the first answer that is not None; `what` is logged with each error. None: a stop was asked for."""
        while not self._stop.is_set():
            try:
                answer = await ask()
            except ApiError as error:
                logger.warning("%s: %s", what, error)
            else:
                if answer is not None:
                    return answer
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), AGAIN_S)
        return None

    async def _until_first_ends(
        self, needed: Sequence[Coroutine[Any, Any, None]], started: "asyncio.Future[Controller]"
    ) -> None:
        """Run what is needed and the controller until Kopf is asked to stop, or one of them breaks."""
        tasks: list[asyncio.Future[Any]] = [asyncio.create_task(each) for each in needed]
        try:
            await asyncio.wait([*tasks, started], return_when=asyncio.FIRST_COMPLETED)
            if started.done():
                self._controller = started.result()
                tasks.append(asyncio.create_task(self._controller.run()))
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        # Kopf, when it ends, cancels every task that began after it, ours among them.
        for ended in ends:
            if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
                raise ended


async def connect() -> ApiClient:
    """Return a client of the cluster that the process runs in, or of the kubeconfig that KUBECONFIG names."""
    configuration = Configuration()
    kubeconfig = os.environ.get("KUBECONFIG")
    if kubeconfig:
        await config.load_kube_config(config_file=kubeconfig, client_configuration=configuration)  # type: ignore[no-untyped-call] # the package's types are partial
    else:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call] # the same
    return ApiClient(configuration)


async def _run(settings: Settings) -> None:
    client = await connect()
    async with client:
        await Operator(settings, client).run()


def main() -> int:
    """Run the operator; return its exit code."""
    try:
        settings = settings_from(os.environ)
    except DocumentError as error:
        sys.stderr.write(f"error: {error}\n")
        return ExitCode.INVALID_INPUT
    configure_logs(level=settings.log_level, as_json=settings.log_format == "json")
    try:
        asyncio.run(_run(settings))
    except LeaseLostError as error:
        logger.error("%s; starting again as a follower", error)  # noqa: TRY400 - expected, and said in full
        return ExitCode.CLUSTER
    except (WatchesEndedError, NamespacesChangedError, JobSetsChangedError) as error:
        logger.error("%s; starting again", error)  # noqa: TRY400 - the same
        return ExitCode.CLUSTER
    except config.ConfigException as error:
        logger.error("no cluster: %s; hint: run in a pod, or name a kubeconfig in KUBECONFIG", error)  # noqa: TRY400 - the same
        return ExitCode.INVALID_INPUT
    return ExitCode.OK
