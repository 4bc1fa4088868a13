"""Tables and table sets: what a model may declare."""

import math

import pytest
from hypothesis import given
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.tables import REUSE_BINS, DataType, Pooling, Table, TableSet
from support.builders import table, table_set
from support.depth import generated
from support.strategies import table_sets

UNIFORM_BINS = [1 / REUSE_BINS] * REUSE_BINS
A_TABLE = {"name": "a", "num_embeddings": 10, "embedding_dim": 8}


def problem_of(**fields: object) -> str:
    """Return the message with which a set with one table of these fields is refused."""
    with pytest.raises(DocumentError) as caught:
        TableSet.from_data({"schema_version": "table-set/v1", "tables": [A_TABLE | fields]})
    return str(caught.value)


@generated(30, 100)
@given(table_sets())
def test_any_set_survives_json(tables: TableSet) -> None:
    """Reading what was written gives an equal value, down to the last bit of a float."""
    assert TableSet.from_json(tables.to_json()) == tables


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("num_embeddings", 0, "input should be greater than or equal to 1, found 0"),
        ("num_embeddings", -5, "input should be greater than or equal to 1, found -5"),
        ("num_embeddings", 1.5, "input should be a valid integer"),
        ("num_embeddings", 10**14, "input should be less than or equal to 10000000000000"),
        ("num_embeddings", True, "input should be a valid integer, found true"),
        ("embedding_dim", 0, "must be at least 4 columns, found 0"),
        (
            "embedding_dim",
            6,
            "must be a multiple of 4 (FBGEMM's kernels read vectors of 4), found 6; hint: pad the table to 8",
        ),
        ("embedding_dim", "64", 'input should be a valid integer, found "64"'),
        ("pooling_factor", 0, "input should be greater than 0, found 0"),
        ("pooling_factor", -1.0, "input should be greater than 0, found -1.0"),
        ("pooling_factor", math.nan, "input should be a finite number, found NaN"),
        ("pooling_factor", math.inf, "input should be a finite number, found Infinity"),
        ("data_type", "FP64", "input should be 'FP32', 'FP16', 'BF16' or 'INT8'"),
        ("data_type", "BF16", "no training kernel for weights of type BF16 on any device; hint: use FP32 or FP16"),
        ("data_type", "INT8", "no training kernel for weights of type INT8 on any device; hint: use FP32 or FP16"),
        ("name", "", "string should have at least 1 character"),
        ("name", "two words", "string should match pattern"),
        ("zipf_exponent", -0.1, "input should be greater than or equal to 0"),
        ("reuse_histogram", [1.0], "needs at least 17 entries, found 1"),
        (
            "reuse_histogram",
            [0.5] * REUSE_BINS,
            ("must sum to 1 (within 0.01), found 8.5; hint: divide each bin by the sum"),
        ),
        ("reuse_histogram", [math.nan] * REUSE_BINS, "input should be a finite number, found NaN"),
        ("reuse_histogram", [2.0, -1.0] + [0.0] * (REUSE_BINS - 2), "input should be less than or equal to 1"),
    ],
)
def test_a_bad_value_is_refused_by_name(field: str, value: object, problem: str) -> None:
    """The message has the field's path, what was found, and what is expected."""
    message = problem_of(**{field: value})

    assert f"tables[0].{field}" in message
    assert problem in message


def test_a_table_has_one_description_of_reuse() -> None:
    """A histogram and a Zipf exponent contradict each other."""
    message = problem_of(reuse_histogram=UNIFORM_BINS, zipf_exponent=1.0)

    assert message == "document: tables[0]: gives both reuse_histogram and zipf_exponent; hint: give one"


def test_repeated_names_are_refused() -> None:
    """A plan speaks of tables by name."""
    with pytest.raises(ValueError, match=r"tables\[\]\.name: must be unique, found more than once: 'a', 'b'"):
        table_set(table("b"), table("a"), table("c"), table("a"), table("b"))


def test_an_empty_set_is_refused() -> None:
    """There is nothing to plan."""
    with pytest.raises(DocumentError, match="tables: needs at least 1 entries, found 0"):
        TableSet.from_data({"schema_version": "table-set/v1", "tables": []})


def test_a_trillion_rows_are_a_table() -> None:
    """Hash spaces are large; the size is a number, never an allocation."""
    assert table(num_embeddings=10**12).num_embeddings == 10**12


def test_a_hundred_thousand_tables_are_a_set() -> None:
    """The largest models fit well inside the limit."""
    plain = table()
    members = (plain.model_copy(update={"name": f"t{index}"}) for index in range(100_000))

    assert len(table_set(*members).tables) == 100_000


def test_defaults_are_those_of_a_plain_table() -> None:
    """One lookup per sample, single precision, a feature of the table's own name, no group."""
    plain = Table(name="a", num_embeddings=1, embedding_dim=4)

    assert (plain.pooling_factor, plain.data_type, plain.feature_names) == (1.0, DataType.FP32, ())
    assert (plain.reuse_histogram, plain.zipf_exponent, plain.colocation_group) == (None, None, None)


def test_a_rounded_histogram_is_accepted() -> None:
    """Published histograms have three digits, so that their sum is not exactly one."""
    rounded = [0.473, 0.152, 0.139, 0.112, 0.072, 0.032, 0.011, 0.005, 0.002, 0.001] + [0.0] * 7

    assert table(reuse_histogram=tuple(rounded)).reuse_histogram == tuple(rounded)


def test_features_are_named_and_counted() -> None:
    """Without names there is one feature, of the table's own name."""
    assert table("a").features == ("a",)
    assert table("a", feature_names=("clicks", "views")).features == ("clicks", "views")
    assert table("a").num_features == table("a", feature_names=("clicks",)).num_features == 1
    assert table("a", feature_names=("clicks", "views")).num_features == 2


def test_more_features_than_a_table_can_serve_are_refused() -> None:
    """A million features of one table are a mistake; the message gives the limit and a way out."""
    with pytest.raises(ValueError, match="at most 4,096 features, found 1,000,000"):
        table("a", feature_names=tuple(f"f{index}" for index in range(10**6)))


def test_a_feature_twice_is_refused() -> None:
    """A table gives one vector per feature, so that the second would be lost."""
    with pytest.raises(ValueError, match="must be distinct, found 'clicks' more than once"):
        table("a", feature_names=("clicks", "views", "clicks"))


def test_factors_of_repeats_need_the_run_they_were_measured_at() -> None:
    """A factor of whole sessions says nothing of runs of 8."""
    with pytest.raises(ValueError, match="session_run: is needed, since table 'a' has a duplication_factor"):
        table_set(table("a", duplication_factor=2.0))
    assert table_set(table("a", duplication_factor=2.0), session_run=8).session_run == 8


def test_the_repeats_of_a_feature_are_in_one_group() -> None:
    """Its lists are left out of a batch for all tables that look it up; a sequence takes no part."""
    first, second = (
        table(name, feature_names=("clicks",), duplication_group=name, duplication_factor=2.0) for name in ("a", "b")
    )
    with pytest.raises(ValueError, match=r"'clicks' is in 'a' by table 'a', and in 'b' by table 'b'; hint: give both"):
        table_set(first, second, session_run=8)
    assert table_set(first, second.model_copy(update={"pooling": Pooling.NONE}), session_run=8).tables[0] == first
