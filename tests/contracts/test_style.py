"""The check of the style guide that `make lint` runs."""

import importlib.util
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def script() -> ModuleType:
    """Return the program that checks the style."""
    spec = importlib.util.spec_from_file_location("style_check", ROOT / "docs" / "style_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CHECK = script()


def test_the_check_reads_docstrings_messages_and_pages_without_their_samples() -> None:
    """A docstring, a message, and a page with an avoided word have a finding each; names and samples have none."""
    source = '"""Plan it."""\n\nclass A:\n    x: int = 1\n    """Beside\n    it."""\n    anew = "anew"\n'
    message = 'raise E(f"{x}: plan anew")\n'
    page = "Plan anew.\n\n    plan anew\n\n```\nanew\n```\n| beside |\n"
    clause = 'def f():\n    """Return what it costs."""\n'

    assert list(CHECK.findings("api/a.py", source)) == ["5: 'Beside'; write 'next to, in addition to'"]
    assert list(CHECK.findings("api/a.py", message)) == ["1: 'anew'; write 'again'"]
    assert list(CHECK.findings("tests/a.py", message)) == []
    assert [found.partition(":")[0] for found in CHECK.findings("docs/a.md", page)] == ["1", "8"]
    assert list(CHECK.findings("api/a.py", clause)) == ["2: 'Return what'; write a noun, such as 'Return the cost'"]


def test_the_check_finds_docstrings_of_nothing_and_names_of_two_classes() -> None:
    """A constant that was removed leaves its docstring there; one name for two things is found in neither place."""
    orphan = 'A = 1\n"""Of A."""\n"""Of a constant that was removed."""\n\n\ndef f() -> None:\n    """Do it."""\n'

    assert list(CHECK.findings("api/a.py", orphan)) == ["3: a docstring of nothing"]
    assert CHECK.doubled_classes({"api/a.py": "class A:\n", "cli/b.py": "class A(B):\nclass C:\n"}) == [
        "cli/b.py: class 'A' is one of api/a.py"
    ]
