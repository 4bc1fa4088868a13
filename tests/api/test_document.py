"""What holds for every document: strict, versioned, frozen, read with errors that name the place."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from neuroshard_api.documents.batch_choice import DenseProfiles
from neuroshard_api.documents.document import (
    Document,
    DocumentError,
    field_path,
    parse_data,
    validated,
    validated_without_unknown,
)
from neuroshard_api.documents.kinds import USES
from neuroshard_api.documents.request import Constraints
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.documents.torchrec_plan import TorchRecPlan
from neuroshard_api.documents.yaml_text import parse_manifests
from neuroshard_api.job.training_job import API_VERSION, DLRMTrainingJob
from neuroshard_api.schemas import DOCUMENTS
from pydantic import ValidationError
from support import builders
from support.trainer import training_builders

EXAMPLES: tuple[Document, ...] = (
    builders.table_set(),
    builders.topology(),
    Constraints(),
    builders.request(),
    builders.bundle_manifest(),
    builders.plan(),
    builders.profile_record(),
    builders.step_report(),
    builders.hardware(),
    builders.dense_profile(),
    DenseProfiles(profiles=(builders.dense_profile(batch_size_per_device=512), builders.dense_profile())),
    builders.progress(),
    builders.session_clustering(),
    training_builders.drift_report(),
    training_builders.input_statistics(),
    training_builders.training_comparison(),
    training_builders.accuracy_comparison(),
    training_builders.comparison_request(),
    training_builders.exported_model(),
    training_builders.model_evaluation(),
    TorchRecPlan.of(builders.plan()),
)
each_document = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.schema_name)

VALID_YAML = "schema_version: table-set/v1\ntables:\n  - {name: a, num_embeddings: 10, embedding_dim: 8}\n"


def data_of(example: Document) -> dict[str, Any]:
    """Return a document as plain data."""
    data: dict[str, Any] = json.loads(example.to_json())
    return data


def problems_of(cls: type[Document], data: object) -> str:
    """Return the message with which plain data is refused."""
    with pytest.raises(DocumentError) as caught:
        cls.from_data(data, where="file.json")
    return str(caught.value)


def test_every_kind_of_document_is_covered_here() -> None:
    """A new document joins these tests."""
    assert {example.schema_name for example in EXAMPLES} == {document.schema_name for document in DOCUMENTS}


@each_document
def test_a_document_survives_json(example: Document) -> None:
    """Reading what was written gives an equal value."""
    assert type(example).from_json(example.to_json()) == example


@each_document
def test_json_is_canonical(example: Document) -> None:
    """Writing, reading and writing again gives the same bytes, with one final newline."""
    text = example.to_json()

    assert type(example).from_json(text).to_json() == text
    assert text.endswith("}\n")


@each_document
def test_a_document_is_frozen(example: Document) -> None:
    """Assigning to a field is an error; work returns new values."""
    with pytest.raises(ValidationError, match="frozen"):
        example.schema_version = "other/v1"  # type: ignore[attr-defined]


@each_document
def test_an_unknown_key_is_refused(example: Document) -> None:
    """A misspelt key must not be silently ignored."""
    message = problems_of(type(example), data_of(example) | {"surprise": 1})

    assert message == "file.json: surprise: is not a known key; hint: check its spelling or remove it"


@each_document
def test_a_missing_version_says_what_to_add(example: Document) -> None:
    """The message can be pasted into the file."""
    data = data_of(example)
    del data["schema_version"]

    assert f"add `schema_version: {example.schema_name}`" in problems_of(type(example), data)


@each_document
def test_another_version_names_both(example: Document) -> None:
    """A file of a later release is refused, not half understood."""
    later = f"{example.schema_name.partition('/')[0]}/v9"
    message = problems_of(type(example), data_of(example) | {"schema_version": later})

    assert f"is {later!r}, this release reads {example.schema_name!r}" in message


@each_document
def test_another_kind_of_document_is_recognised(example: Document) -> None:
    """A plan given where tables are expected says so."""
    message = problems_of(type(example), data_of(example) | {"schema_version": "recipe/v1"})

    assert "is this another kind of document?" in message


@each_document
def test_truncated_json_names_line_and_column(example: Document) -> None:
    """A file cut off in the middle is recognised as such."""
    text = example.to_json()

    with pytest.raises(DocumentError, match=r"is not complete JSON: .* at line \d+, column \d+; .*cut off"):
        type(example).from_json(text[: len(text) // 2])


@pytest.mark.parametrize(
    ("data", "found"),
    [(None, "nothing"), ([], "a list"), ("tables", "a str"), (3, "a int")],
    ids=["nothing", "list", "text", "number"],
)
def test_what_is_no_mapping_is_refused(data: object, found: str) -> None:
    """The message says what kind of value is there instead."""
    assert f"found {found}; hint: " in problems_of(TableSet, data)


Place = tuple[int | str, ...]


def integers(data: object, place: Place = ()) -> Iterator[Place]:
    """Give the place of every integer in plain data, but for notes of any type."""
    if type(data) is int:
        yield place
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        if key != "training":
            yield from integers(value, (*place, key))


@each_document
def test_an_integer_of_more_than_64_bits_is_refused_by_name(example: Document) -> None:
    """Anyone who computes with it would overflow."""
    for place in integers(data_of(example)):
        data: Any = data_of(example)
        part = data
        for key in place[:-1]:
            part = part[key]
        part[place[-1]] = 2**63

        found = problems_of(type(example), data)
        refusals = ("input should be less than", "must be a whole number of 1 to")
        assert any(f"file.json: {field_path(place)}: {refusal}" in found for refusal in refusals)


def test_every_fault_is_named_with_its_path() -> None:
    """One reading shows all that is to be fixed, each with the field's path."""
    data = data_of(builders.table_set())
    data["tables"][1]["num_embeddings"] = "many"
    del data["tables"][3]["embedding_dim"]

    assert problems_of(TableSet, data) == (
        'file.json: tables[1].num_embeddings: input should be a valid integer, found "many"; '
        "tables[3].embedding_dim: is missing"
    )


