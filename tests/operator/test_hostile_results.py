"""ConfigMaps that anybody may write: what they cost the operator, whatever is in them."""

import gzip
import time
from base64 import b64encode
from typing import Any

import pytest
from neuroshard_operator import names
from neuroshard_operator.observed import parsing
from neuroshard_operator.observed.results import Unreadable
from operator_process import JOB, Story

MEBIBYTE = 1024 * 1024


def bomb(role: str, file: str, opening: bytes, size_bytes: int, ending: bytes) -> dict[str, Any]:
    """Return a ConfigMap of a kilobyte or so that decompresses into empty mappings."""
    content = opening + b"{}," * (size_bytes // 3) + b"{}" + ending
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.ROLE_LABEL: role, names.JOB_LABEL: JOB}
    return {
        "kind": "ConfigMap",
        "metadata": {"name": "bomb", "namespace": "training", "uid": "u", "labels": labels},
        "binaryData": {f"{file}.gz": b64encode(gzip.compress(content)).decode()},
    }


BOMBS = [
    ("worker", "step-report.json", b'{"schema_version": "step-report/v1", "ranks": [', b"]}"),
    ("plan", "plan.json", b'{"schema_version": "plan/v1", "tables": [', b"]}"),
    ("planner", "plan.json", b'{"schema_version": "plan/v1", "tables": [', b"]}"),
    ("profiler", "manifest.json", b'{"schema_version": "bundle/v1", "networks": [', b"]}"),
    ("worker", "progress.json", b"[" * 1000 + b"[", b"]" * 1001),
]


@pytest.mark.parametrize(("role", "file", "opening", "ending"), BOMBS)
@pytest.mark.parametrize("mebibytes", [0.125, 1, 12])
def test_a_bomb_costs_little_time(role: str, file: str, opening: bytes, ending: bytes, mebibytes: float) -> None:
    """A kilobyte of gzip used to take seconds and gigabytes: each faulty entry was kept as an error."""
    body = bomb(role, file, opening, int(mebibytes * MEBIBYTE), ending)
    began_s = time.process_time()
    document = parsing.config_map_with_data(body).document
    took_s = time.process_time() - began_s

    assert isinstance(document, Unreadable)
    assert took_s < 1.0
    assert len(document.problem) < 4096


def test_the_watch_reads_no_contents() -> None:
    """Whatever a ConfigMap with our label holds, its watch event costs nothing and keeps nothing of it."""
    body = bomb("worker", "step-report.json", b"[", 12 * MEBIBYTE, b"]")
    seen = parsing.config_map(body)

    assert not seen.is_read
    assert seen.document is None


def test_a_foreign_config_map_is_never_read() -> None:
    """Only results of the job's own pods are asked of the API server; labels alone make nothing ours."""
    story = Story().running()
    asked: list[str] = []
    original = story.world.get

    async def get(kind: str, namespace: str, name: str) -> dict[str, Any]:
        asked.append(name)
        return await original(kind, namespace, name)

    story.world.get = get  # type: ignore[method-assign]
    story.world.put(bomb("worker", "step-report.json", b"[", 1000, b"]"))
    story.world.put({**bomb("plan", "plan.json", b"[", 1000, b"]"), "metadata": _foreign("plan")})
    story.settle()

    assert not {"bomb", "foreign-plan"} & set(asked)
    assert story.seen == ("Running", "AllWorkersReady")


def _foreign(role: str) -> dict[str, Any]:
    labels = {names.MANAGED_BY_LABEL: names.MANAGED_BY, names.ROLE_LABEL: role, names.JOB_LABEL: JOB}
    owner = {"kind": "DLRMTrainingJob", "name": JOB, "uid": "another", "controller": True}
    return {"name": f"foreign-{role}", "labels": labels, "ownerReferences": [owner]}
