"""The number of fields that a user meets."""

from neuroshard_api.job.crd import fields_below, is_leaf, job_schema

MAX_LEAVES = 151
"""Leaves of the spec that are not experimental."""
SPEC = job_schema()["properties"]["spec"]
LEAVES = [path for path, field, _ in fields_below(SPEC, "") if is_leaf(field)]
NORMAL = [path for path in LEAVES if not path.startswith("experimental.")]


def test_a_user_meets_few_fields() -> None:
    """Another leaf has to replace one, or to begin as experimental."""
    assert len(NORMAL) <= MAX_LEAVES
