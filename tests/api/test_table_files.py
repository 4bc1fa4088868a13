"""Table sets read from files: CSV above all."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.table_files import (
    OPTIONAL_COLUMNS,
    REQUIRED_COLUMNS,
    parse_csv,
    parse_table_set,
    read_table_set,
)
from neuroshard_api.documents.tables import DataType, Optimizer, Pooling
from support.builders import table, table_set

HEADER = "name,num_embeddings,embedding_dim,pooling_factor\n"


def problem_of(text: str) -> str:
    """Return the message with which CSV text is refused."""
    with pytest.raises(DocumentError) as caught:
        parse_csv(text, where="tables.csv", name="tables")
    return str(caught.value)


def test_the_required_columns_make_a_table() -> None:
    """Name, rows, columns and lookups per sample are enough."""
    tables = parse_csv(HEADER + "user,1000,64,2.5\n", where="tables.csv", name="my model")

    assert tables == table_set(table("user", num_embeddings=1000, pooling_factor=2.5), name="my model")


def test_optional_columns_may_be_left_empty() -> None:
    """An empty cell means that the field is not given; columns come in any order."""
    text = (
        "data_type,feature_names,zipf_exponent,colocation_group,pooling_factor,embedding_dim,num_embeddings,name\n"
        "FP16,clicks | views,1.05,ids,2,8,10,a\n"
        ",,,,1,8,10,b\n"
    )

    first, second = parse_csv(text, where="tables.csv", name="tables").tables

    assert (first.data_type, first.zipf_exponent, first.colocation_group) == (DataType.FP16, 1.05, "ids")
    assert first.feature_names == ("clicks", "views")
    assert second == table("b", num_embeddings=10, embedding_dim=8)


def test_pooling_optimizer_and_collection_have_columns() -> None:
    """As in YAML; what is none of their values is refused with line and column."""
    header = HEADER.replace("\n", ",pooling,optimizer,collection\n")

    (found,) = parse_csv(header + "a,10,8,1,MEAN,adagrad,items\n", where="tables.csv", name="tables").tables

    assert (found.pooling, found.optimizer, found.collection) == (Pooling.MEAN, Optimizer.ADAGRAD, "items")
    with pytest.raises(DocumentError, match=r"line 2, column pooling"):
        parse_csv(header + "a,10,8,1,average,,\n", where="tables.csv", name="tables")


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + HEADER + "a,10,8,1\n",
        HEADER.replace("\n", "\r\n") + "a,10,8,1\r\n",
        HEADER + "\n  a , 10 , 8 , 1 \n\n,,,\n",
        HEADER + '"a","10","8","1"',
    ],
    ids=["byte-order-mark", "crlf", "blanks-and-empty-lines", "quotes"],
)
def test_files_of_other_programs_are_read(tmp_path: Path, text: str) -> None:
    """Spreadsheets write CSV in several ways; all mean the same."""
    path = tmp_path / "tables.csv"
    path.write_bytes(text.encode())

    assert read_table_set(path).tables == (table("a", num_embeddings=10, embedding_dim=8),)


def test_a_trillion_rows_are_read() -> None:
    """The size is a number, never an allocation."""
    tables = parse_csv(HEADER + "a,1000000000000,64,1\n", where="tables.csv", name="tables")

    assert tables.tables[0].num_embeddings == 10**12


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", f"is empty; hint: begin with the header {HEADER.strip()}"),
        (" \n\n", f"is empty; hint: begin with the header {HEADER.strip()}"),
        (HEADER, "has a header but no tables; hint: add one line per table"),
        (
            "name,num_embeddings,embedding_dim\na,10,8\n",
            f"line 1, column pooling_factor: is missing; the header needs {HEADER.strip()}",
        ),
        (
            HEADER.replace("\n", ",zipf_exponant\n"),
            "line 1, column 'zipf_exponant': is not known; hint: did you mean zipf_exponent?",
        ),
        (
            HEADER.replace("\n", ",42\n"),
            (
                "line 1, column '42': is not known; hint: the columns are "
                f"{', '.join(REQUIRED_COLUMNS + OPTIONAL_COLUMNS)}"
            ),
        ),
        (HEADER.replace("\n", ",name\n"), "line 1, column name: occurs twice in the header; hint: remove one"),
        (HEADER + "a,10,8\n", "line 2: has 3 cells, the header has 4; hint: is a comma missing or too many?"),
        (HEADER + "a,10,8,1,\n", "line 2: has 5 cells, the header has 4; hint: is a comma missing or too many?"),
        (HEADER + "a,10,8,1\n\na,10,8,1\n", "line 4, column name: 'a' is on line 2 already; hint: rename one"),
        (HEADER + ",10,8,1\n", 'line 2, column name: string should have at least 1 character, found ""'),
        (HEADER + "a,ten,8,1\n", 'line 2, column num_embeddings: input should be a valid integer, found "ten"'),
        (HEADER + "a,1.5,8,1\n", 'line 2, column num_embeddings: input should be a valid integer, found "1.5"'),
        (HEADER + "a,,8,1\n", 'line 2, column num_embeddings: input should be a valid integer, found ""'),
        (
            HEADER + "a,-1,8,1\n",
            "line 2, column num_embeddings: input should be greater than or equal to 1, found -1",
        ),
        (
            HEADER + "a,10,6,1\n",
            (
                "line 2, column embedding_dim: must be a multiple of 4 (FBGEMM's kernels read vectors of 4), found 6; "
                "hint: "
            ),
        ),
        (HEADER + "a,10,8,nan\n", "line 2, column pooling_factor: input should be a finite number, found NaN"),
        (HEADER + "a,10,8,-0.5\n", "line 2, column pooling_factor: input should be greater than 0, found -0.5"),
        (HEADER + 'a,10,8,"1\n', "line 2: is not valid CSV: unexpected end of data"),
        (HEADER + "a,10,8,\0\n", "line 2: holds a NUL byte; hint: write the table set as plain text"),
    ],
    ids=[
        "empty",
        "blank",
        "header-only",
        "missing-column",
        "misspelt-column",
        "unknown-column",
        "repeated-column",
        "short-line",
        "long-line",
        "repeated-name",
        "no-name",
        "text-in-a-number",
        "fraction-of-a-row",
        "empty-number",
        "negative",
        "odd-width",
        "nan",
        "negative-pooling",
        "open-quote",
        "nul",
    ],
)
def test_broken_csv_names_line_and_column(text: str, problem: str) -> None:
    """The message says where to look and what to do."""
    assert problem_of(text).startswith(f"tables.csv: {problem}")


def test_every_faulty_line_is_named() -> None:
    """One reading shows all that is to be fixed."""
    assert problem_of(HEADER + "a,0,8,1\nb,10,8,1\nc,10,8,0\n") == (
        "tables.csv: line 2, column num_embeddings: input should be greater than or equal to 1, found 0; "
        "line 4, column pooling_factor: input should be greater than 0, found 0.0"
    )


@given(st.text() | st.text(alphabet='a,1"\r\n|\0'))
def test_any_text_is_read_or_refused_with_one_kind_of_error(text: str) -> None:
    """No text makes the reader fail in another way."""
    for candidate in (text, HEADER + text):
        with contextlib.suppress(DocumentError):
            assert parse_csv(candidate, where="tables.csv", name="tables").tables


def test_binary_garbage_is_refused(tmp_path: Path) -> None:
    """A spreadsheet's own format under the name of a CSV says that it is not a text."""
    path = tmp_path / "tables.csv"
    path.write_bytes(bytes(range(256)))

    with pytest.raises(DocumentError, match=r"tables\.csv: is not text in UTF-8"):
        read_table_set(path)


