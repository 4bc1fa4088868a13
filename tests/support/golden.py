"""Texts that are kept in files: a change of words is seen in review. ``pytest --rewrite-golden`` writes them again."""

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

OPTION = "--rewrite-golden"
Golden = Callable[[Path, str], None]


def add_option(parser: pytest.Parser) -> None:
    """Add the option that writes the files from the texts of the run."""
    parser.addoption(OPTION, action="store_true", help="write golden files from the texts of this run")


def compare(path: Path, text: str, *, rewrite: bool) -> None:
    """Fail with the differing lines unless the file holds the text; with `rewrite`, write it."""
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    if text == kept:
        return
    if rewrite:
        path.write_text(text, encoding="utf-8")
        return
    changes = difflib.unified_diff(kept.splitlines(), text.splitlines(), path.name, "this run", lineterm="", n=1)
    pytest.fail("\n".join([*changes, "", f"if this is meant: run the test with {OPTION}"]), pytrace=False)


def sections(texts: Mapping[str, str]) -> str:
    """Return texts as one page, each under its name."""
    return "\n".join(f"# {name}\n{text.strip()}\n" for name, text in texts.items())
