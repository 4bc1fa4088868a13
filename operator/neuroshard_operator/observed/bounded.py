"""Objects as the API server sends them, cut down on their bytes to what the operator reads, and within limits.

Anyone who may create an object in one namespace chooses its depth and its size, and the operator is one process for
all namespaces. So no parser gets an object before this. One that is too deep or too large keeps what names it, with the
problem: it is there, and it cannot be read.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Union

from neuroshard_api.documents.yaml_text import MAX_NESTING
from neuroshard_api.job.spec import GROUP
from neuroshard_api.job.training_job import KIND
from neuroshard_decisions import names

from neuroshard_operator.observed.json_text import ItemReader, depth_of, is_unicode, members

SPEC_BYTES = 1024 * 1024
"""Of a job's spec, and of its status. 512 tables, the maximum in a spec, have 600 KB with eight features of the longest
names."""
SPEC_VALUES, SPEC_CONTAINERS = 100_000, 20_000
"""Of the same: numbers, words, lists and mappings, and the latter two alone. Such tables have 6,000 and 1,000."""
OBJECT_BYTES = 256 * 1024
"""Of what is read of one object besides."""
_NAMING_BYTES = 16 * 1024
"""Of each field that names an object."""
UNREADABLE = "unreadable"
"""Key of the problem, in an object that cannot be read."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Of a mapping the keys that begin with one of these."""

    prefixes: tuple[str, ...]


class Filled:
    """Of a value whether anything is in it."""


class Text:
    """The text of a value as a string, to be parsed when it is needed."""


@dataclass(frozen=True, slots=True)
class Items:
    """Of a list the lists and mappings in it, each cut down to a shape."""

    shape: Mapping[str, "Shape"]


Shape = Union[Mapping[str, "Shape"], Keys, Items, type[Filled], type[Text], None]  # noqa: UP007 - it refers to itself
"""What is kept of a value; None: all of it."""

_LABELS = Keys((f"{GROUP}/", names.KUEUE_LABEL_PREFIX, names.MANAGED_BY_LABEL, names.POD_INDEX_LABEL))
_NAMING: Mapping[str, Shape] = dict.fromkeys(
    ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
)
_METADATA: Mapping[str, Shape] = {
    **_NAMING,
    "labels": _LABELS,
    "annotations": Keys((GROUP,)),
    "ownerReferences": None,
}
NAMED: Shape = {"metadata": _NAMING}
"""What names an object."""
NODE: Shape = {
    "metadata": {"name": None, "labels": None},
    "spec": {"taints": None, "unschedulable": None},
    "status": {"allocatable": None},
}
_JOB_SPEC: Mapping[str, Shape] = {
    **dict.fromkeys(("parallelism", "completions", "suspend", "activeDeadlineSeconds")),
    "template": {"metadata": {"labels": _LABELS}},
}
EVENT: Shape = dict.fromkeys(("lastTimestamp", "reason", "message"))
SHAPES: Mapping[str, Shape] = {
    KIND: {"metadata": _METADATA, "spec": Text, "status": Text},
    "Job": {
        "metadata": {**_METADATA, "annotations": Keys((names.LEAST_PODS_ANNOTATION,))},
        "spec": _JOB_SPEC,
        "status": dict.fromkeys(("active", "ready", "succeeded", "failed", "startTime", "conditions")),
    },
    names.JOB_SET: {
        "metadata": _METADATA,
        "spec": {
            "suspend": None,
            "replicatedJobs": Items(
                {"name": None, "template": {"metadata": {"labels": _LABELS}, "spec": _JOB_SPEC}},
            ),
        },
        "status": {"conditions": None},
    },
    "Pod": {
        "metadata": _METADATA,
        "spec": {"nodeName": None},
        "status": dict.fromkeys(
            ("phase", "reason", "message", "conditions", "initContainerStatuses", "containerStatuses")
        ),
    },
    "ConfigMap": {"metadata": _METADATA, "immutable": None, "data": Filled, "binaryData": Filled},
    "Service": {
        "metadata": _METADATA,
        "spec": dict.fromkeys(("clusterIP", "selector", "ports", "publishNotReadyAddresses")),
    },
    "ServiceAccount": {"metadata": _METADATA},
    "Role": {"metadata": _METADATA, "rules": None},
    "RoleBinding": {"metadata": _METADATA, "subjects": None, "roleRef": None},
}
"""What is read of the objects that watches bring, by kind."""


