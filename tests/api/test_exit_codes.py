import re
from pathlib import Path

from neuroshard_api.exit_codes import ExitCode

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


def test_the_reference_lists_every_exit_code() -> None:
    """Scripts are written against the document."""
    documented = {
        int(code) for code in re.findall(r"^\| (\d+) \|", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert documented == set(ExitCode)
