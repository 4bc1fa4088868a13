"""Quantities in the notation of Kubernetes."""

import pytest
from neuroshard_api.resource import size_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1024, 1024), ("1024", 1024), ("2k", 2000), ("1.5Ki", 1536), ("80Gi", 80 * 2**30), ("0.5T", 5 * 10**11)],
    ids=str,
)
def test_a_size_is_a_number_of_bytes(size: int | str, expected: int) -> None:
    """Exactly, however large."""
    assert size_bytes(size) == expected
