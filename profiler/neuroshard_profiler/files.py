"""Files that appear whole or not at all."""

import os
from pathlib import Path

from neuroshard_profiler.errors import SettingsError


def make_folder(path: Path) -> None:
    """Make a folder and its parents if need be. Raises SettingsError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be a folder here: {error.strerror}; choose another path") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file, replacing one that is there; a reader never sees half of it."""
    make_folder(path.parent)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
