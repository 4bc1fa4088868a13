"""What tenants of a cluster do to the operator: hostile objects in their namespaces, and namespaces that go away."""

import base64
import contextlib
import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import jobs
from e2e.operator_release import Release, process_of
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from prometheus_client.parser import text_string_to_metric_families

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.usefixtures("operator")]

MEMORY_LIMIT_KIB = 256 * 1024
WAIT_LIMIT_S = 2.0
PASSES = "neuroshard_queue_wait_seconds"
"""Histogram of the time from a job's wake-up to its pass."""
TURNS = "neuroshard_loop_turn_seconds"
"""Histogram of the operator's processor time between two turns of its event loop."""
BOMB = gzip.compress(b"[" + b"{}," * 4_000_000 + b"{}]")
"""A JSON list of 12 MiB, decompressed."""
NOISE = os.urandom(700 * 1024)
"""Nearly what a ConfigMap may hold, in base64."""
DEEP, DEEPER = ('{"a":' * levels + "{}" + "}" * levels for levels in (700, 1500))
WIDE = "[" + "{}," * 350_000 + "{}]"
FILES = {"profiler": "hardware.json.gz", "planner": "plan.json.gz", "worker": "step-report.json.gz"}


@contextlib.contextmanager
def foreign(cluster: Cluster, name: str) -> Iterator[Namespace]:
    """Make another namespace, where no job runs."""
    labels = {"neuroshard.dev/test": "true"}
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    try:
        yield Namespace(name=name, kubectl=cluster.kubectl.in_namespace(name), artifacts=Path())
    finally:
        cluster.kubectl.delete("namespace", name, "--wait=false")


def result_like(name: str, job: str, role: str, content: bytes) -> Object:
    """Return a ConfigMap with the labels and the file of a stage's result."""
    labels = {"app.kubernetes.io/managed-by": "dlrm-operator", jobs.JOB_LABEL: job, jobs.ROLE_LABEL: role}
    metadata = {"name": name, "labels": labels}
    data = {FILES[role]: base64.b64encode(content).decode()}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "binaryData": data}


def hostile_job(name: str, value: str) -> str:
    """Return the JSON of a job that takes no devices, with a value in the open part of its pod template."""
    job = jobs.script_job(name, "true", suspend=True, podTemplate={"spec": {"x": "HERE"}})
    return json.dumps(job).replace('"HERE"', value)


