"""Kopf's connections: what it gets of lists and watches with hostile objects in them, and the process's end."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import kopf
import pytest
from aiohttp import ClientSession, web
from kubernetes.aio.client.api_client import ApiClient
from neuroshard_api.job.training_job import KIND, PLURAL
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_operator import main as main_module
from neuroshard_operator.cluster.bounded_session import bounded_session
from neuroshard_operator.cluster.watches import KINDS_BY_PLURAL
from support.operator.hostile import HERE, hostile_object

IN_TEMPLATE = {"spec": {"podTemplate": {"spec": {"x": HERE}}}}
GOOD = hostile_object(KIND, IN_TEMPLATE, "a mapping", name="good", job="")
DEEP = hostile_object(KIND, IN_TEMPLATE, "nested 100,000 levels", name="deep", job="")
WIDE = hostile_object(KIND, IN_TEMPLATE, "wide", name="wide", job="")
PAGE = b'{"kind":"List","items":[' + b",".join([DEEP, GOOD, *[WIDE] * 5]) + b'],"metadata":{"continue":"next"}}'
EVENTS = [
    *(b'{"type":"ADDED","object":' + each + b"}" for each in (DEEP, WIDE, GOOD)),
    b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}',
    b'{"type":"ADDED","object":' + b"[" * 5000 + b"}",
    b'{"type":"DELETED","object":' + DEEP + b"}",
    b'{"type":"ERROR","object":{"code":410}}',
]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[ClientSession, str]]:
    """Give Kopf's session, and the address of an API server that answers with hostile objects."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return web.Response(body=b"\n".join(EVENTS), content_type="application/json")
        return web.Response(body=PAGE, content_type="application/json")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    session = bounded_session(kopf.ConnectionInfo(server=address), KINDS_BY_PLURAL).aiohttp_session
    try:
        yield session, f"{address}/{PLURAL}"
    finally:
        await session.close()
        await runner.cleanup()


def test_a_page_of_a_list_has_every_object_within_limits() -> None:
    """Also those that cannot be read: the operator has to know of them, or it would wait for them for ever."""

    async def read() -> Any:
        async with connected() as (session, url), session.get(url) as response:
            return await response.json()

    page = asyncio.run(read())

    assert [each["metadata"]["uid"] for each in page["items"][:3]] == ["uid-deep", "uid-good", "uid-wide"]
    assert [sorted(each) for each in page["items"][:2]] == [["metadata", "unreadable"], ["metadata", "spec"]]
    assert len(page["items"]) == 7
    assert page["metadata"] == {"continue": "next"}
    assert len(json.dumps(page)) < 10_000


def test_the_lines_of_a_watch_are_within_limits() -> None:
    """One that names no object is left out; those without an object pass as they are."""

    async def read() -> list[Any]:
        async with connected() as (session, url), session.get(url, params={"watch": "true"}) as response:
            return [json.loads(line) async for line in response.content.iter_chunked(2**20)]

    events = asyncio.run(read())

    brought = [(each["type"], each["object"].get("metadata", {}).get("uid")) for each in events]
    assert brought == [
        ("ADDED", "uid-deep"),
        ("ADDED", "uid-wide"),
        ("ADDED", "uid-good"),
        ("BOOKMARK", None),
        ("DELETED", "uid-deep"),
        ("ERROR", None),
    ]


def test_a_process_whose_watches_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With exit code 0 Kubernetes and people take it for one that was asked to end."""

    async def ends(**_: Any) -> None:
        await asyncio.sleep(0)

    monkeypatch.setattr(kopf, "operator", ends)
    for name in ("PROFILER", "PLANNER", "TRAINER"):
        monkeypatch.setenv(f"NEUROSHARD_{name}_IMAGE", "image")
    monkeypatch.setenv("NEUROSHARD_HTTP_PORT", "0")
    monkeypatch.setattr(main_module, "connect", lambda: asyncio.sleep(0, ApiClient()))

    assert main_module.main() == ExitCode.CLUSTER
