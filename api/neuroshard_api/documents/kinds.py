"""Kinds of documents in the words of people: for the error about a file of another kind than the one expected."""

from collections.abc import Mapping
from typing import Any

_USES = {
    "bundle": "give its folder by --bundle",
    "constraints": "give it by --constraints",
    "dense-profile": "give it by --dense",
    "input-statistics": "give it by --statistics",
    "plan": "use `neuroshard explain`, `report`, `export`, or `plan`",
    "plan-request": "use `neuroshard plan`",
    "step-report": "use `neuroshard calibrate`",
    "table-set": "use `neuroshard plan`, or name it in spec.model.embeddingTablesFrom of a job",
    "topology": "give it by --devices",
    "torchrec-plan": "use `neuroshard score`",
}
"""What to do with a document, by the kind in its schema_version."""
_JOB_USE = "use `neuroshard plan` or `neuroshard run`"
_JOB = "DLRMTrainingJob"
_UNKNOWN_USE = "is this another kind of document?"


def use_of(version: object) -> str:
    """Return the remedy for a document of this schema_version where another kind is expected."""
    return _USES.get(str(version).partition("/")[0], _UNKNOWN_USE)


def problem_of_text(raw: object, *, where: str, expected: str) -> str:
    """Return the sentence about data that is not a mapping in the place of a document.

    Args:
        raw: the data.
        where: path of the file, whose name tells a table set in CSV.
        expected: the kind that is needed, in words.
    """
    if where.lower().removesuffix(".gz").endswith(".csv"):
        return f"is CSV, which a table set may be, expected {expected}; hint: {_USES['table-set']}"
    found = "nothing" if raw is None else f"a {type(raw).__name__}"
    return f"must hold {expected}, found {found}; hint: {_UNKNOWN_USE}"


def problem_of_resource(raw: Mapping[str, Any], *, expected: str) -> str | None:
    """Return the sentence about a resource of Kubernetes in the place of a document. None: it is none."""
    if "schema_version" in raw or not {"apiVersion", "kind"} <= raw.keys():
        return None
    kind = raw["kind"]
    return f"is a {kind}, expected {expected!r}; hint: {_JOB_USE if kind == _JOB else _UNKNOWN_USE}"


def problem_of_document(raw: Mapping[str, Any]) -> str | None:
    """Return the sentence about a document in the place of a job. None: it is none."""
    version = raw.get("schema_version")
    if version is None or "apiVersion" in raw:
        return None
    return f"is a document {version!r}, expected a {_JOB}; hint: {use_of(version)}"
