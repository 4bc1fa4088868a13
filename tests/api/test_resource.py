"""Quantities in the notation of Kubernetes."""

from decimal import Decimal

import pytest
from neuroshard_api.job.resource import quantity, size_bytes


@pytest.mark.parametrize(
    ("size", "expected"),
    [(1024, 1024), ("1024", 1024), ("2k", 2000), ("1.5Ki", 1536), ("80Gi", 80 * 2**30), ("0.5T", 5 * 10**11)],
    ids=str,
)
def test_a_size_is_a_number_of_bytes(size: int | str, expected: int) -> None:
    """Exactly, however large."""
    assert size_bytes(size) == expected


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (8, 8),
        ("500m", "0.5"),
        ("1k", 1000),
        ("2Ki", 2048),
        ("1E", 10**18),
        ("1e3", 1000),
        ("1.5E-1", "0.15"),
        ("-2", -2),
    ],
)
def test_an_amount_of_a_resource_is_a_number(amount: int | str, expected: int | str) -> None:
    """All of Kubernetes' notations: decimal and binary suffixes, and exponents."""
    assert quantity(amount) == Decimal(expected)


def test_an_exponent_without_bound_overflows_nothing() -> None:
    """Kubernetes takes it for its largest quantity."""
    assert quantity("1e999999999999") > 2**63
