"""Where the lines of a text file begin, kept in a file so that a start need not read all the data.

The index is next to its data file as ``NAME.neuroshard-index``, or in a folder of the run where the data's cannot be
written. It is of one file alone: size, and time or content at both ends, must be those it was made of.
"""

import fcntl
import logging
import secrets
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from neuroshard_api.process.errors import DataError

from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.samples import IndexArray

INDEX_SUFFIX = ".neuroshard-index"
LINES_PER_BLOCK = 1024
"""Few enough that a batch of some thousand samples reads little beyond its own, and enough to read at once."""

_FORMAT = 1
_SCAN_BYTES = 2**24  # read at once when lines are counted
_ENDS_BYTES = 2**16  # of the file's beginning and end that its fingerprint is made of
_NOT_TEXT = (
    b"\x1f\x8b",
    b"BZh",
    b"\x28\xb5\x2f\xfd",
    b"PK\x03\x04",
    b"PAR1",
    b"\x93NUMPY",
    b"%PDF",
    b"\xd0\xcf\x11\xe0",
)
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class LineIndex:
    """One file's lines in blocks of LINES_PER_BLOCK; the last may have fewer."""

    offsets: IndexArray
    """Where each block begins, in bytes, and behind them the file's size."""
    num_lines: int

    @property
    def block_sizes(self) -> IndexArray:
        """Lines of each block."""
        sizes = np.full(len(self.offsets) - 1, LINES_PER_BLOCK)
        sizes[-1] = self.num_lines - LINES_PER_BLOCK * (len(sizes) - 1)
        return sizes


def index_of(file: DataFile, *, spare: Path) -> LineIndex:
    """Return a file's index: the one that was kept, or one that is made now, by one process of a machine at a time.

    Args:
        file: lines of text.
        spare: folder for indexes that cannot lie next to their file; made when it is needed.

    Raises:
        DataError: the file is empty, no text or cannot be read, or an index that is there is of another file.
    """
    hashed = sha256(file.place.encode()).hexdigest()[:8]
    places = [spare / f"{file.name}-{hashed}{INDEX_SUFFIX}"]
    if file.path is not None:
        places.insert(0, file.path.with_name(file.name + INDEX_SUFFIX))
    for place in places:
        if place.exists():
            return _kept(place, file)
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with alone(place):
                if place.exists():
                    return _kept(place, file)
                made = _scanned(file)
                keep_index(made, place, file)
                return made
        except OSError as error:
            logger.info("%s: cannot be written (%s)", place, error.strerror or error)
    logger.warning("%s: its index can be kept nowhere; every start reads the whole file", file)
    return _scanned(file)


def part_of(place: Path) -> Path:
    """Return the path of a file before it is whole: of this writer alone, also among nodes."""
    return place.with_name(f"{place.name}.{secrets.token_hex(4)}.part")


@contextmanager
def alone(place: Path) -> Iterator[None]:
    """Wait until no other process of this machine makes a file. Raises OSError where nothing can be written."""
    lock = place.with_name(f"{place.name}.lock")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def keep_index(index: LineIndex, place: Path, file: DataFile) -> None:
    """Write a file's index to ``place``, whole or not at all. Raises OSError."""
    size, changed = file.stamp()
    part = part_of(place)
    try:
        with part.open("wb") as stream:
            np.savez(
                stream,
                format=_FORMAT,
                size=size,
                changed=changed,
                fingerprint=_fingerprint(file, size),
                lines_per_block=LINES_PER_BLOCK,
                num_lines=index.num_lines,
                offsets=index.offsets,
            )
        part.replace(place)
    finally:
        part.unlink(missing_ok=True)


def _kept(place: Path, file: DataFile) -> LineIndex:
    """Return an index. Raises DataError where it is damaged or of another file."""
    size, changed = file.stamp()
    try:
        with place.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        index = LineIndex(offsets=found["offsets"], num_lines=int(found["num_lines"]))
        is_readable = int(found["format"]) == _FORMAT and int(found["lines_per_block"]) == LINES_PER_BLOCK
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(
            f"{place}: is not an index that can be read ({error}); hint: delete it, a new one is made"
        ) from error
    if not is_readable:
        raise DataError(f"{place}: is an index of another release; hint: delete it, a new one is made")
    if int(found["size"]) != size:
        raise DataError(
            f"{place}: is the index of another file: that had {int(found['size']):,} bytes, {file} has {size:,}; "
            "hint: delete the index if the data is right, a new one is made"
        )
    if str(found["changed"]) != changed and str(found["fingerprint"]) != _fingerprint(file, size):
        raise DataError(
            f"{place}: is the index of another file: {file} has the same size and other content"
            f"; hint: delete the index if "
            "the data is right, a new one is made"
        )
    return index


def _fingerprint(file: DataFile, size: int) -> str:
    """Return a hash of a file's beginning and end."""
    end = max(0, size - _ENDS_BYTES)
    return sha256(file.read(0, _ENDS_BYTES) + file.read(end, _ENDS_BYTES)).hexdigest()


def _scanned(file: DataFile) -> LineIndex:
    """Return a file's index by reading all of it."""
    starts = [np.zeros(1, dtype=np.int64)]
    num_lines, size = 0, 0
    ends_in_newline = True
    with file.open() as stream:
        try:
            while piece := stream.read(_SCAN_BYTES):
                if not size:
                    require_text(file, piece)
                newlines = np.flatnonzero(np.frombuffer(piece, dtype=np.uint8) == ord("\n"))
                at = np.arange(-num_lines % LINES_PER_BLOCK - 1, len(newlines), LINES_PER_BLOCK)
                starts.append(newlines[at[at >= 0]] + size + 1)
                num_lines += len(newlines)
                size += len(piece)
                ends_in_newline = piece.endswith(b"\n")
        except OSError as error:
            raise file.unreadable(error) from error
    num_lines += 0 if ends_in_newline else 1
    if not num_lines:
        raise DataError(f"{file}: is empty, expected one sample per line; hint: remove it, or write it again")
    begins = np.unique(np.concatenate(starts))
    return LineIndex(offsets=np.append(begins[begins < size], size), num_lines=num_lines)


def require_text(file: DataFile, beginning: bytes) -> None:
    """Do nothing if a file that begins so may hold lines of UTF-8. Raises DataError."""
    if beginning.startswith(_UTF_16):
        raise DataError(f"{file}: holds text in UTF-16, expected UTF-8; hint: write it as UTF-8")
    if beginning.startswith(_NOT_TEXT) or b"\0" in beginning[:_ENDS_BYTES]:
        raise DataError(
            f"{file}: holds binary data, expected lines of text; hint: name files that are compressed .gz, .bz2, or "
            ".zst, and check the format and the path"
        )
