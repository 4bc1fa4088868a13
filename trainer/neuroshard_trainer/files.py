"""What a training writes, and the sentences for what it cannot write."""

import errno
from pathlib import Path

from neuroshard_api.process.atomic_file import write_whole
from neuroshard_api.process.errors import StorageError


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises StorageError."""
    try:
        write_whole(path, text)
    except OSError as error:
        raise storage_error(path, error) from error


def storage_error(path: Path, error: OSError) -> StorageError:
    """Return the sentence for a file or folder that could not be written."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return disk_full(path, error.strerror or "no space is left")
    return StorageError(
        f"{path}: cannot be written: {error.strerror or error}; hint: name another folder, then start again"
    )


def disk_full(path: Path, found: str) -> StorageError:
    """Return the sentence for a full disk."""
    return StorageError(f"{path}: the disk is full: {found}; hint: free space or name another folder, then start again")