def peak_kib_of(pod: Object) -> int:
    """Return the most memory that the operator in a pod ever had resident."""
    status = (Path("/proc") / str(process_of(pod)) / "status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def seconds_of(release: Release, pod: Object, histogram: str) -> tuple[float, float]:
    """Return the number of values of a histogram of the operator in a pod, and of those above the limit."""
    page = release.metrics(pod["metadata"]["name"])
    [family] = [each for each in text_string_to_metric_families(page) if each.name == histogram]
    counts = {sample.labels["le"]: sample.value for sample in family.samples if sample.name.endswith("_bucket")}
    in_time = next(count for bound, count in counts.items() if float(bound) == WAIT_LIMIT_S)
    return counts["+Inf"], counts["+Inf"] - in_time


def test_no_tenant_stops_the_operator(release: Release, cluster: Cluster, namespace: Namespace) -> None:
    """Jobs nested deep and of a megabyte, results that are bombs or noise, and tables that nest without end.

    The operator keeps below 256 MiB, is not restarted, serves the other jobs, also after a start, and no turn of its
    event loop takes 2 s of processor time. The wall time until a pass begins depends on who else needs the cores, so it
    is not judged. The second job's log shipper outlives its trainer, and hides its end from nobody.
    """
    kubectl, before = namespace.kubectl, release.restarts()
    [operator] = release.pods()
    passes, _ = seconds_of(release, operator, PASSES)
    _, long = seconds_of(release, operator, TURNS)
    tables = {"tables.yaml": "tables: " + "[" * 500_000}
    model = {"embeddingTablesFrom": {"configMapKeyRef": {"name": "tables", "key": "tables.yaml"}}}
    with foreign(cluster, f"{namespace.name}-other") as other:
        hostile = {"deep": DEEP, "deeper": DEEPER, **{f"wide-{number}": WIDE for number in range(6)}}
        for name, value in hostile.items():
            other.kubectl("create", "--filename=-", stdin=hostile_job(name, value))
        kubectl.apply(jobs.script_job("first", "sleep 5"))
        for number in range(4):
            other.kubectl.create(
                *(result_like(f"bomb-{number}-{role}", "first", role, BOMB) for role in FILES),
                result_like(f"noise-{number}", "first", "worker", NOISE),
            )
        kubectl.create(
            result_like("nested-report", "nested", "worker", BOMB),
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tables"}, "data": tables},
        )
        kubectl.apply(
            jobs.script_job("nested", "true", model={**model, "batchSizePerDevice": 256}),
            jobs.script_job("second", "true", podTemplate={"spec": {"containers": [jobs.LOG_SHIPPER]}}),
        )
        seen = jobs.wait_for_stage(kubectl, "nested", "Failed")
        # Their JSON is as hard to read here as for the operator.
        reasons = ("get", jobs.KIND, *hostile, "--output=jsonpath={.items[*].status.reason}")
        refused = eventually(
            "every hostile job has failed",
            lambda: other.kubectl(*reasons).split(),
            accept=lambda found: len(found) == len(hostile),
        )
        ended = [jobs.wait_for_stage(kubectl, name, "Succeeded") for name in ("first", "second")]
        passes_after, _ = seconds_of(release, operator, PASSES)
        _, long_after = seconds_of(release, operator, TURNS)
        peak_kib = peak_kib_of(operator)
        assert release.restarts() == before
        release.kill()
        kubectl.apply(jobs.script_job("third", "true"))
        jobs.wait_for_stage(kubectl, "third", "Succeeded")
        peak_kib = max(peak_kib, peak_kib_of(release.leader()))

    assert set(refused) == {"InvalidSpec"}
    assert "log-shipper" in ended[1]["message"]
    assert seen["reason"] == "InvalidInput"
    assert "more than 100 deep" in seen["message"]
    assert peak_kib < MEMORY_LIMIT_KIB
    assert long_after == long
    assert passes_after > passes


def test_the_other_jobs_go_on_when_a_watched_namespace_is_deleted(
    release: Release, cluster: Cluster, namespace: Namespace
) -> None:
    """The operator's rights in it go with it; jobs that run, and those that are applied later, come to their end."""
    with foreign(cluster, f"{namespace.name}-other") as other:
        release.install(watchNamespaces=[namespace.name, other.name])
        try:
            other.kubectl.apply(jobs.script_job("gone", "sleep 900"))
            namespace.kubectl.apply(jobs.script_job("runs", jobs.HELD))
            jobs.wait_for_stage(other.kubectl, "gone", "Running")
            jobs.wait_for_stage(namespace.kubectl, "runs", "Running")
            other.kubectl.delete("jobs", "--all", "--wait=false")
            cluster.kubectl.delete("namespace", other.name)
            jobs.finish(namespace.kubectl, "runs")
            first = jobs.wait_for_stage(namespace.kubectl, "runs", "Succeeded")
            namespace.kubectl.apply(jobs.script_job("later", "true"))
            jobs.wait_for_stage(namespace.kubectl, "later", "Succeeded")

            def is_ready() -> bool:
                found = [each for pod in release.pods() for each in pod["status"].get("containerStatuses", [])]
                return bool(found) and all(each["ready"] for each in found)

            eventually("the operator is ready", is_ready)
            restarts = release.restarts()
        finally:
            release.install()

    assert first.get("restarts", 0) == 0
    assert sum(restarts.values()) <= 1  # it starts again without the namespace, and not each time it lists
