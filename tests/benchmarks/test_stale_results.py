"""The list of results that are older than the code that they measure."""

import subprocess
from pathlib import Path

import pytest

from benchmarks.stale_results import MEASURED, RESULTS, ROOT, History, definitions, staleness, topic_of

BEFORE = """
'''Old words.'''
import old

def double(x: int) -> int:
    '''Twice.'''
    if x < 0:
        raise ValueError(f"a number of {x} is below 0")
    return 2 * x  # of x

def query() -> str:
    return "SELECT a FROM b"
"""


def test_every_result_names_code_that_is_there() -> None:
    """A new topic, and a folder that moved, fail here and not when somebody asks."""
    assert {topic_of(path.name) for path in (ROOT / RESULTS).glob("*.md")} <= set(MEASURED)
    assert [path for paths in MEASURED.values() for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("Old words", "New words", True),
        ("# of x", "", True),
        ("import old", "from new import old", True),
        ("x: int) -> int", "x: Count) -> Count", True),
        ("a number of {x} is below 0", "the number {-x} of items is below 0", True),
        ("2 * x", "3 * x", False),
        ("x < 0", "x <= 0", False),
        ("double", "triple", False),
        ("ValueError", "TypeError", False),
        ("SELECT a", "SELECT c", False),
    ],
)
def test_words_do_not_change_a_program(old: str, new: str, *, is_same: bool) -> None:
    """Comments, docstrings, imports, annotations, and messages decide no number; queries do."""
    assert (definitions(BEFORE) == definitions(BEFORE.replace(old, new))) is is_same


class Checkout:
    """A checkout with a result and the code that it measures."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._git("init", "--quiet")
        self.commit({f"{RESULTS}/speed_any.md": "3.5 ms", "code/one.py": BEFORE, "code/sizes.yaml": "- 4"})

    def commit(self, files: dict[str, str]) -> None:
        """Write files, and commit all that there is."""
        for name, text in files.items():
            path = self._root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._git("add", "--all")
        self._git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "change")

    def changed(self) -> list[str]:
        """Return the measured files that are other ones than when the result was made."""
        with History(self._root) as history:
            return list(staleness("speed_any.md", ["code"], history).changed)

    def _git(self, *arguments: str) -> None:
        command = ["git", *arguments]
        subprocess.run(command, cwd=self._root, check=True)


def test_a_definition_may_move_and_may_not_become_another(tmp_path: Path) -> None:
    """Splitting a file changes nothing that is measured; another body of a function does, wherever it is."""
    checkout = Checkout(tmp_path)
    double, query = BEFORE.split("def query")
    checkout.commit({"code/one.py": double, "code/two.py": f"def query{query}"})
    (tmp_path / "code/sizes.yaml").rename(tmp_path / "code/widths.yaml")
    checkout.commit({})
    assert checkout.changed() == []

    checkout.commit({"code/two.py": "def query():\n    return 1\n", "code/widths.yaml": "- 8"})
    assert checkout.changed() == ["code/two.py", "code/widths.yaml"]


def test_a_new_name_changes_a_result_only_where_it_is_called_or_may_override(tmp_path: Path) -> None:
    """What was there before does not run a further function or method, unless it has changed, or inherits."""
    checkout = Checkout(tmp_path)
    first = "class Free:\n    def one(self):\n        return 1\n\nclass Heir(dict):\n    pass\n"
    checkout.commit({"code/free.py": first, f"{RESULTS}/speed_any.md": "3.6 ms"})
    method = "    def two(self):\n        return 2\n"
    checkout.commit(
        {"code/free.py": first.replace("\nclass", f"{method}\nclass"), "code/new.py": first.replace("Free", "Third")}
    )
    assert checkout.changed() == []

    checkout.commit({"code/free.py": first.replace("    pass\n", method)})
    assert checkout.changed() == ["code/free.py"]


def test_a_result_is_as_old_as_its_numbers(tmp_path: Path) -> None:
    """Other words in a result do not make it new; another number does."""
    checkout = Checkout(tmp_path)
    checkout.commit({"code/sizes.yaml": "- 8"})
    checkout.commit({f"{RESULTS}/speed_any.md": "A step takes 3.5 ms"})
    assert checkout.changed() == ["code/sizes.yaml"]

    checkout.commit({f"{RESULTS}/speed_any.md": "A step takes 3.6 ms"})
    assert checkout.changed() == []
