"""Remedies in messages: on the line in logs and conditions, on a line of their own in a terminal."""

import pytest
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.process.hints import in_lines, last_message


def test_a_terminal_shows_the_hint_on_a_line_of_its_own() -> None:
    """The problem stays on the first line."""
    assert (
        in_lines("plan.json: is not a file; hint: check the path") == "plan.json: is not a file\nhint: check the path"
    )


def test_several_problems_of_a_document_come_before_their_hints() -> None:
    """A hint that two problems share is given once."""
    error = DocumentError("job.yaml", ["a: is missing; hint: add it", "b: is 3", "c: is missing; hint: add it"])
    assert str(error) == "job.yaml: a: is missing; b: is 3; c: is missing; hint: add it"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], ""),
        (["step 3", "error: no space"], "error: no space"),
        (["step 3", "error: no space", "hint: free some", ""], "error: no space; hint: free some"),
        (["hint: free some"], "hint: free some"),
    ],
    ids=["an empty log", "a problem alone", "a problem and its hint", "a hint alone"],
)
def test_the_last_message_of_a_log_has_its_hint(lines: list[str], message: str) -> None:
    """A condition that kept the last line alone would name the remedy of an unknown problem."""
    assert last_message(lines) == message
