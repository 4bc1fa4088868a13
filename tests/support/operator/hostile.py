"""Objects as somebody may write them who wishes the operator ill: deep, wide, huge, of wrong types, of odd times."""

import json
from collections.abc import Iterator
from typing import Any

from neuroshard_api.job.training_job import KIND
from neuroshard_decisions import names
from support import builders

HERE = "@here@"
"""Stands for the fragment in an object."""
FRAGMENTS: dict[str, bytes] = {
    "nested 700 levels": b'{"a":' * 700 + b"{}" + b"}" * 700,
    "nested 100,000 levels": b"[" * 100_000 + b"]" * 100_000,
    "wide": b"[" + b"{}," * 400_000 + b"{}]",
    "100,000 keys": b"{" + b",".join(b'"k%06d":"0"' % number for number in range(100_000)) + b"}",
    "a huge string": b'"' + b"a" * 1_200_000 + b'"',
    "escapes": b'"' + rb"\\\"" * 300_000 + b'"',
    "a number": b"7",
    "a huge number": b"9" * 4000,
    "a string": b'"x"',
    "a list": b"[1]",
    "a mapping": b'{"x": 1}',
    "null": b"null",
    "a boolean": b"true",
    "half a character": rb'"\ud800"',
    "no UTF-8": b'"\xff\xfe"',
    "a control character": rb'"\u0000\u001b[2J"',
    "the year 0": b'"0000-01-01T00:00:00Z"',
    "the year 9999": b'"9999-12-31T23:59:59Z"',
    "a key twice": b'{"x": 1, "x": [2]}',
}
TIMES = {"type": "Ready", "status": "True", "lastTransitionTime": HERE}
PLACES: dict[str, tuple[dict[str, Any], ...]] = {
    KIND: (
        {"spec": {"podTemplate": {"spec": {"x": HERE}}}},
        {"spec": {"trainer": {"env": [{"name": "a", "valueFrom": HERE}]}}},
        {"spec": HERE},
        {"status": HERE},
        {"status": {"conditions": HERE}},
        {"status": {"startTime": HERE, "restarts": HERE}},
    ),
    "Pod": (
        {"spec": {"nodeName": HERE}},
        {"status": HERE},
        {"status": {"phase": HERE, "conditions": [TIMES]}},
        {"status": {"conditions": HERE}},
        {"status": {"containerStatuses": [{"name": "trainer", "state": {"terminated": HERE}}]}},
        {
            "status": {
                "containerStatuses": [{"name": "x", "state": {"terminated": {"exitCode": 1, "finishedAt": HERE}}}]
            }
        },
    ),
    "Job": (
        {"spec": {"parallelism": HERE}},
        {"spec": {"template": HERE}},
        {"status": {"ready": HERE}},
        {"status": {"conditions": [{**TIMES, "type": "Failed"}]}},
    ),
    names.JOB_SET: (
        {"spec": HERE},
        {"spec": {"suspend": HERE, "replicatedJobs": []}},
        {"spec": {"replicatedJobs": HERE}},
        {"spec": {"replicatedJobs": [HERE, {"name": HERE, "template": HERE}]}},
        {"status": {"conditions": HERE}},
    ),
    "ConfigMap": ({"data": HERE}, {"binaryData": {"plan.json": HERE}}, {"immutable": HERE}),
    "Service": ({"spec": {"ports": HERE}}, {"spec": {"selector": HERE}}),
    "ServiceAccount": ({"secrets": HERE},),
    "Role": ({"rules": HERE}, {"rules": [{"verbs": HERE}]}),
    "RoleBinding": ({"subjects": HERE}, {"roleRef": HERE}),
}
OF_ALL: tuple[dict[str, Any], ...] = (
    {"metadata": {"labels": HERE}},
    {"metadata": {"annotations": HERE}},
    {"metadata": {"ownerReferences": HERE}},
    {"metadata": {"managedFields": HERE}},
    {"metadata": {"finalizers": HERE}},
    {"metadata": {"deletionTimestamp": HERE}},
    {"metadata": {"creationTimestamp": HERE}},
    {"metadata": {"generation": HERE}},
)


def hostile_object(kind: str, place: dict[str, Any], fragment: str, *, name: str, job: str) -> bytes:
    """Return the JSON of an object of a kind that says it belongs to a job, with a fragment at a place."""
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.JOB_LABEL: job, names.ROLE_LABEL: names.WORKER}
    metadata = {"name": name, "namespace": "training", "uid": f"uid-{name}", "resourceVersion": "7", "labels": labels}
    base = builders.job_data(name) if kind == KIND else {"kind": kind}
    return with_fragment({**base, "metadata": metadata}, place, fragment)


def with_fragment(body: dict[str, Any], place: dict[str, Any], fragment: str) -> bytes:
    """Return the JSON of an object with a fragment at a place."""
    return json.dumps(_over(body, place)).encode().replace(f'"{HERE}"'.encode(), FRAGMENTS[fragment])


def places(kind: str) -> Iterator[dict[str, Any]]:
    """Return the places of a kind."""
    yield from (*OF_ALL, *PLACES[kind])


def _over(base: Any, over: Any) -> Any:
    if not isinstance(over, dict) or not isinstance(base, dict):
        return over
    return {**base, **{key: _over(base.get(key), value) for key, value in over.items()}}