def test_many_faults_are_counted_not_listed() -> None:
    """A thousand faults do not fill the terminal."""
    data = data_of(builders.table_set(*builders.tables(1000)))
    for table in data["tables"]:
        table["embedding_dim"] = 6

    assert problems_of(TableSet, data).endswith("; and 990 more; hint: pad the table to 8")


def test_a_long_value_is_shortened_in_the_message() -> None:
    """A megabyte of text in a number's place is not echoed."""
    data = data_of(builders.table_set())
    data["global_batch_size"] = "x" * 1_000_000

    assert len(problems_of(TableSet, data)) < 200


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "must hold a mapping"),
        ("tables: [", "is not valid YAML at line 2, column 1"),
        (VALID_YAML + "tables: []", "line 4, column 1: the key 'tables' occurs twice"),
        (VALID_YAML + "[1, 2]: 3", "is not valid YAML at line 4, column 1: found unhashable key"),
        (VALID_YAML + "1: 3", "1: is not a known key"),
        (VALID_YAML + "x: &x [*x]", "holds what JSON cannot say"),
        (VALID_YAML + "x: 2024-13-45", "cannot be read: month must be in 1..12"),
        (VALID_YAML + "x: !!python/object:os.system 1", "could not determine a constructor for the tag"),
        (VALID_YAML + "x: " + "9" * 5000, "cannot be read: Exceeds the limit"),
        (VALID_YAML + "\x07", "is not valid YAML"),
    ],
    ids=[
        "empty",
        "truncated",
        "repeated-key",
        "list-as-key",
        "number-as-key",
        "cycle",
        "impossible-date",
        "python-object",
        "endless-number",
        "control-character",
    ],
)
def test_broken_yaml_is_a_document_error(tmp_path: Path, text: str, problem: str) -> None:
    """Whatever a YAML file has, the message names the file and the place."""
    path = tmp_path / "tables.yaml"
    path.write_text(text, encoding="utf-8")

    with pytest.raises(DocumentError) as caught:
        TableSet.read(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not complete JSON: Expecting value at line 1, column 1"),
        ("{'a': 1}", "is not complete JSON"),
        ('{"a": 1, "a": 2}', "the key 'a' occurs twice in one mapping"),
        ("[" * 100_000, "cannot be read: maximum recursion depth exceeded"),
        ("9" * 5000, "cannot be read: Exceeds the limit"),
    ],
    ids=["empty", "single-quotes", "repeated-key", "deep", "endless-number"],
)
def test_broken_json_is_a_document_error(text: str, problem: str) -> None:
    """Whatever JSON text has, the reader raises one kind of error."""
    with pytest.raises(DocumentError) as caught:
        TableSet.from_json(text)

    assert problem in str(caught.value)


