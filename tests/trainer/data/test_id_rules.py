"""From ids to rows."""

import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from neuroshard_api.documents.tables import IdRule
from neuroshard_api.job.id_rules import id_rule_of
from neuroshard_api.job.training import DataFormat
from neuroshard_trainer.data.id_columns import IdColumn, holds_ids
from neuroshard_trainer.data.id_rules import rows_of_integers, rows_of_texts
from neuroshard_trainer.data.text_hashes import text_array_hashes
from neuroshard_trainer.predict import integer_hashes
from support import builders

INTEGERS = [0, 1, -1, 41, 2**31, -(2**31), 2**63 - 1, -(2**63)]


def test_integers_are_hashed_by_xxh64_of_their_eight_bytes() -> None:
    """Numpy's arithmetic equals the reference implementation for signed and unsigned integers."""
    assert integer_hashes(np.array(INTEGERS)).tolist() == [
        xxhash.xxh64_intdigest(number.to_bytes(8, "little", signed=True)) for number in INTEGERS
    ]
    unsigned = np.array([2**64 - 1, 2**63], dtype=np.uint64)
    assert integer_hashes(unsigned).tolist() == integer_hashes(np.array([-1, -(2**63)])).tolist()


def test_the_rows_of_an_id_never_change() -> None:
    """Checkpoints and exported models rely on these numbers, which other languages compute too."""
    assert rows_of_texts(["sku-123", "größe", "", b"\xff"], 1000).tolist() == [971, 109, 921, 364]
    assert rows_of_integers(np.array(INTEGERS), IdRule.HASH, 1000).tolist() == [579, 269, 761, 895, 756, 863, 972, 848]


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_the_row_of_an_integer_does_not_depend_on_its_type(kind: str) -> None:
    """A log that is written again with a narrower type trains the same rows."""
    for rule in IdRule:
        found = rows_of_integers(np.array([3, 100], dtype=kind), rule, 7 if rule is not IdRule.EXACT else 200)
        expected = rows_of_integers(np.array([3, 100]), rule, 7 if rule is not IdRule.EXACT else 200)
        assert found.tolist() == expected.tolist()
        assert found.dtype == np.int64


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (np.array([-1, -10, 10, 25]), [9, 0, 0, 5]),
        (np.array([2**64 - 1, 2**63], dtype=np.uint64), [(2**64 - 1) % 10, 2**63 % 10]),
        (np.array([-128, 127], dtype=np.int8), [2, 7]),
    ],
    ids=["negative", "unsigned", "narrow"],
)
def test_modulo_counts_from_0(ids: Any, expected: list[int]) -> None:
    """As mathematics and Python have it, not C."""
    assert rows_of_integers(ids, IdRule.MODULO, 10).tolist() == expected


def test_an_unsigned_id_beyond_64_bits_with_a_sign_is_in_no_table() -> None:
    """Exact does not wrap it around to a row that exists."""
    assert rows_of_integers(np.array([2**64 - 1], dtype=np.uint64), IdRule.EXACT, 10)[0] > 10**13


def test_criteos_ids_are_taken_modulo_unless_the_table_says_otherwise() -> None:
    """They are hashes; ids of other formats are rows."""
    assert id_rule_of(builders.table(), DataFormat.CRITEO_TSV) is IdRule.MODULO
    assert id_rule_of(builders.table(), DataFormat.PARQUET) is IdRule.EXACT
    assert id_rule_of(builders.table(id_rule=IdRule.HASH), DataFormat.CRITEO_TSV) is IdRule.HASH


TEXTS = ["a", "ü", "a", None]
NUMBERS = [3, -5, 3, None]


