"""ConfigMaps that anybody may write: what they cost the operator, whatever is in them."""

import gzip
import json
import pickle
import subprocess
import sys
import time
from base64 import b64encode
from typing import Any

import pytest
from neuroshard_api.job.plan_request import tables_of_file
from neuroshard_decisions import names
from neuroshard_decisions.observed.limits import TABLES, bounded_file
from neuroshard_decisions.observed.results import Unreadable
from neuroshard_operator.observed import parsing
from support.operator.operator_process import JOB, Story

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
    ("plan", "plan.json", b'{"schema_version": "plan/v3", "tables": [', b"]}"),
    ("planner", "plan.json", b'{"schema_version": "plan/v3", "tables": [', b"]}"),
    ("profiler", "manifest.json", b'{"schema_version": "bundle/v1", "networks": [', b"]}"),
    ("worker", "progress.json", b"[" * 1000 + b"[", b"]" * 1001),
]


@pytest.mark.parametrize(("role", "file", "opening", "ending"), BOMBS)
@pytest.mark.parametrize("mebibytes", [0.125, 12])
def test_a_bomb_costs_little_time(role: str, file: str, opening: bytes, ending: bytes, mebibytes: float) -> None:
    """A kilobyte of gzip used to take seconds and gigabytes: each faulty entry was kept as an error."""
    body = bomb(role, file, opening, int(mebibytes * MEBIBYTE), ending)
    began_s = time.process_time()
    document = parsing.config_map_with_data(body).document
    took_s = time.process_time() - began_s

    assert isinstance(document, Unreadable)
    assert took_s < 1.0
    assert len(document.problem) < 4096


MEBIBYTES = 12
DOCUMENT = b"schema_version: table-set/v1\nname: t\ntables: "
INPUTS = [
    ("tables.json", b'{"schema_version": "table-set/v1", "tables": [' + b"{}," * 300_000 + b"{}]}"),
    ("tables.json.gz", gzip.compress(b"[" + b"{}," * (MEBIBYTES * MEBIBYTE // 3) + b"{}]")),
    ("tables.yaml", DOCUMENT + b"[" + b"{}," * 300_000 + b"{}]"),
    ("tables.yaml.gz", gzip.compress(DOCUMENT + b"[" + b"{}," * (MEBIBYTES * MEBIBYTE // 3) + b"{}]")),
    ("nested.yaml", DOCUMENT + b"[" * 500_000),
    ("nested-blocks.yaml", b"- " * 500_000),
    ("nested-keys.yaml", b"? " * 500_000),
    ("nested.json", b"[" * 1_000_000),
    ("table.csv", b"name,num_embeddings,embedding_dim\n" + b",,\n" * 300_000),
]
GROWS_AT_MOST_MIB = 64


READER = """
import os, pickle, resource, sys
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.job.plan_request import tables_of_file
from neuroshard_decisions.observed.limits import TABLES, bounded_file

def used_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

for key, content in pickle.load(sys.stdin.buffer):
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        print("end", key, os.waitstatus_to_exitcode(status), flush=True)
        continue
    before = used_mib()
    try:
        name, file = bounded_file(key, content, TABLES, where="it")
        tables_of_file(name, file, where="it")
    except DocumentError as error:
        print("grown", used_mib() - before, str(error).splitlines()[0][:200], flush=True)
    os._exit(0)
"""
"""Reads each input in a child, whose memory is its own and which an overflow of the stack ends alone."""


def test_a_bomb_of_a_user_costs_little_memory_and_ends_in_a_sentence() -> None:
    """Half a megabyte of nested YAML overflowed the C library's stack, and with it went the operator of all tenants."""
    ended = subprocess.run([sys.executable, "-c", READER], input=pickle.dumps(INPUTS), capture_output=True, check=True)
    lines = [line.split(" ", maxsplit=2) for line in ended.stdout.decode().splitlines()]

    assert [tuple(rest) for kind, *rest in lines if kind == "end"] == [(key, "0") for key, _ in INPUTS]
    grown = [(int(mib), problem) for kind, mib, problem in lines if kind == "grown"]
    assert len(grown) == len(INPUTS)
    for (key, _), (grown_mib, problem) in zip(INPUTS, grown, strict=True):
        assert grown_mib <= GROWS_AT_MOST_MIB, key
        assert problem.startswith("it: "), key


@pytest.mark.parametrize("suffix", ["json", pytest.param("yaml", marks=pytest.mark.long)])
def test_the_tables_of_the_largest_models_are_read(suffix: str) -> None:
    """Ten thousand tables of all fields."""
    table = {"num_embeddings": 1000, "embedding_dim": 16, "pooling_factor": 2.0, "data_type": "FP16"}
    tables = [{"name": f"t{n}", **table, "feature_names": [f"f{n}", f"g{n}"]} for n in range(10_000)]
    text = json.dumps({"schema_version": "table-set/v1", "name": "large", "tables": tables})  # which is YAML too
    name, content = bounded_file(f"tables.{suffix}.gz", gzip.compress(text.encode()), TABLES, where="it")

    assert len(tables_of_file(name, content, where="it").tables) == 10_000


def test_tables_in_a_file_of_one_machine_are_refused_by_name() -> None:
    """Where a definition of another release let the job in."""
    story = Story(model={"embeddingTablesFrom": {"file": "tables.json"}, "batchSizePerDevice": 8})

    assert story.status["reason"] == "InvalidInput"
    assert "kubectl create configmap" in story.status["message"]


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ({"model": {"embeddingTablesFrom": {"configMapKeyRef": {"name": "mine", "key": "t.yaml"}}}}, "t.yaml"),
        ({"planRef": {"name": "mine", "key": "plan"}}, "plan"),
        ({"profiler": {"policy": "Never", "costModelRef": {"configMapName": "mine"}}}, "manifest.json"),
    ],
    ids=["tables", "plan", "cost models"],
)
def test_a_job_whose_own_input_is_a_bomb_fails(spec: dict[str, Any], key: str) -> None:
    """Before anything is parsed; the message names the ConfigMap."""
    story = Story(
        **{"suspend": True, **spec, **({"model": spec["model"] | {"batchSizePerDevice": 8}} if "model" in spec else {})}
    )
    content = b"[" * 500_000 if key == "t.yaml" else b"[" + b"{}," * 300_000 + b"{}]"
    story.world.put({"kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {key: content.decode()}})
    story.world.change_spec(JOB, suspend=False)
    began_s = time.process_time()
    story.settle()

    assert story.status["stage"] == "Failed"
    assert "mine" in story.status["message"]
    assert time.process_time() - began_s < 2.0


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