def test_a_lone_surrogate_is_a_document_error() -> None:
    """JSON can spell a character that no text can hold."""
    data = '{"schema_version": "table-set/v1", "name": "\\ud800", "tables": []}'

    with pytest.raises(DocumentError, match="hex escape"):
        TableSet.from_json(data)


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
def test_binary_garbage_is_a_document_error(tmp_path: Path, suffix: str) -> None:
    """A file that is not text says so, whatever its name."""
    path = tmp_path / f"tables{suffix}"
    path.write_bytes(bytes(range(256)))

    with pytest.raises(DocumentError, match="is not text in UTF-8"):
        TableSet.read(path)


def test_binary_json_is_a_document_error() -> None:
    """Bytes in another encoding are refused."""
    with pytest.raises(DocumentError, match="is not text in UTF-8"):
        TableSet.from_json(b"\xff\xfe{}")


def test_a_missing_file_is_a_document_error(tmp_path: Path) -> None:
    """The message names the path."""
    with pytest.raises(DocumentError, match=r"nowhere\.json: does not exist; hint: check the path"):
        TableSet.read(tmp_path / "nowhere.json")


def test_a_folder_is_a_document_error(tmp_path: Path) -> None:
    """The operating system's reason is passed on."""
    with pytest.raises(DocumentError, match="cannot be read: Is a directory"):
        TableSet.read(tmp_path)


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    """Some editors put one before every file."""
    path = tmp_path / "tables.json"
    path.write_text(builders.table_set().to_json(), encoding="utf-8-sig")

    assert TableSet.read(path) == builders.table_set()


def test_yaml_and_json_mean_the_same(tmp_path: Path) -> None:
    """A document may be written either way."""
    path = tmp_path / "tables.yaml"
    path.write_text(VALID_YAML, encoding="utf-8")

    tables = TableSet.read(path)

    assert TableSet.from_json(json.dumps(parse_data(VALID_YAML, where="text", is_json=False))) == tables
    assert tables.tables[0].num_embeddings == 10


def test_a_large_document_of_faults_alone_stops_at_the_first() -> None:
    """Listing a hundred thousand faults would take gigabytes; small documents list them all."""
    data = {"schema_version": "table-set/v1", "tables": [{}] * 100_000}

    with pytest.raises(DocumentError) as caught:
        TableSet.from_data(data)
    assert all(problem.startswith("tables[0]") for problem in caught.value.problems)


def test_a_large_valid_job_is_read() -> None:
    """Many feature names are not a fault, and a model may have a field called type."""
    tables = [
        {"name": name, "numEmbeddings": 10, "embeddingDim": 4, "featureNames": [f"{name}_{n}" for n in range(45)]}
        for name in (f"t{index}" for index in range(500))
    ]
    spec = {"model": {"embeddingTables": tables, "batchSizePerDevice": 8}, "data": {"numSamples": 100}}
    job = {"apiVersion": API_VERSION, "kind": "DLRMTrainingJob", "metadata": {"name": "large"}, "spec": spec}

    read = DLRMTrainingJob.from_data(job, where="job").spec.model.inline_tables("job")
    assert read is not None
    assert len(read.tables) == len(tables)


def test_a_mapping_of_too_many_keys_is_refused_before_it_is_checked() -> None:
    """Each unknown key would be a fault of its own."""
    with pytest.raises(DocumentError, match="a mapping has 10,001 keys; at most 10,000 are read"):
        parse_data(json.dumps(dict.fromkeys(map(str, range(10_001)))), where="it", is_json=True)


