"""The benchmarks' scripts and the page that lists them; mypy checks what they import."""

import ast
from pathlib import Path

from benchmarks.__main__ import PRINTING, WRITING

FOLDER = Path(__file__).parents[2] / "benchmarks"
MODULES = {path.stem: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py") if path.stem != "__main__"}


def test_every_module_has_a_docstring_and_every_script_is_on_the_page() -> None:
    """A script is a module that can be started; the page of benchmarks says what it shows."""
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    scripts = [name for name, source in MODULES.items() if 'if __name__ == "__main__":' in source]

    assert len(scripts) > 40
    assert sorted(name for name in scripts if f"`{name}" not in page) == []
    assert sorted(name for name, source in MODULES.items() if not ast.get_docstring(ast.parse(source))) == []


def test_make_bench_runs_scripts_that_exist() -> None:
    """They are started by their names."""
    assert {*WRITING, *PRINTING} <= set(MODULES)