@pytest.mark.parametrize(
    ("column", "plain"),
    [
        (pa.array(TEXTS), TEXTS),
        (pa.array(TEXTS, pa.large_string()), TEXTS),
        (pa.array(TEXTS, pa.binary()), TEXTS),
        (pa.array(TEXTS).dictionary_encode(), TEXTS),
        (pa.array(NUMBERS), NUMBERS),
        (pa.array(NUMBERS, pa.int8()), NUMBERS),
        (pa.array(NUMBERS).dictionary_encode(), NUMBERS),
        (pa.array(TEXTS, pa.string_view()), TEXTS),
        (pa.array([[3], None, [-5, None]], pa.list_view(pa.int32())), [[3], None, [-5]]),
        (pa.array([["a", None], None, [], ["ü", "a"]]), [["a"], None, [], ["ü", "a"]]),
        (pa.array([[3], None, [-5, None]], pa.large_list(pa.int32())), [[3], None, [-5]]),
        (pa.array([[3, -5], None, [7, None]], pa.list_(pa.int64(), 2)), [[3, -5], None, [7]]),
        (
            pa.ListArray.from_arrays([0, 2, 2, 3], pa.array(["a", "ü", "a"]).dictionary_encode()),
            [["a", "ü"], [], ["a"]],
        ),
    ],
    ids=[
        "texts", "large texts", "bytes", "dictionary of texts", "integers", "narrow", "dictionary of integers",
        "views of texts", "views of lists", "lists of texts", "large lists", "lists of a fixed size",
        "lists of a dictionary",
    ],
)  # fmt: skip
def test_a_column_of_any_type_has_the_rows_of_its_values(column: pa.Array, plain: list[Any]) -> None:
    """A null looks nothing up, in a list or in place of it; a slice counts from its own first value."""
    assert holds_ids(column.type)
    for begin in (0, 1):
        lists = [[] if each is None else each if isinstance(each, list) else [each] for each in plain[begin:]]
        found = IdColumn.of(pa.chunked_array([column.slice(begin)])).rows(IdRule.HASH, 1000)
        flat = [each for values in lists for each in values]
        rows = [
            rows_of_texts([each], 1000)[0]
            if isinstance(each, str)
            else rows_of_integers(np.array([each]), IdRule.HASH, 1000)[0]
            for each in flat
        ]
        assert found.lengths.tolist() == [len(values) for values in lists]
        assert found.values.tolist() == rows


@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary()], ids=str)
def test_texts_of_any_length_have_the_hashes_of_the_package(kind: pa.DataType) -> None:
    """One by one, all of one length, and next to each other in any order; a slice has its own."""
    rng = np.random.default_rng(0)
    often = np.repeat([0, 3, 7, 9, 12, 31, 32, 36, 47, 64, 71], 70)  # as many as are hashed together
    lengths = [*range(70), *rng.permutation(often).tolist(), *rng.integers(0, 70, size=300).tolist(), 511, 512, 700]
    texts = [bytes(rng.integers(32, 127, size=length, dtype=np.uint8)) for length in lengths]
    expected = [xxhash.xxh64_intdigest(text) for text in texts]

    assert text_array_hashes(pa.array(texts, kind)).tolist() == expected
    assert text_array_hashes(pa.array(texts, kind).slice(9, 90)).tolist() == expected[9:99]
    assert text_array_hashes(pa.array([], kind)).tolist() == []
    for length in range(70):
        one_length = texts[length : length + 1] * 3
        assert text_array_hashes(pa.array(one_length, kind)).tolist() == [
            xxhash.xxh64_intdigest(each) for each in one_length
        ]


def test_equal_ids_have_one_identity_in_all_types() -> None:
    """Statistics count distinct ids by it."""
    texts = IdColumn.of(pa.array(["a", "b", "a"])).identities()

    assert texts.tolist() == IdColumn.of(pa.array(["a", "b", "a"]).dictionary_encode()).identities().tolist()
    assert texts[0] == texts[2] != texts[1]
    assert IdColumn.of(pa.array([2**64 - 1], pa.uint64())).identities().tolist() == [-1]


def test_numbers_dates_and_nested_lists_are_no_ids() -> None:
    """They are refused by their type when a file is opened."""
    kinds = [
        pa.float64(),
        pa.timestamp("us"),
        pa.list_(pa.list_(pa.int64())),
        pa.bool_(),
        pa.struct([("a", pa.int64())]),
    ]

    assert not [kind for kind in kinds if holds_ids(kind)]


def test_the_rules_need_no_torch() -> None:
    """An exported model's `predict.py` and `neuroshard stats` use them where torch is not installed."""
    code = (
        "import sys; sys.modules['torch'] = None; import neuroshard_trainer.data.id_rules as rules, numpy; "
        "from neuroshard_api.documents.tables import IdRule; "
        "print(rules.rows_of_integers(numpy.array([12]), IdRule.MODULO, 10)[0])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "2\n"
