"""JSON as bytes: where values end, how deep they nest, and the members of one, before a parser makes objects of them.

A parser of JSON calls itself for each level and makes an object of each value, so that some kilobytes of brackets end
it and a megabyte of them fills the memory. What follows reads brackets and quotes alone, block by block, and never
calls itself.
"""

import re
from collections.abc import Callable, Iterator
from itertools import accumulate

_QUOTE = ord('"')
_STEP = {**dict.fromkeys(b"{[", 1), **dict.fromkeys(b"}]", -1)}
_NO_BRACKETS = bytes(set(range(256)) - _STEP.keys())
_REST_OF_STRING = rb'(?:[^"\\]++|\\.)*+'
_STRING = rb'"' + _REST_OF_STRING + rb'"'
_TOKEN = re.compile(rb'[{}\[\]]|"' + _REST_OF_STRING + rb'("?)', re.DOTALL)
"""A bracket, or a string; its group is empty where the string's end is missing."""
_TO_QUOTE = re.compile(_REST_OF_STRING, re.DOTALL)
_KEY = re.compile(rb"[\s,]*+(" + _STRING + rb")\s*+:\s*+", re.DOTALL)
_SCALAR = re.compile(_STRING + rb'|[^\s,:{}\[\]"]++', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F]")
_PAIR_BYTES = 12
_FIRST_BLOCK, _LAST_BLOCK = 512, 64 * 1024


class _Depths:
    """The depth of lists and mappings along a text that is read in blocks."""

    def __init__(self) -> None:
        """Begin outside of all of them."""
        self.now = 0
        self.in_string = False

    def read(self, block: bytes) -> list[int]:
        """Return the depth after each bracket of the next block, which does not end in the middle of an escape."""
        parts = _without_escapes(block).split(b'"')  # in turns outside and inside of strings
        brackets = b"".join(parts[self.in_string :: 2]).translate(None, _NO_BRACKETS)
        depths = list(accumulate(map(_STEP.__getitem__, brackets), initial=self.now))
        self.now = depths[-1]
        self.in_string ^= len(parts) % 2 == 0
        return depths[1:]


class ItemReader:
    """The items of a list, as the API server sends one, from text that comes in chunks: each by itself.

    So memory holds one item, however large the list is.
    """

    def __init__(self) -> None:
        """Begin before the list."""
        self._text = bytearray()
        self._around = bytearray()
        self._open = bytearray()
        self._item: _Depths | None = None
        self._num_read = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Return the items that end in the next chunk."""
        self._text += chunk
        while self._item is not None or self._begins_item():
            end = self._item_end()
            if end is None:
                return
            yield bytes(self._text[:end])
            del self._text[:end]

    def rest(self) -> bytes:
        """Return the list without its items."""
        return bytes(self._around)

    def _begins_item(self) -> bool:
        """Read up to the next item; return whether it begins. An item is what is in a list of the outermost mapping."""
        done = 0
        for token in _TOKEN.finditer(self._text):
            start, bracket = token.start(), self._text[token.start()]
            if bracket == _QUOTE and not token[1]:
                break
            is_item = self._open == b"{[" and _STEP.get(bracket, -1) > 0
            self._keep(done, start if is_item else token.end())
            done = start if is_item else token.end()
            if is_item:
                self._item, self._num_read = _Depths(), 0
                break
            if bracket != _QUOTE:
                self._step(bracket)
        else:
            self._keep(done, len(self._text))
            done = len(self._text)
        self._text = self._text[done:]
        return self._item is not None

    def _step(self, bracket: int) -> None:
        if _STEP[bracket] > 0:
            self._open.append(bracket)
        else:
            del self._open[-1:]

    def _keep(self, start: int, end: int) -> None:
        """Keep what is around the items, without the commas between them."""
        text = self._text[start:end]
        self._around += text.strip(b", \r\n\t") if self._open == b"{[" else text

    def _item_end(self) -> int | None:
        """Return the place after the item. None: its end has not come yet."""
        assert self._item is not None, "asked for an item that has begun"
        end, self._num_read = _end(self._text, self._num_read, self._item)
        if end is not None:
            self._item = None
        return end


def members(text: bytes, is_wanted: Callable[[bytes], bool]) -> dict[bytes, bytes]:
    """Return the text of the wanted values of a mapping, by key in quotes; of keys that occur twice the last one.

    A text that is not a mapping has none, and one that is cut off has those before the cut.
    """
    found: dict[bytes, bytes] = {}
    at = 1 if text.startswith(b"{") else len(text)
    while key := _KEY.match(text, at):
        end = _value_end(text, key.end())
        if end is None:
            break
        if is_wanted(key[1]):
            found[key[1]] = text[key.end() : end]
        at = end
    return found


def depth_of(text: bytes) -> int:
    """Return the depth to which lists and mappings nest in a text."""
    depths = _Depths()
    return max((max(depths.read(block), default=0) for _, block in _blocks(text, 0)), default=0)


def is_unicode(text: bytes) -> bool:
    """Return whether a text is UTF-8, and its escapes name characters and no halves of pairs."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return all(len(found[0]) == _PAIR_BYTES for found in _SURROGATE.finditer(text.replace(rb"\\", b"")))


def _value_end(text: bytes, start: int) -> int | None:
    """Return the end of the value that begins at a place. None: the text ends first."""
    if text[start : start + 1] in {b"{", b"["}:
        return _end(text, start, _Depths())[0]
    found = _SCALAR.match(text, start)
    return None if found is None else found.end()


def _end(text: bytes | bytearray, start: int, depths: _Depths) -> tuple[int | None, int]:
    """Read on in a list or mapping; return the place after it, None where it does not end, and how far was read."""
    for at, block in _blocks(text, start):
        in_string = depths.in_string
        found = depths.read(block)
        if 0 in found:
            end = at + _nth_bracket(block, found.index(0), in_string=in_string)
            return end, end
        start = at + len(block)
    return None, start


def _blocks(text: bytes | bytearray, start: int) -> Iterator[tuple[int, bytes]]:
    """Return growing blocks of a text from a place on. None ends in the middle of an escape, nor does their end."""
    size = _FIRST_BLOCK
    while start < len(text):
        block = bytes(text[start : start + size])
        num_backslashes = len(block) - len(block.rstrip(b"\\"))
        block = block[: len(block) - num_backslashes % 2]
        if not block:
            return
        yield start, block
        start, size = start + len(block), min(4 * size, _LAST_BLOCK)


def _without_escapes(block: bytes) -> bytes:
    return block.replace(rb"\\", b"").replace(rb"\"", b"") if b"\\" in block else block


def _nth_bracket(block: bytes, number: int, *, in_string: bool) -> int:
    """Return the place after the bracket of that number, from 0 on."""
    start = 0
    if in_string:
        rest = _TO_QUOTE.match(block)
        start = rest.end() + 1 if rest else 0
    brackets = (token.end() for token in _TOKEN.finditer(block, start) if block[token.start()] != _QUOTE)
    return next(end for place, end in enumerate(brackets) if place == number)
