"""Files of the data: on a file system of this machine, or behind a URL that fsspec knows, such as ``s3://bucket/day_0``."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

from neuroshard_api.process.errors import DataError, MissingPackageError

_URL = "://"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of the data; opens itself again wherever it is needed, so that it can go to another process."""

    place: str
    """A path, or a URL."""

    def __str__(self) -> str:
        return self.place

    @property
    def name(self) -> str:
        """Last part of path or URL."""
        return self.place.rsplit("/", 1)[-1]

    @property
    def path(self) -> Path | None:
        """Where it is on this machine; None: behind a URL."""
        return None if is_url(self.place) else Path(self.place)

    def open(self) -> BinaryIO:
        """Return the opened file. Raises DataError."""
        try:
            if self.path is not None:
                return self.path.open("rb")
            system, name = _located(self.place)
            return cast("BinaryIO", system.open(name, "rb"))
        except OSError as error:
            raise self.unreadable(error) from error

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return some bytes; fewer where the file ends. Raises DataError."""
        try:
            if self.path is None:
                system, name = _located(self.place)
                return bytes(system.cat_file(name, start=offset, end=offset + num_bytes))
            with self.path.open("rb") as stream:
                stream.seek(offset)
                return stream.read(num_bytes)
        except OSError as error:
            raise self.unreadable(error) from error

    def stamp(self) -> tuple[int, str]:
        """Return the size in bytes, and what changes when the file is written again: time or tag. Raises DataError."""
        try:
            if self.path is not None:
                found = self.path.stat()
                return found.st_size, str(found.st_mtime_ns)
            system, name = _located(self.place)
            info = system.info(name)
        except OSError as error:
            raise self.unreadable(error) from error
        changed = next((info[key] for key in ("ETag", "etag", "mtime", "LastModified", "created") if key in info), "")
        return int(info["size"]), str(changed)

    def unreadable(self, error: OSError) -> DataError:
        """Return the error of a file that cannot be read."""
        remedy = (
            "allow this user to read it" if isinstance(error, PermissionError) else "check the path and its storage"
        )
        return DataError(f"{self}: cannot be read: {error.strerror or error}; hint: {remedy}")


def is_url(path: str) -> bool:
    """Return whether a path is a URL."""
    return _URL in path


def matching_files(
    path: str, root: Path, *, suffixes: Sequence[str], setting: str = "spec.data.path"
) -> tuple[DataFile, ...]:
    """Return the files that a file, folder, glob pattern or URL names, in the order of their names.

    Args:
        path: a relative one is taken from ``root``; a URL may have a pattern, too.
        root: a folder.
        suffixes: ends of the names that count in a folder, such as ``.tsv``.
        setting: what errors call the path.

    Raises:
        DataError: there is none.
    """
    if is_url(path):
        return _matching_urls(path, suffixes, setting)
    place = Path(path)
    whole = place if place.is_absolute() else root / place
    if whole.is_file():
        return (DataFile(str(whole)),)
    named = tuple(suffixes)
    if whole.is_dir():
        try:
            there = sorted(whole.iterdir())
        except OSError as error:
            raise DataFile(str(whole)).unreadable(error) from error
        found = [file for file in there if file.name.endswith(named) and file.is_file()]
        problem = f"{whole} has no file that ends in {' or '.join(suffixes)}"
    else:
        pattern = whole.relative_to(whole.anchor)
        there = sorted(Path(whole.anchor).glob(str(pattern)))
        found = [file for file in there if file.is_file()]
        problem = f"{whole} does not exist, and no file matches it"
    if not found:
        raise DataError(f"{setting}: {problem}; hint: {_remedy(whole, there)}")
    return tuple(DataFile(str(file)) for file in found)


def _remedy(place: Path, there: Sequence[Path]) -> str:
    """Return the remedy for a place where nothing can be read."""
    broken = next((each for each in (place, *there) if each.is_symlink() and not each.exists()), None)
    if broken is not None:
        return f"{broken} is a link that leads nowhere, make it again"
    folder = next((each for each in there if each.is_dir()), None)
    return (
        "check the path"
        if folder is None
        else f"name the files of folders such as {folder} by a pattern, or the folder"
    )


def _matching_urls(url: str, suffixes: Sequence[str], setting: str) -> tuple[DataFile, ...]:
    try:
        system, name = _located(url)
        if system.isdir(name):
            found = [each for each in system.ls(name, detail=False) if each.endswith(tuple(suffixes))]
        elif system.exists(name):
            found = [name]
        else:
            found = system.glob(name)
    except (DataError, MissingPackageError):
        raise
    except Exception as error:  # the package of each store has errors of its own
        raise DataError(
            f"{setting}: {url} cannot be listed: {' '.join(str(error).split()) or type(error).__name__}"
            "; hint: check the URL and its credentials"
        ) from error
    if not found:
        raise DataError(
            f"{setting}: {url} does not exist or cannot be reached, and no file matches it"
            "; hint: check the URL and its credentials"
        )
    return tuple(DataFile(system.unstrip_protocol(each)) for each in sorted(found))


def _located(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the name there."""
    try:
        from fsspec.core import url_to_fs  # noqa: PLC0415 - only where there is a URL
    except ImportError as error:
        raise MissingPackageError("a URL as spec.data.path needs fsspec; hint: `pip install fsspec`") from error
    try:
        return cast("tuple[Any, str]", url_to_fs(url))
    except ImportError as error:
        raise MissingPackageError(f"{url}: needs a package ({error}); hint: install it with pip") from error
    except ValueError as error:
        raise DataError(
            f"{url}: {error}: fsspec has no such kind of URL; hint: check what is before ://, such as s3 or https"
        ) from error