def bounded(kind: str, text: bytes) -> bytes | None:
    """Return the JSON of an object of a watched kind, cut down to what is read of it.

    Of one with a problem its names are left, and the problem. None: the text does not name an object.
    """
    shape = SHAPES[kind]
    assert isinstance(shape, Mapping), "every kind has fields"
    whole = members(text, _quoted(shape).__contains__)
    parts = {key: _cut(value, shape[_unquoted(key)]) for key, value in whole.items()}
    if not members(parts.get(b'"metadata"', b""), b'"uid"'.__eq__):
        return None
    problems = {key: problem for key, part in parts.items() if (problem := problem_of(_unquoted(key), part))}
    if problems:
        named = _named(whole.get(b'"metadata"', b""))
        if named is None:
            return None
        problem = next(iter(problems.values()))
        # What was recorded of a job before is kept: its workers may run.
        recorded = {key: part for key, part in parts.items() if key == b'"status"' and key not in problems}
        parts = {b'"metadata"': named, **recorded}
        return _mapping([*_texts(parts, shape), (f'"{UNREADABLE}"'.encode(), _string(problem.encode()))])
    return _mapping(_texts(parts, shape))


def cut(text: bytes, shape: Shape, *, where: str) -> bytes:
    """Return the JSON of an answer, cut down to a shape. Raises ValueError where that is too deep or not Unicode."""
    found = _cut(text, shape)
    problem = _depth_problem(where, found)
    if problem:
        raise ValueError(problem)
    return found


def problem_of(where: str, text: bytes) -> str:
    """Return the reason for which a part of an object is not read; empty: it is read."""
    limit = SPEC_BYTES if where in {"spec", "status"} else OBJECT_BYTES
    if len(text) > limit:
        return f"{where}: holds {len(text):,} bytes, more than the {limit:,} that are read"
    num_containers = text.count(b"{") + text.count(b"[")
    if num_containers > SPEC_CONTAINERS or num_containers + text.count(b",") > SPEC_VALUES:
        return f"{where}: holds more than {SPEC_VALUES:,} values, or {SPEC_CONTAINERS:,} lists"
    return _depth_problem(where, text)


def _depth_problem(where: str, text: bytes) -> str:
    if depth_of(text) > MAX_NESTING:
        return f"{where}: nests lists and mappings more than {MAX_NESTING} deep"
    return "" if is_unicode(text) else f"{where}: holds characters that are not Unicode"


def _texts(parts: Mapping[bytes, bytes], shape: Mapping[str, Shape]) -> Iterator[tuple[bytes, bytes]]:
    return ((key, _string(part) if shape[_unquoted(key)] is Text else part) for key, part in parts.items())


def _string(text: bytes) -> bytes:
    return json.dumps(text.decode()).encode()


def _cut(text: bytes, shape: Shape) -> bytes:
    if shape is Filled:
        return b"false" if text in {b"{}", b"null"} else b"true"
    if shape is Text or shape is None:
        return text
    if isinstance(shape, Items):
        return _cut_items(text, shape)
    if not text.startswith(b"{"):
        return text if len(text) <= _NAMING_BYTES else b"null"
    if isinstance(shape, Keys):
        prefixes = tuple(f'"{prefix}'.encode() for prefix in shape.prefixes)
        return _mapping(members(text, _begins_with(prefixes)).items())
    assert isinstance(shape, Mapping), "one of the kinds of shapes"
    found = members(text, _quoted(shape).__contains__)
    return _mapping((key, _cut(value, shape[_unquoted(key)])) for key, value in found.items())


def _cut_items(text: bytes, shape: Items) -> bytes:
    items = ItemReader().feed(b'{"":' + text) if text.startswith(b"[") else ()
    return b"[" + b",".join(_cut(item, shape.shape) for item in items) + b"]"


def _named(metadata: bytes) -> bytes | None:
    """Return the names of an object, and of the job that it belongs to. None: it has no uid."""
    wanted: Shape = {**_NAMING, "labels": _LABELS, "ownerReferences": None}
    found = members(_cut(metadata, wanted), lambda _: True)
    kept = {key: value for key, value in found.items() if len(value) <= _NAMING_BYTES and not problem_of("", value)}
    return _mapping(kept.items()) if b'"uid"' in kept else None


def _begins_with(prefixes: tuple[bytes, ...]) -> Callable[[bytes], bool]:
    return lambda key: key.startswith(prefixes)


def _quoted(shape: Mapping[str, Shape]) -> frozenset[bytes]:
    return frozenset(f'"{key}"'.encode() for key in shape)


def _unquoted(key: bytes) -> str:
    return key[1:-1].decode()


def _mapping(parts: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"{" + b",".join(key + b":" + value for key, value in parts) + b"}"
