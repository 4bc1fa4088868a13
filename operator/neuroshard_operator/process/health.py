"""/healthz, /readyz and /metrics. Served by the loop that does the work, so a blocked loop does not look alive."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


@asynccontextmanager
async def health_server(
    *, port: int, registry: CollectorRegistry, is_alive: Callable[[], bool], is_ready: Callable[[], bool]
) -> AsyncIterator[int]:
    """Serve until the context ends; gives the port, which the system chooses for port 0."""

    async def healthz(_: web.Request) -> web.Response:
        return _answer(is_alive(), "the last resync is too long ago, or a watch has stopped")

    async def readyz(_: web.Request) -> web.Response:
        return _answer(is_ready(), "the watches have not brought all that is there yet")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", metrics)])
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, port=port)
        await site.start()
        # A free port is another one for IPv4 than for IPv6.
        yield min(runner.addresses, key=len)[1]
    finally:
        await runner.cleanup()


def _answer(good: bool, problem: str) -> web.Response:  # noqa: FBT001 - the one thing it is about
    return web.Response(text="ok\n") if good else web.Response(status=503, text=f"{problem}\n")
