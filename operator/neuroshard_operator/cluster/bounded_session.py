"""Kopf's connections to the API server, in which no object is parsed before it is cut down on its bytes.

Kopf parses pages of lists and lines of watches as a whole: one object that nests too deep ended its watch, and with it
the operator of all namespaces, and a page of large ones took half a gigabyte. So it gets each page and each line with
objects that are within limits.
"""

import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import kopf

from neuroshard_operator.observed.bounded import bounded
from neuroshard_operator.observed.json_text import ItemReader, members

CHUNK_BYTES = 64 * 1024
_OBJECTS = {b'"ADDED"', b'"MODIFIED"', b'"DELETED"'}
"""Types of events that bring an object; others bring a version or an error."""
_EVENT = {b'"type"', b'"object"'}

logger = logging.getLogger(__name__)


def bounded_session(info: kopf.ConnectionInfo, kinds: Mapping[str, str]) -> kopf.AiohttpSession:
    """Return a session for Kopf; `kinds` are those whose objects are cut down, by the plural in their paths."""

    class Response(BoundedResponse):
        kind_of = kinds

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        response_class=Response,
        proxy=info.proxy_url,
        trust_env=info.trust_env,
    )
    return kopf.AiohttpSession(
        server=info.server,
        default_namespace=info.default_namespace,
        priority=info.priority,
        expiration=info.expiration,
        aiohttp_session=session,
    )


class BoundedResponse(aiohttp.ClientResponse):
    """A response whose lists and watch events of known kinds are cut down as they come."""

    kind_of: Mapping[str, str]

    @property
    def _kind(self) -> str | None:
        """The kind of the objects in it. None: an error, or of no kind that is watched."""
        return self.kind_of.get(self.url.path.rsplit("/", 1)[-1]) if self.ok else None

    async def start(self, connection: Any) -> aiohttp.ClientResponse:  # noqa: ANN401 - aiohttp's
        """Begin to read; of a watch the lines go through `_Lines`."""
        await super().start(connection)
        if self._kind is not None and "watch" in self.url.query:
            self.content = _Lines(self.content, self._kind)  # type: ignore[assignment] # all that is asked of it
        return self

    async def json(self, **how: Any) -> Any:  # noqa: ANN401 - aiohttp's
        """Return the page of a list, read item by item; other answers as they are."""
        kind = self._kind
        if kind is None:
            return await super().json(**how)
        reader, items = ItemReader(), list[Any]()
        async for chunk in self.content.iter_chunked(CHUNK_BYTES):
            for item in reader.feed(chunk):
                found = _named(kind, item)
                if found is not None:
                    items.append(json.loads(found))
        return {**json.loads(reader.rest()), "items": items}


class _Lines:
    """The body of a watch: lines of JSON, each of which is one event."""

    def __init__(self, content: aiohttp.StreamReader, kind: str) -> None:
        self._content = content
        self._kind = kind

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as aiohttp has it
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Return each line as it ends."""
        line = bytearray()
        async for chunk in self._content.iter_chunked(size):
            *ended, rest = chunk.split(b"\n")
            for end in ended:
                event = self._event(bytes(line + end))
                line.clear()
                if event:
                    yield event + b"\n"
            line += rest
        event = self._event(bytes(line))
        if event:
            yield event

    def _event(self, line: bytes) -> bytes:
        """Return a line whose object is cut down; empty: it brings none that has a name."""
        found = members(line, _EVENT.__contains__)
        if found.get(b'"type"') not in _OBJECTS:
            return line
        brought = _named(self._kind, found.get(b'"object"', b""))
        return b"" if brought is None else b'{"type":' + found[b'"type"'] + b',"object":' + brought + b"}"


def _named(kind: str, text: bytes) -> bytes | None:
    found = bounded(kind, text)
    if found is None:
        logger.warning("a %s without a name cannot be read", kind)
    return found
