"""Kinds of documents in the words of people: for the error about a file of another kind than the one expected."""

from collections.abc import Mapping, Sequence
from typing import Any

USES = {
    "bundle-manifest": "give its folder by --bundle",
    "constraints": "give it by --constraints",
    "dense-profile": "give it by --dense",
    "dense-profiles": "give it by --dense",
    "input-statistics": "give it by --statistics",
    "plan": "use `neuroshard explain`, `report`, `export`, or `plan`",
    "plan-request": "use `neuroshard plan`",
    "step-report": "use `neuroshard calibrate`",
    "table-set": "use `neuroshard plan`, or name it in spec.model.embeddingTablesFrom of a job",
    "topology": "give it by --devices",
    "torchrec-sharding-plan": "use `neuroshard score`",
}
"""What to do with a document, by the kind in its schema_version."""
_JOB_USE = "use `neuroshard plan` or `neuroshard run`"
_JOB = "DLRMTrainingJob"
_RESOURCE_USES = {
    _JOB: _JOB_USE,
    "ConfigMap": "give the file of the job that names it",
    "List": "write one of its items, as `kubectl get dlrmjob NAME -o yaml` does",
}
_OF_RESOURCES = frozenset({"apiVersion", "kind", "spec"})
"""Keys of resources of Kubernetes, which no document has."""
_UNKNOWN_USE = "is this another kind of document?"


def use_of(version: object) -> str:
    """Return the remedy for a document of this schema_version where another kind is expected."""
    return USES.get(str(version).partition("/")[0], _UNKNOWN_USE)


def problem_of_text(raw: object, *, where: str, expected: str) -> str:
    """Return the sentence about data that is not a mapping in the place of a document.

    Args:
        raw: the data.
        where: path of the file, whose name tells a table set in CSV.
        expected: the kind that is needed, in words.
    """
    if where.lower().removesuffix(".gz").endswith(".csv"):
        return f"is CSV, which a table set may be, expected {expected}; hint: {USES['table-set']}"
    found = "nothing" if raw is None else f"a {type(raw).__name__}"
    return f"must hold {expected}, found {found}; hint: {_UNKNOWN_USE}"


def is_resource(raw: object) -> bool:
    """Return whether data is a resource of Kubernetes, or a part of one."""
    return isinstance(raw, Mapping) and "schema_version" not in raw and not _OF_RESOURCES.isdisjoint(raw)


def problem_of_resource(raw: Mapping[str, Any], *, expected: str) -> str | None:
    """Return the sentence about a resource of Kubernetes in the place of a document. None: it is none."""
    if not is_resource(raw):
        return None
    kind = raw.get("kind", _JOB)
    return f"is a {kind}, expected {expected}; hint: {_RESOURCE_USES.get(str(kind), _UNKNOWN_USE)}"


def problem_of_several(documents: Sequence[object]) -> str:
    """Return the sentence about several documents in the place of one."""
    kinds = kinds_of(documents)
    use = _JOB_USE if _JOB in kinds else "leave one"
    return f"holds {', '.join(kinds)}, expected one document; hint: {use}"


def kinds_of(documents: Sequence[object]) -> list[str]:
    """Return the kind of each document, as it says it."""
    named = [each if isinstance(each, Mapping) else {} for each in documents]
    return [str(each.get("kind") or each.get("schema_version") or "a document without a kind") for each in named]


def problem_of_document(raw: Mapping[str, Any]) -> str | None:
    """Return the sentence about a document in the place of a job. None: it is none."""
    version = raw.get("schema_version")
    if version is None or "apiVersion" in raw:
        return None
    return f"is a document {version!r}, expected a {_JOB}; hint: {use_of(version)}"
