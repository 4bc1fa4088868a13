"""Measures the ground of an operator: many simulated nodes and many plain Jobs, and no operator.

`python -m neuroshard_cluster.scale` prints a Markdown report about a running local cluster. All nodes and pods are
kwok's: only the API server, etcd, the scheduler and the controllers do real work.
"""

import argparse
import itertools
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from neuroshard_cluster import addons, gpus
from neuroshard_cluster.folders import default_home
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.local import LocalCluster
from neuroshard_cluster.waiting import eventually
from neuroshard_cluster.workloads import job, pod_spec

CREATORS = 4  # one kubectl sends at most 50 requests a second
NAMESPACE = "scale"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"  # all in one request: kubectl would delete one after another
WITHIN_S = 900
VERBS = ("POST", "PUT", "PATCH", "GET", "LIST")
BUCKET = re.compile(r'apiserver_request_duration_seconds_bucket\{.*?verb="([A-Z]+)".*?le="([^"]+)"\} (\S+)')
ON_KWOK: Mapping[str, Any] = {
    "nodeSelector": {"type": "kwok"},
    "tolerations": [{"key": addons.KWOK_TAINT["key"], "operator": "Exists", "effect": "NoSchedule"}],
}

Buckets = dict[tuple[str, float], float]  # (verb, upper bound in seconds) -> requests


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """One round of Jobs."""

    created_s: float
    completed_s: float
    latencies: str


def buckets(kubectl: Kubectl) -> Buckets:
    """Return the API server's own histogram of request durations, summed over resources."""
    sums: Buckets = {}
    for verb, bound, count in BUCKET.findall(kubectl("get", "--raw=/metrics")):
        key = (verb, float(bound))
        sums[key] = sums.get(key, 0.0) + float(count)
    return sums


def quantile_s(before: Buckets, after: Buckets, verb: str, share: float) -> tuple[float, float]:
    """Return the number of requests between two looks and the bucket bound that `share` of them stayed below."""
    counts = {bound: count - before.get((name, bound), 0.0) for (name, bound), count in after.items() if name == verb}
    total = counts.get(float("inf"), 0.0)
    reached = [bound for bound in sorted(counts) if total and counts[bound] >= share * total]
    return total, reached[0] if reached else 0.0


def create_all(kubectl: Kubectl, documents: Iterable[Mapping[str, Any]]) -> None:
    """Create objects with several clients at once."""
    documents = list(documents)
    parts = [part for part in (documents[start::CREATORS] for start in range(CREATORS)) if part]
    with ThreadPoolExecutor(CREATORS) as pool:
        for _ in pool.map(lambda part: kubectl.create(*part), parts):
            pass


def run_round(kubectl: Kubectl, jobs: int) -> Round:
    """Create that many one-pod Jobs of eight GPUs each and wait until all have completed."""
    before = buckets(kubectl)
    began = time.monotonic()
    template = pod_spec("wait", gpus=8, **ON_KWOK)
    create_all(kubectl, (job(f"job-{number}", template) for number in range(jobs)))
    created_s = time.monotonic() - began
    kubectl("wait", "--for=condition=Complete", "jobs", "--all", f"--timeout={WITHIN_S}s", timeout_s=WITHIN_S)
    completed_s = time.monotonic() - began
    after = buckets(kubectl)
    latencies = []
    for verb in VERBS:
        total, median_s = quantile_s(before, after, verb, 0.5)
        _, high_s = quantile_s(before, after, verb, 0.99)
        latencies.append(f"{verb} {total:.0f}: {median_s * 1000:.0f}/{high_s * 1000:.0f}")
    kubectl("delete", "--raw", f"{JOBS}?propagationPolicy=Background")
    eventually("no pod is left", lambda: not kubectl("get", "pods", "--output=name"), within_s=WITHIN_S)
    return Round(created_s=created_s, completed_s=completed_s, latencies="; ".join(latencies))


def memory_table(before: Mapping[str, int], after: Mapping[str, int]) -> list[str]:
    """Return Markdown rows: a program's memory before and after, in MiB."""
    shown = sorted(after, key=lambda program: -after[program])[:8]
    rows = [f"| {name} | {before.get(name, 0) / 2**20:.0f} | {after[name] / 2**20:.0f} |" for name in shown]
    total = f"| all | {sum(before.values()) / 2**20:.0f} | {sum(after.values()) / 2**20:.0f} |"
    return ["| program | before MiB | after MiB |", "|---|---|---|", *rows, total]


def measure(cluster: LocalCluster, *, nodes: int, jobs: int, rounds: int) -> Sequence[str]:
    """Return the report's lines; removes what it made."""
    kubectl = cluster.kubectl.in_namespace(NAMESPACE)
    addons.install_kwok(cluster, default_home(), say=lambda _: None)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    idle = cluster.memory_bytes()
    began = time.monotonic()
    create_all(cluster.kubectl, (addons.fake_node(f"fake-{number}", gpus.POOLS["h200"]) for number in range(nodes)))
    wait = ["wait", "--for=condition=Ready", "node", "--selector=type=kwok", f"--timeout={WITHIN_S}s"]
    cluster.kubectl(*wait, timeout_s=WITHIN_S)
    nodes_ready_s = time.monotonic() - began
    done = [run_round(kubectl, jobs) for _ in itertools.repeat(None, rounds)]
    busy = cluster.memory_bytes()
    cluster.kubectl("delete", "--raw", "/api/v1/nodes?labelSelector=type%3Dkwok")
    cluster.kubectl.delete("namespace", NAMESPACE)
    table = [
        f"| {number} | {each.created_s:.1f} | {each.completed_s:.1f} |"
        f" {jobs / each.completed_s:.0f} | {each.latencies} |"
        for number, each in enumerate(done, start=1)
    ]
    return [
        f"{nodes} simulated nodes with 8 mocked GPUs each were Ready in {nodes_ready_s:.1f} s.",
        "",
        f"{jobs} Jobs of one 8-GPU pod each. Latencies are the API server's own (requests: median/99th percentile in",
        "ms, each the upper bound of a bucket of its histogram).",
        "",
        "| round | created s | completed s | Jobs/s | API latency by verb |",
        "|---|---|---|---|---|",
        *table,
        "",
        *memory_table(idle, busy),
    ]


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="dev")
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    cluster = LocalCluster(arguments.name, default_home())
    lines = measure(cluster, nodes=arguments.nodes, jobs=arguments.jobs, rounds=arguments.rounds)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
