"""Criteo's lines as arrays, against the plain reading of each cell."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_trainer.data.criteo_lines import COLUMNS, LineError, parse_lines

hashes = st.one_of(st.just(""), st.text("0123456789abcdefABCDEF", min_size=1, max_size=16))
integers = st.one_of(
    st.just(""), st.integers(-(10**9), 10**12).map(str), st.floats(-1e9, 1e9).map(repr), st.integers(0, 99).map(str)
)
lines = st.tuples(
    st.sampled_from("01"), st.lists(integers, min_size=13, max_size=13), st.lists(hashes, min_size=26, max_size=26)
)


@given(cells=st.lists(lines, min_size=1, max_size=5), newline=st.sampled_from(["\n", "\r\n"]), ends=st.booleans())
def test_every_cell_is_read_as_its_number(
    cells: list[tuple[str, list[str], list[str]]], newline: str, *, ends: bool
) -> None:
    """Whatever its length, its case and the newline."""
    text = newline.join("\t".join([label, *numbers, *found]) for label, numbers, found in cells)

    parsed = parse_lines((text + newline * ends).encode())

    assert parsed.labels.tolist() == [float(label) for label, _, _ in cells]
    wanted = np.array([[float(cell or 0) for cell in numbers] for _, numbers, _ in cells], dtype=np.float32)
    np.testing.assert_array_equal(parsed.integers, wanted)
    assert parsed.hashes.T.tolist() == [[int(cell or "0", 16) for cell in found] for _, _, found in cells]
    assert parsed.present.T.tolist() == [[bool(cell) for cell in found] for _, _, found in cells]


GOOD = ["1", *["5"] * 13, *["68fd1e64"] * 26]


@given(
    column=st.integers(0, len(COLUMNS) - 1),
    cell=st.binary(min_size=1, max_size=20).filter(lambda cell: not set(cell) & set(b"0123456789abcdefABCDEF\r\n\t")),
)
def test_a_cell_that_is_no_number_is_refused(column: int, cell: bytes) -> None:
    """Whatever bytes it holds, its line and column are named."""
    bad = [each.encode() for each in GOOD]
    bad[column] = cell
    good = "\t".join(GOOD).encode()

    with pytest.raises(LineError, match=f"column {COLUMNS[column]}: expected") as caught:
        parse_lines(b"\n".join((good, b"\t".join(bad), good)))

    assert caught.value.row == 1


@pytest.mark.parametrize("cell", ["g0", "0x1f", "-1f", " 1f", "1" * 17, "@", "`", "G"])
def test_a_hash_has_hexadecimal_digits_alone(cell: str) -> None:
    """Neither prefix nor sign, and at most 16 digits."""
    with pytest.raises(LineError, match="column cat_25: expected a hexadecimal hash"):
        parse_lines("\t".join([*GOOD[:-1], cell]).encode())


@pytest.mark.parametrize("cell", ["-", "1_000", "nan", "inf", "1.", "1e3", "+7"])
def test_a_number_may_be_written_in_full(cell: str) -> None:
    """A fraction or an exponent is read, a word is not."""
    text = "\t".join(["1", cell, *GOOD[2:]]).encode()
    if cell in {"1.", "1e3", "+7"}:
        assert parse_lines(text).integers[0, 0] == float(cell)
    else:
        with pytest.raises(LineError, match="column int_0: expected a number"):
            parse_lines(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [(b"\t".join([b"1"] * 39), "has 39 columns"), (b"\n", "has 1 columns"), (b"a\x00b", "has 1 columns")],
    ids=["cut off", "empty", "binary"],
)
def test_a_line_of_other_columns_is_refused(text: bytes, expected: str) -> None:
    """The sentence says how many there are."""
    with pytest.raises(LineError, match=expected):
        parse_lines(text)


def test_no_lines_are_no_samples() -> None:
    """An empty text has the shapes of zero lines."""
    assert parse_lines(b"").hashes.shape == (26, 0)
