"""The number of fields that a user meets, and where each is shown."""

import re
from pathlib import Path

import pytest
from neuroshard_api.job.crd import fields_below, is_leaf, job_schema
from support.jobs.given_paths import EXAMPLES, given_paths, jobs_in

ROOT = Path(__file__).parents[2]
MAX_LEAVES = 110
"""Leaves of the spec that are not experimental, without those of a variant, which repeat the job's."""
SPEC = job_schema()["properties"]["spec"]
LEAVES = [path for path, field, _ in fields_below(SPEC, "") if is_leaf(field)]
NORMAL = [path for path in LEAVES if not path.startswith("experimental.")]


def test_a_user_meets_few_fields() -> None:
    """Another leaf has to replace one, or to begin as experimental."""
    assert len([path for path in NORMAL if not path.startswith("variants[].")]) <= MAX_LEAVES


@pytest.fixture(scope="module")
def guides() -> str:
    """Return the text of all guides."""
    return "\n".join(path.read_text() for path in sorted((ROOT / "docs" / "guides").glob("*.md")))


def test_each_field_is_shown_in_an_example_or_a_guide(guides: str) -> None:
    """Nobody uses a field that nobody can find."""
    set_somewhere = {each for path in EXAMPLES for job in jobs_in(path) for each in given_paths(job)}
    shown = {each.removeprefix(".spec.") for each in set_somewhere}
    missing = [path for path in NORMAL if path not in shown and not _is_named(path, guides)]

    assert missing == []


def _is_named(path: str, text: str) -> bool:
    """Return whether a text has a field's dotted path, or its name as a key of YAML or as code."""
    name = re.escape(path.rsplit(".", 1)[-1])
    return re.search(rf"{re.escape(path)}\b|\b{name}:|`([a-z][A-Za-z.\[\]]*\.)?{name}(:[^`]*)?`", text) is not None
