"""What a profile writes, and the sentences for what it cannot write."""

from pathlib import Path

from neuroshard_api.process.atomic_file import write_whole

from neuroshard_profiler.errors import SettingsError


def make_folder(path: Path) -> None:
    """Make a folder and its parents if need be. Raises SettingsError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(f"{path}: cannot be a folder here: {error.strerror}; hint: choose another path") from error


def require_file_place(path: Path) -> None:
    """Make the folder of a file that is written later. Raises SettingsError where no file can be."""
    make_folder(path.absolute().parent)
    if path.is_dir():
        raise SettingsError(f"{path}: is a folder; hint: give the path of a file")


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all, in a folder that is made if need be. Raises SettingsError."""
    make_folder(path.parent)
    try:
        write_whole(path, text)
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot be written: {error.strerror}; hint: free space or choose another path"
        ) from error
