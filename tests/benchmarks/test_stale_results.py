"""The list of results that are older than the code that they measure."""

import pytest

from benchmarks.stale_results import MEASURED, RESULTS, ROOT, program, topic_of

BEFORE = '"""Old words."""\nimport old\n\ndef double(x: int) -> int:\n    """Twice."""\n    return 2 * x  # of x\n'


def test_every_result_names_code_that_is_there() -> None:
    """A new topic, and a folder that moved, fail here and not when somebody asks."""
    assert {topic_of(path.name) for path in (ROOT / RESULTS).glob("*.md")} <= set(MEASURED)
    assert [path for paths in MEASURED.values() for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(
    ("after", "is_same"),
    [
        (BEFORE.replace("Old words", "New words").replace("# of x", ""), True),
        (BEFORE.replace("import old", "from new import old"), True),
        (BEFORE.replace("2 * x", "3 * x"), False),
        (BEFORE.replace("double", "triple"), False),
    ],
    ids=["words", "imports", "arithmetic", "names"],
)
def test_words_do_not_change_a_program(after: str, *, is_same: bool) -> None:
    """Comments, docstrings, and imports decide no number."""
    assert (program(BEFORE) == program(after)) is is_same
