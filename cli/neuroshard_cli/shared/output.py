"""Where output goes: documents and tables to stdout, files whole or not at all. Formats nothing itself."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from neuroshard_api.process.atomic_file import write_whole
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import say
from neuroshard_api.process.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A file that a command was asked for."""

    kind: str
    """In words, such as ``report``."""
    path: Path | None
    """None: it was not asked for."""
    text: Callable[[], str]


class Places(NamedTuple):
    """Files that --out names, by their endings."""

    document: Path | None
    """None: none of them."""
    page: Path | None
    """None: none of them."""


class ReaderGoneError(Exception):
    """Anyone who read stdout, such as head, has seen enough and closed it."""


def print_text(content: "RenderableType") -> None:
    """Show tables and text. Raises ReaderGoneError, or CommandError where stdout is a full disk."""
    from neuroshard_report.terminal.printing import print_content

    print_content(content, write=print_document)


def progress_console() -> "Console":
    """Return a console on stderr, for what moves while a command works; nothing moves where it is not a terminal."""
    from neuroshard_report.terminal.console import PrintableConsole

    return PrintableConsole(stderr=True)


def print_document(text: str) -> None:
    """Write text to stdout as it is, its control characters shown where that is a terminal.

    Raises ReaderGoneError, or CommandError where stdout is a full disk.
    """
    try:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left must not fail again at exit
        if isinstance(error, BrokenPipeError):
            raise ReaderGoneError from error
        raise CommandError(f"stdout: cannot be written: {error.strerror}; hint: free space or choose a file") from error


def json_text(data: object) -> str:
    """Return plain data as JSON, with documents in it."""
    return json.dumps(data, indent=1, default=lambda each: each.model_dump(mode="json")) + "\n"


def print_json(data: object) -> None:
    """Write plain data to stdout as JSON, with documents in it. Raises as `print_document`."""
    print_document(json_text(data))


def check_writable(path: Path, *, is_folder: bool = False) -> None:
    """Raise CommandError if a file or folder could not be written here; asked before the work that would be lost."""
    if path.exists() and path.is_dir() != is_folder:
        found, wanted = ("a file", "a folder") if is_folder else ("a directory", "a file")
        raise CommandError(f"{path}: is {found}; hint: give the path of {wanted}")
    parent = path.absolute().parent
    if not parent.is_dir():
        raise CommandError(f"{path}: the folder {parent} does not exist; hint: make it first")
    if not os.access(parent, os.W_OK):
        raise CommandError(f"{path}: the folder {parent} cannot be written to; hint: choose another path")


def places_of(files: Sequence[Path] | None, *, page: str = ".html") -> Places:
    """Return the places of a document and of a page, by the page's ending. Raises CommandError where one is not usable.

    Asked before the work that would be lost.
    """
    found: dict[bool, Path] = {}
    for file in files or ():
        check_writable(file)
        is_page = file.suffix.lower() == page
        if is_page in found:
            form = page if is_page else "JSON"
            raise CommandError(f"--out: {found[is_page]} and {file} are both written as {form}; hint: leave one out")
        found[is_page] = file
    return Places(document=found.get(False), page=found.get(True))


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises CommandError."""
    check_writable(path)
    try:
        write_whole(path, text)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CommandError(f"{path}: cannot be written: {reason}; hint: free space or choose another path") from error


def deliver(show: Callable[[], None], *files: ResultFile, says: bool) -> None:
    """Show a result and write its files, each whatever becomes of the others.

    A full disk, or a reader of stdout that leaves early, takes no other part of a long computation along. Raises the
    first problem.

    Args:
        show: prints the result to stdout.
        files: in the order in which they are written.
        says: whether stderr names the files.
    """
    problems: list[Exception] = []
    asked = [(each.kind, each.path, each.text) for each in files if each.path is not None]
    try:
        show()
    except (CommandError, ReaderGoneError) as error:
        problems.append(error)
    for kind, path, text in asked:
        try:
            write_file(path, text())
        except CommandError as error:
            problems.append(error)
        else:
            if says:
                say(f"{kind} written to {path}")
    if problems:
        raise problems[0]
