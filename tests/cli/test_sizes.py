import pytest
from neuroshard_api.process.failures import CommandError
from neuroshard_dlrm.sizes import parse_bytes


@pytest.mark.parametrize(
    ("text", "number"),
    [("70GiB", 70 * 2**30), ("40GB", 40 * 10**9), ("1.5 TiB", 3 * 2**39), ("80Gi", 80 * 2**30), ("0", 0), ("12 b", 12)],
)
def test_sizes_carry_binary_or_decimal_units(text: str, number: int) -> None:
    """GiB and Gi are powers of 1024, GB of 1000; a bare number is bytes."""
    assert parse_bytes(text, option="--max-memory") == number


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "70 gigs", "1e3", "inf"])
def test_anything_else_is_refused_by_the_options_name(text: str) -> None:
    """The sentence names the option and shows how to write a size."""
    with pytest.raises(CommandError, match=r"--max-memory: .* is not a size; .*70GiB"):
        parse_bytes(text, option="--max-memory")
