"""Sizes in messages: fitting units, and remedies that suffice."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.process.sizes import format_bytes, rounded_up

UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))}


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1536, "1.5 KiB"),
        (80 * 2**30, "80 GiB"),
        (1024 * 2**30 - 1, "1 TiB"),
        (3 * 2**50, "3 PiB"),
        (3000 * 2**50, "3,000 PiB"),
    ],
)
def test_bytes_carry_a_binary_unit(number: float, text: str) -> None:
    """The largest unit that leaves a whole part is used."""
    assert format_bytes(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(74.834 * 2**30, "74.83 GiB"), (512.25 * 2**30, "512.2 GiB"), (1.6249 * 2**40, "1.62 TiB")]
)
def test_sizes_that_are_compared_have_a_digit_more(number: float, text: str) -> None:
    """76.51 and 76.48 GiB are not the same."""
    assert format_bytes(number, digits=4) == text


@given(st.integers(1, 2**53))
def test_a_size_that_is_rounded_up_suffices_as_it_is_read(number: int) -> None:
    """To a thousandth, in the digits that are shown."""
    found = re.fullmatch(r"([\d,.]+) (\w+)", format_bytes(rounded_up(number), digits=4))
    assert found is not None
    read = float(found[1].replace(",", "")) * UNITS[found[2]]

    assert number <= read + 1e-6 * number
    assert read <= 1.01 * number + 1