@pytest.mark.parametrize("suffix", [".json", ".yaml", ".yml", ".JSON"])
def test_the_suffix_says_how_a_file_is_written(tmp_path: Path, suffix: str) -> None:
    """JSON is also YAML; the suffix decides which reader's messages one gets."""
    path = tmp_path / f"tables{suffix}"
    path.write_text(table_set().to_json(), encoding="utf-8")

    assert read_table_set(path) == table_set()


@pytest.mark.parametrize(("name", "found"), [("tables.xlsx", "the suffix is '.xlsx'"), ("tables", "it has no suffix")])
def test_another_suffix_is_refused(tmp_path: Path, name: str, found: str) -> None:
    """The message lists what can be read."""
    (tmp_path / name).write_text("")

    with pytest.raises(DocumentError, match=rf"{found}, expected \.csv, \.json, \.yaml or \.yml"):
        read_table_set(tmp_path / name)


def test_a_missing_csv_is_a_document_error(tmp_path: Path) -> None:
    """As for any other document."""
    with pytest.raises(DocumentError, match="does not exist; hint: check the path"):
        read_table_set(tmp_path / "tables.csv")


@pytest.mark.parametrize("rows", ["1e6", "1000000.0", "1E+6"])
def test_rows_may_be_written_as_a_decimal_number(rows: str) -> None:
    """Pandas writes 1000000.0 in a column with a gap, and people write 1e6; a fraction of a row is refused."""
    parsed = [
        parse_csv(HEADER + f"a,{rows},64.0,1\n", where="t.csv", name="t"),
        *(
            parse_table_set(
                f'{{"schema_version": "table-set/v1", "name": "t", "tables": [{{"name": "a", "num_embeddings": {rows}, '
                '"embedding_dim": 64.0}]}',
                name=f"t{suffix}",
                where="t",
            )
            for suffix in (".json", ".yaml")
        ),
    ]

    assert {(each.num_embeddings, each.embedding_dim) for found in parsed for each in found.tables} == {(10**6, 64)}
    assert "line 2, column num_embeddings" in problem_of(HEADER + "a,1.5,64,1\n")


def test_weights_of_lookups_have_a_column() -> None:
    """As pandas writes them."""
    header = HEADER.replace("\n", ",is_weighted\n")
    found = parse_csv(header + "a,10,8,1,True\nb,10,8,1,false\nc,10,8,1,\n", where="t.csv", name="t")

    assert [each.is_weighted for each in found.tables] == [True, False, None]
    assert "line 2, column is_weighted" in problem_of(header + "a,10,8,1,maybe\n")
