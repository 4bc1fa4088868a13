"""Rules 3, 4, and 10 of docs/STYLE.md, in docstrings, messages, and pages."""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = (
    "api",
    "benchmarks",
    "cli",
    "costs",
    "docs",
    "dropin",
    "operator",
    "planner",
    "profiler",
    "report",
    "tests",
    "trainer",
)
AVOIDED = {
    "anew": "again",
    "beside": "next to, in addition to",
    "ended well": "succeeded",
    "gone on with": "continued",
    "mend": "fix",
    "mended": "fixed",
    "mends": "fixes",
    "not given:": "if unset:",
    "so many": "that many",
    "stands twice": "occurs twice",
    "tell apart": "distinguish",
    "told apart": "distinguished",
    "whoever": "anyone who",
}
"""Words of the style guide that have one replacement everywhere, in lower case."""
PATTERN = re.compile(rf"\b({'|'.join(AVOIDED)})(?!\w)", re.IGNORECASE)
CLAUSE = re.compile(
    r"(?:Ask|Check|Count|Do|Find|Give|Log|Measure|Name|Print|Read|Return|Say|See|Show|Tell|Write|Yield) "
    r"(?:how|what|when|where|which|whose|why)\b|Tell whether\b"
)
"""A verb with a clause in the place of its object, at the start of a docstring; "Return whether" is the usual form."""
NO_NOUN = re.compile(
    r"(?<!\bthere )\bis no (?!longer\b|such\b|more\b|other\b|one\b|reason\b|evidence\b)\w+", re.IGNORECASE
)
"""The negation that rule 4 replaces."""
EXCEPT = {ROOT / "docs" / "STYLE.md", ROOT / "CHANGELOG.md"}
"""The list itself, and the notes on releases, which are kept as they were published."""


def test_docstrings_messages_and_pages_avoid_the_words_of_the_style_guide() -> None:
    """A finding names the file, the line, and the word to use instead."""
    assert list(findings()) == []


def test_docstrings_begin_with_a_verb_and_a_noun() -> None:
    """A finding names the file, the line, and the words to replace by a noun: "Return the cost", not "Return what"."""
    starts = ((path, *start) for path in sources() if path.suffix == ".py" for start in docstring_starts(path))

    assert [
        f"{path.relative_to(ROOT)}:{line}: {found[0]}" for path, line, text in starts if (found := CLAUSE.match(text))
    ] == []


def docstring_starts(path: Path) -> Iterator[tuple[int, str]]:
    """Give the docstring of each function of a module, with its line."""
    for node in ast.walk(tree_of(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.body[0].lineno, ast.get_docstring(node) or ""


def findings() -> Iterator[str]:
    """Give one sentence for each avoided word."""
    for path in sources():
        text = path.read_text(encoding="utf-8")
        for number, line in python_lines(path, text) if path.suffix == ".py" else prose_lines(text):
            where = f"{path.relative_to(ROOT)}:{number}"
            for found in PATTERN.findall(line):
                yield f"{where}: {found!r}; write {AVOIDED[found.lower()]!r}"
            for found in NO_NOUN.findall(line):
                yield f"{where}: {found!r}; write 'is not a'"


def python_lines(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Give the docstrings of a module and, outside of tests, its messages."""
    yield from docstring_lines(source)
    if not path.is_relative_to(ROOT / "tests"):
        yield from message_lines(source)


def sources() -> list[Path]:
    """Return every module and page of the repository but those of result files."""
    files = {path for room in ROOMS for kind in ("*.py", "*.md") for path in (ROOT / room).rglob(kind)}
    files |= set(ROOT.glob("*.md")) | set((ROOT / "examples").rglob("*.md"))
    results = ROOT / "benchmarks" / "results"
    return sorted(path for path in files - EXCEPT - {Path(__file__)} if not path.is_relative_to(results))


@lru_cache(maxsize=1)
def tree_of(source: str) -> ast.Module:
    """Return the syntax tree of a module; parsing takes most of the time of these tests."""
    return ast.parse(source)


def docstring_lines(source: str) -> Iterator[tuple[int, str]]:
    """Give the numbered lines of the strings that stand alone: docstrings of modules, functions, and attributes."""
    lines = source.splitlines()
    for node in ast.walk(tree_of(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                    yield number, lines[number - 1]


def message_lines(source: str) -> Iterator[tuple[int, str]]:
    """Give the numbered strings of several words that are no docstrings: errors, conditions, help, and headings."""
    tree = tree_of(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if " " in text and id(node) not in alone:
                yield node.lineno, text


def prose_lines(page: str) -> Iterator[tuple[int, str]]:
    """Give the numbered lines of a page outside of its samples."""
    is_sample = False
    for number, line in enumerate(page.splitlines(), start=1):
        is_sample ^= line.startswith("```")
        if not is_sample and not line.startswith("    "):
            yield number, line


def test_the_style_guide_names_the_words() -> None:
    """A word is avoided because the guide says so, not by this list alone."""
    guide = " ".join((ROOT / "docs" / "STYLE.md").read_text(encoding="utf-8").lower().split())
    own_forms = {"mended", "mends", "not given:", "stands twice", "tell apart", "told apart"}

    assert [word for word in AVOIDED if word not in own_forms and word not in guide] == []


def test_a_word_is_found_in_each_kind_of_docstring_and_outside_of_samples() -> None:
    """The check reads what people read as prose, and nothing that a program printed."""
    source = '"""Plan anew."""\n\nclass A:\n    x: int = 1\n    """Beside it."""\n    y = "anew"\n'
    page = "Plan anew.\n\n    plan anew\n\n```\nanew\n```\n| beside |\n"

    assert [number for number, line in docstring_lines(source) if PATTERN.search(line)] == [1, 5]
    assert list(message_lines("""raise E(f"{x}: plan anew")\ny = "anew"\n""")) == [(1, ": plan anew")]
    assert [number for number, line in prose_lines(page) if PATTERN.search(line)] == [1, 8]
