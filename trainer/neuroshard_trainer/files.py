"""Files that are written whole or not at all. Knows nothing of what is in them."""

import errno
import os
from pathlib import Path

from neuroshard_trainer.errors import StorageError


def write_whole(path: Path, text: str) -> None:
    """Write a file in place of what was there; a reader sees the old text or the new. Raises StorageError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise storage_error(path, error) from error


def storage_error(path: Path, error: OSError) -> StorageError:
    """Return the sentence for a file or folder that could not be written."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return disk_full(path, error.strerror or "no space is left")
    return StorageError(f"{path}: cannot be written: {error.strerror or error}; name another folder, then start again")


def disk_full(path: Path, found: str) -> StorageError:
    """Return the sentence for a full disk."""
    return StorageError(f"{path}: the disk is full: {found}; free space or name another folder, then start again")
