"""Checks rules 2, 3, 4, and 10 of docs/STYLE.md in docstrings, messages, and pages: `make lint` runs it.

    python docs/style_check.py

Prints a line for each finding, and ends with 1 if there is any.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
AVOIDED = {
    r"anew": "again",
    r"beside": "next to, in addition to",
    r"ended well": "succeeded",
    r"gone on with": "continued",
    r"mend(ed|s)?": "fix",
    r"not given:": "if unset:",
    r"so many": "that many",
    r"tell apart|told apart": "distinguish",
    r"whoever": "anyone who",
    r"(?<!there )is no (?!(longer|such|more|other|one|reason|evidence)\b)\w+": "is not a",
    r"neuroshard-operator\[\w*\]?": "'.[extra]' in a checkout: no package is published",
    r"(does|did) cost": "the measured cost",
    r"lies": "is",
    r"said": "reported, stated",
    r"stands?(?! (in\b(?! the| a)|for|alone|out)|-in)": "is",
    r"told": "reported, distinguished, asked",
}
"""Regular expressions of what rules 3 and 4 avoid, with the replacement."""
ANY_WORD = re.compile("|".join(AVOIDED), re.IGNORECASE)
CLAUSE = re.compile(
    r"(Ask|Check|Count|Do|Find|Give|Log|Measure|Name|Print|Read|Return|Say|See|Show|Tell|Write|Yield) "
    r"(how|what|when|where|which|whose|why)\b|Tell whether\b"
)
"""A verb with a clause in the place of its object, at the start of a docstring; "Return whether" is the usual form."""
AFTER_NOTHING = re.compile(r'(^|""")\n *"""', re.MULTILINE)
"""A string after a blank line or after another string, which describes nothing if it is a statement."""
CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
ROOMS = (
    *("api", "cli", "costs", "decisions", "dense", "dropin", "operator"),
    *("planner", "profiler", "python", "report", "trainer"),
)
SKIPPED = ("docs/STYLE.md", "docs/style_check.py", "benchmarks/results/")
"""The lists themselves, and results, which are kept as they were published."""


def main() -> int:
    """Print the findings and return an exit code."""
    texts = {path: (ROOT / path).read_text("utf-8") for path in sources()}
    found = [f"{path}:{finding}" for path, text in texts.items() for finding in findings(path, text)]
    found += doubled_classes({path: text for path, text in texts.items() if path.startswith(ROOMS)})
    sys.stdout.write("".join(f"{line}\n" for line in found))
    return 1 if found else 0


def sources() -> list[str]:
    """Return the modules and pages of the repository, by their paths."""
    rooms = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "build"))]
    files = [path for room in rooms for kind in ("*.py", "*.md") for path in room.rglob(kind)] + list(ROOT.glob("*.md"))
    return sorted(str(path.relative_to(ROOT)) for path in files if not str(path.relative_to(ROOT)).startswith(SKIPPED))


def findings(path: str, text: str) -> Iterator[str]:
    """Yield the line and the problem of each finding in a file."""
    if path.endswith(".py") and AFTER_NOTHING.search(text):
        yield from (f"{line}: a docstring of nothing" for line in orphans(ast.parse(text)))
    if not ANY_WORD.search(text) and not CLAUSE.search(text):
        return
    is_python, with_messages = path.endswith(".py"), not path.startswith("tests/")
    for line, prose in python_prose(text, with_messages=with_messages) if is_python else page_prose(text):
        for pattern, better in AVOIDED.items() if ANY_WORD.search(prose) else ():
            for match in re.finditer(rf"\b({pattern})(?!\w)", prose, re.IGNORECASE):
                yield f"{line}: {match[0]!r}; write {better!r}"
        if is_python and (clause := CLAUSE.match(prose)):
            yield f"{line}: {clause[0]!r}; write a noun, such as 'Return the cost'"


def orphans(tree: ast.Module) -> Iterator[int]:
    """Yield the lines of strings that stand alone and describe neither a definition nor the assignment before them."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for before, after in pairwise(body) if isinstance(body, list) else ():
            match after:
                case ast.Expr(value=ast.Constant(value=str())) if not isinstance(before, ast.Assign | ast.AnnAssign):
                    yield after.lineno


def doubled_classes(texts: Mapping[str, str]) -> list[str]:
    """Return a finding for each class whose name another module of the product defines, too."""
    places: dict[str, list[str]] = {}
    for path, text in texts.items():
        for name in () if path.startswith("python/") else CLASS.findall(text):  # its objects are the documents, wrapped
            places.setdefault(name, []).append(path)
    return [f"{paths[-1]}: class {name!r} is one of {paths[0]}" for name, paths in places.items() if len(paths) > 1]


def python_prose(source: str, *, with_messages: bool) -> Iterator[tuple[int, str]]:
    """Yield docstrings and, if wanted, the other strings of several words, each with its first line."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) in alone or (with_messages and " " in text):
                yield node.lineno, text


def page_prose(page: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a page outside of its samples."""
    is_sample = False
    for number, line in enumerate(page.splitlines(), start=1):
        is_sample ^= line.startswith("```")
        if not is_sample and not line.startswith("    "):
            yield number, line


if __name__ == "__main__":
    sys.exit(main())