def test_aliases_that_expand_without_end_are_refused() -> None:
    """Nine lines of YAML can mean billions of values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]

    with pytest.raises(DocumentError, match="aliases expand to more than 5,000,000 values"):
        parse_data("\n".join(lines), where="it", is_json=False)


@pytest.mark.parametrize("text", ["[" * 500_000, "- " * 500_000, "? " * 500_000, "a: " + "{a: " * 500_000])
def test_yaml_that_nests_without_end_is_refused(text: str) -> None:
    """The C library composes it recursively: the process ended with a segmentation fault."""
    with pytest.raises(DocumentError, match="nests lists and mappings more than 100 deep"):
        parse_data(text, where="it", is_json=False)
    with pytest.raises(DocumentError, match="nests lists and mappings more than 100 deep"):
        parse_manifests(text, where="it")


def test_unknown_keys_of_a_newer_release_are_dropped_and_named() -> None:
    """At any depth, and the rest is read as it is."""
    data = data_of(builders.table_set())
    data["colour"] = "red"
    data["tables"][1]["weight"] = {"kilograms": 3}
    read, dropped = validated_without_unknown(TableSet, data, where="it")

    assert read == builders.table_set()
    assert sorted(dropped) == ["colour", "tables[1].weight"]


def test_other_faults_beside_unknown_keys_are_told() -> None:
    """Only what is unknown is passed over."""
    data = data_of(builders.table_set())
    data["colour"] = "red"
    data["tables"][1]["embedding_dim"] = "wide"

    with pytest.raises(DocumentError, match=r"tables\[1\].embedding_dim"):
        validated_without_unknown(TableSet, data, where="it")


def test_a_fault_of_the_whole_document_has_no_path() -> None:
    """A list where a mapping is expected is wrong as a whole: the message begins with what is wrong."""
    with pytest.raises(DocumentError, match=r"^request: input should be "):
        validated(Constraints, [1], where="request")


def test_a_missing_file_names_the_one_that_was_probably_meant(tmp_path: Path) -> None:
    """Of its folder, whatever the suffix."""
    (tmp_path / "shop.csv").write_text("")
    (tmp_path / "plan.json").write_text("")

    with pytest.raises(DocumentError, match=r"shop.cvs: does not exist; hint: did you mean .*shop\.csv"):
        Constraints.read(tmp_path / "shop.cvs")
    with pytest.raises(DocumentError, match=r"day.yaml: does not exist; hint: check the path"):
        Constraints.read(tmp_path / "day.yaml")


def test_csv_in_the_place_of_a_document_is_named(tmp_path: Path) -> None:
    """A text without structure would be called a str otherwise."""
    file = tmp_path / "shop.csv"
    file.write_text("name,num_embeddings\nuser,3\n")

    with pytest.raises(DocumentError, match=r"shop\.csv: is CSV, .* expected .*constraints/v1.*; hint: use `neurosh"):
        Constraints.read(file)


def test_several_documents_in_the_place_of_one_are_named(tmp_path: Path) -> None:
    """A job with its ConfigMap, as `neuroshard init` writes it, is not broken YAML."""
    file = tmp_path / "job.yaml"
    file.write_text("kind: DLRMTrainingJob\n---\nkind: ConfigMap\n")

    with pytest.raises(DocumentError) as caught:
        Constraints.read(file)

    use = "use `neuroshard plan` or `neuroshard run`"
    assert caught.value.problems == [f"holds DLRMTrainingJob, ConfigMap, expected one document; hint: {use}"]


def test_a_job_without_its_kind_is_not_a_document_without_its_version() -> None:
    """To add a version would lead to the next error."""
    with pytest.raises(DocumentError, match=r"is a DLRMTrainingJob, expected 'constraints/v1'; hint: use `neuroshard"):
        Constraints.from_data({"metadata": {"name": "shop"}, "spec": {}})


def test_each_kind_with_a_use_is_one() -> None:
    """The remedy for a document in the place of another is found by its schema_version."""
    assert set(USES) <= {document.schema_name.partition("/")[0] for document in DOCUMENTS}
