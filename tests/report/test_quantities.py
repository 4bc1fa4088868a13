import pytest
from neuroshard_report.quantities import format_count, format_ms, format_percent


@pytest.mark.parametrize(("number", "text"), [(8192, "8,192"), (40_000_000, "40M"), (172_862, "173K"), (0.5, "0")])
def test_counts_are_whole_until_they_are_long(number: float, text: str) -> None:
    """Batch sizes are shown exactly, row counts by their order."""
    assert format_count(number) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [(0.0042, "0.004"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12_345.6, "12,346")],
)
def test_milliseconds_have_three_digits(milliseconds: float, text: str) -> None:
    """No more digits than a prediction is worth."""
    assert format_ms(milliseconds) == text


@pytest.mark.parametrize(("share", "text"), [(0.1234, "12.3 %"), (0.9999, "100 %"), (2.5, "250 %"), (-0.05, "-5.0 %")])
def test_shares_are_percent(share: float, text: str) -> None:
    """A share is multiplied by one hundred and named."""
    assert format_percent(share) == text
