"""The benchmarks' scripts, which no other check imports."""

from importlib import import_module
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "__main__")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_finds_what_it_imports(name: str) -> None:
    """A name that the product no longer has would show only when somebody runs the script."""
    assert import_module(f"benchmarks.{name}").__doc__
