"""Arrays of NumPy's files, mapped into memory: opened where they are needed, also in another process."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
from neuroshard_api.process.errors import DataError
from numpy.lib import format as npy
from numpy.typing import NDArray

from neuroshard_trainer.data.files import DataFile

_LOCAL_HEADER_BYTES = 30  # of a zip file's member, before its name and extra field


@dataclass(frozen=True, kw_only=True, slots=True)
class MappedArray:
    """One array of a file; the bytes are read when elements are."""

    file: DataFile
    member: str
    """Name of the array in its file; empty in a file of one array."""
    dtype: str
    shape: tuple[int, ...]
    offset: int
    """Of the first element in the file, in bytes."""

    def __str__(self) -> str:
        return f"{self.file}, array {self.member!r}" if self.member else str(self.file)

    @property
    def values(self) -> NDArray[Any]:
        """The array. Raises DataError where the file is no longer the one that was opened."""
        return _mapped(self)


def mapped_array(file: DataFile) -> MappedArray:
    """Return the array of a .npy file. Raises DataError where it is none, or cut off."""
    with _local(file).open() as stream:
        return _described(file, "", stream, size=file.stamp()[0])


def mapped_arrays(file: DataFile) -> Mapping[str, MappedArray]:
    """Return the arrays of an .npz file by name.

    Raises:
        DataError: it is none, is cut off, or is compressed, so that it cannot be mapped.
    """
    size = _local(file).stamp()[0]
    found = {}
    try:
        with file.open() as stream, zipfile.ZipFile(stream) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if member.compress_type != zipfile.ZIP_STORED:
                    raise DataError(f"{file}: array {name!r} is compressed; hint: write it with numpy.savez")
                stream.seek(member.header_offset)
                header = stream.read(_LOCAL_HEADER_BYTES)
                lengths = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
                stream.seek(member.header_offset + _LOCAL_HEADER_BYTES + lengths)
                found[name] = _described(file, name, stream, size=size)
    except zipfile.BadZipFile as error:
        raise DataError(f"{file}: is not a .npz file, or cut off ({error}); hint: copy it again") from error
    return found


def _local(file: DataFile) -> DataFile:
    if file.path is None:
        raise DataError(f"{file}: is mapped into memory, which a URL cannot be; hint: copy it or mount its store")
    return file


def _described(file: DataFile, member: str, stream: BinaryIO, *, size: int) -> MappedArray:
    where = f"{file}, array {member!r}" if member else str(file)
    try:
        version = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, is_fortran, dtype = read_header(stream)
    except (ValueError, EOFError) as error:
        raise DataError(f"{where}: is not an array of NumPy ({error}); hint: write it with numpy.save") from error
    if dtype.hasobject or (is_fortran and len(shape) > 1):
        kind = "Python objects" if dtype.hasobject else "columns one after the other"
        raise DataError(
            f"{where}: holds {kind}, expected numbers in C order; hint: write it from numpy.ascontiguousarray"
        )
    offset = stream.tell()
    end = offset + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if end > size:
        raise DataError(
            f"{where}: is cut off: its header promises {end:,} bytes, the file has {size:,}; hint: copy it again"
        )
    return MappedArray(file=file, member=member, dtype=dtype.str, shape=shape, offset=offset)


@lru_cache(maxsize=1024)
def _mapped(array: MappedArray) -> NDArray[Any]:
    if not all(array.shape):
        return np.zeros(array.shape, dtype=array.dtype)  # nothing to map
    try:
        mapped: NDArray[Any] = np.memmap(
            array.file.place, dtype=array.dtype, mode="r", offset=array.offset, shape=array.shape
        ).view(np.ndarray)
    except (OSError, ValueError) as error:
        raise DataError(f"{array}: was changed or removed after it was opened ({error}); hint: start again") from error
    return mapped
