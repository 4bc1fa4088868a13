"""JSON schemas and the reference of file formats: both follow the models."""

import importlib
import json
import pkgutil
import re
from functools import cache
from pathlib import Path

import neuroshard_api
import pytest
import yaml
from jsonschema import Draft202012Validator
from neuroshard_api import schemas
from neuroshard_api.documents.document import Document, parse_data
from neuroshard_api.documents.run_document import RunDocument
from neuroshard_api.documents.table_files import parse_csv
from neuroshard_api.schemas import DOCUMENTS, schema_file_name, schema_text

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
text_of = cache(schema_text)
each_kind = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.schema_name)


def examples(language: str) -> list[str]:
    """Return the fenced blocks of one language in the reference of file formats."""
    text = (REFERENCE / "file-formats.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


@cache
def example_data() -> list[dict[str, object]]:
    """Return every example document of the reference as plain data."""
    texts = [(text, False) for text in examples("yaml")] + [(text, True) for text in examples("json")]
    texts += [(line, True) for block in examples("jsonl") for line in block.splitlines()]
    data = [parse_data(text, where=text[:60], is_json=is_json) for text, is_json in texts]
    return [entry for entry in data if isinstance(entry, dict)]


def test_every_document_has_a_schema() -> None:
    """A new document is added to the list."""
    for module in pkgutil.walk_packages(neuroshard_api.__path__, "neuroshard_api."):
        importlib.import_module(module.name)

    own = {
        document
        for base in (Document, RunDocument)
        for document in base.__subclasses__()
        if document.__module__.startswith("neuroshard_api.")
    }
    assert own - {RunDocument} == set(DOCUMENTS)


@each_kind
def test_the_committed_schema_is_current(document: type[Document]) -> None:
    """After a change of a model: make schemas."""
    committed = REFERENCE / "schemas" / schema_file_name(document)

    assert committed.read_text(encoding="utf-8") == text_of(document)


@each_kind
def test_a_schema_is_valid_json_schema(document: type[Document]) -> None:
    """Editors can use it."""
    Draft202012Validator.check_schema(json.loads(text_of(document)))


def test_no_schema_is_left_over() -> None:
    """A removed document takes its schema with it."""
    assert {path.name for path in (REFERENCE / "schemas").iterdir()} == set(map(schema_file_name, DOCUMENTS))


def test_the_command_writes_all_schemas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file set is complete in one run."""
    monkeypatch.setattr(schemas, "schema_text", text_of)
    schemas.write_schemas(tmp_path / "new")

    assert len(list((tmp_path / "new").iterdir())) == len(DOCUMENTS)


@each_kind
def test_the_reference_shows_a_valid_example(document: type[Document]) -> None:
    """Examples of the documentation can be copied; the model and the JSON schema both accept it."""
    shown = [
        data for data in example_data() if isinstance(data, dict) and data.get("schema_version") == document.schema_name
    ]

    assert shown
    for data in shown:
        document.from_data(data)
        Draft202012Validator(json.loads(text_of(document))).validate(data)


def test_the_reference_shows_a_valid_csv() -> None:
    """The CSV example is a table set, too."""
    (text,) = examples("csv")

    assert len(parse_csv(text, where="file-formats.md", name="example").tables) > 1


def test_the_schema_refuses_a_missing_version() -> None:
    """As the reader does."""
    (table_set, *_) = (data for data in map(yaml.safe_load, examples("yaml")) if "tables" in data)
    del table_set["schema_version"]

    assert not Draft202012Validator(json.loads(schema_text(DOCUMENTS[0]))).is_valid(table_set)
