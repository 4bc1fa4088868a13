"""Compressed text files, unpacked once into a folder of the run: blocks are read in any order, a stream is not."""

import bz2
import gzip
import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, cast

from neuroshard_api.process.errors import DataError, MissingPackageError

from neuroshard_trainer.data.files import DataFile
from neuroshard_trainer.data.line_index import alone, part_of
from neuroshard_trainer.files import storage_error

_PIECE_BYTES = 2**24


def _zstd(stream: BinaryIO) -> BinaryIO:
    try:
        import pyarrow as pa  # noqa: PLC0415 - only for this format
    except ImportError as error:
        raise MissingPackageError(f"a .zst file needs pyarrow ({error}); hint: `pip install pyarrow`") from error
    return cast("BinaryIO", pa.CompressedInputStream(pa.PythonFile(stream, "r"), "zstd"))


_STREAMS: Mapping[str, Callable[[BinaryIO], BinaryIO]] = {
    ".gz": lambda stream: cast("BinaryIO", gzip.GzipFile(fileobj=stream, mode="rb")),
    ".bz2": lambda stream: cast("BinaryIO", bz2.BZ2File(stream)),
    ".zst": _zstd,
}
COMPRESSED = tuple(_STREAMS)
"""Ends of the names of compressed files."""


UNPACKING_ERRORS = (OSError, EOFError, ValueError, zlib.error)
"""What reading a damaged compressed file raises."""


@contextmanager
def text_of(file: DataFile) -> Iterator[BinaryIO]:
    """Open what a file holds, unpacked on the way. Raises DataError, MissingPackageError."""
    suffix = _suffix_of(file)
    with file.open() as stream:
        if suffix is None:
            yield stream
            return
        with io.BufferedReader(cast("io.RawIOBase", _STREAMS[suffix](stream))) as text:
            yield text


def damaged(file: DataFile, error: Exception) -> DataError:
    """Return the error of a compressed file that cannot be unpacked."""
    return DataError(
        f"{file}: cannot be unpacked ({error}); it is cut off, damaged or not compressed as its name says; "
        "hint: copy it again"
    )


def unpacked(file: DataFile, *, spare: Path) -> DataFile:
    """Return a file whose bytes can be read at any place: itself, or a copy in ``spare`` of what it holds.

    One process of a machine unpacks, the others wait for it; a later start finds the copy.

    Raises:
        DataError: the file is cut off, or not compressed as its name says.
        StorageError: there is no room for the copy.
        MissingPackageError: the format needs a package.
    """
    suffix = _suffix_of(file)
    if suffix is None:
        return file
    identity = sha256(repr((file.place, *file.stamp())).encode()).hexdigest()[:12]
    copy = spare / f"{file.name[: -len(suffix)]}-{identity}"
    try:
        spare.mkdir(parents=True, exist_ok=True)
        with alone(copy):
            if not copy.exists():
                _unpack(file, _STREAMS[suffix], copy)
    except OSError as error:
        raise storage_error(copy, error) from error
    return DataFile(str(copy))


def _unpack(file: DataFile, stream_of: Callable[[BinaryIO], BinaryIO], copy: Path) -> None:
    part = part_of(copy)
    try:
        with file.open() as stream, part.open("wb") as target:
            source = stream_of(stream)
            while piece := _piece(source, file):
                target.write(piece)
            if not target.tell():
                raise DataError(f"{file}: is empty; hint: copy it again")
        part.replace(copy)
    finally:
        part.unlink(missing_ok=True)


def _piece(source: BinaryIO, file: DataFile) -> bytes:
    try:
        return source.read(_PIECE_BYTES)
    except UNPACKING_ERRORS as error:
        raise damaged(file, error) from error


def _suffix_of(file: DataFile) -> str | None:
    return next((each for each in COMPRESSED if file.name.lower().endswith(each)), None)
