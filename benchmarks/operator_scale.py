"""The operator with 1,000 jobs on a simulated fleet: reconcile lag, API calls, memory, lost or doubled children, start.

`PYTHONPATH=tests/cluster python -m benchmarks.operator_scale --name CLUSTER` needs a running local cluster without
another operator (`make cluster-up`). Nodes and pods are kwok's; API server, scheduler, controllers and the operator are
real. The script stands in for the pods' one effect: it publishes the profile and, for each job, a plan.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from kubernetes.aio import client, config, watch
from neuroshard_api.documents.config_map import contents_of, pack_files, unpack_files
from neuroshard_api.documents.hardware import Hardware
from neuroshard_api.documents.presets import preset
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.job.training_job import API_VERSION, KIND
from neuroshard_cluster import addons, gpus
from neuroshard_cluster.folders import default_home
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.local import LocalCluster
from neuroshard_cluster.scale import create_all
from neuroshard_costs.bundle import bundled_bundle, bundled_root
from neuroshard_planner.pipeline import plan

from benchmarks.results_file import cpu_model, write_result

NAMESPACE = "operator-scale"
ROLE = "training.neuroshard.dev/role"
DEVICE = "h200-141gb"
FLEET = "/api/v1/nodes?labelSelector=type%3Dkwok"
BATCH = 10  # jobs that one kubectl creates
PORT = 18080
LAG_TARGET_S = 2.0
MEMORY_TARGET_MIB = 250.0
START_TARGET_S = 30.0
TRAINED, WAITING = "TrainingCompleted", "WaitingForApproval"
"""Reasons in which jobs end up."""
ROOT = Path(__file__).parents[1]
IDLE, ALL = "(idle)", "(all)"
SHOWN_PROGRAMS = 6
BUCKET = re.compile(r'^(\w+)_bucket\{(?:.*,)?le="([^"]+)"(?:,.*)?\} (\S+)$', re.MULTILINE)


def training_job(name: str, *, launch_policy: str = "Auto") -> Mapping[str, Any]:
    """Return a job of two nodes with eight mocked GPUs each."""
    tables = [{"name": f"table-{index}", "numEmbeddings": 100_000, "embeddingDim": 64} for index in range(8)]
    spec = {
        "launchPolicy": launch_policy,
        "model": {"embeddingTables": tables},
        "trainer": {"numNodes": 2, "resourcesPerNode": {"limits": {gpus.RESOURCE: 8}}},
    }
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "spec": spec}


def fleet(count: int) -> Iterator[Mapping[str, Any]]:
    """Return kwok nodes that take every pod."""
    for number in range(count):
        node = dict(addons.fake_node(f"fleet-{number}", gpus.POOLS["h200"]))
        yield {**node, "spec": {}}


@contextlib.contextmanager
def operator(kubeconfig: Path, log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the operator as a process on this machine."""
    images = {f"NEUROSHARD_{role}_IMAGE": f"{role.lower()}:test" for role in ("PROFILER", "PLANNER", "TRAINER")}
    settings = {"NEUROSHARD_NAMESPACES": NAMESPACE, "NEUROSHARD_HTTP_PORT": str(PORT), "KUBECONFIG": str(kubeconfig)}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "neuroshard_operator"],
            env={**os.environ, **images, **settings},
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


async def publish_results(kubeconfig: Path) -> None:
    """Fill result ConfigMaps as soon as they are made, as profiler and planner pods would."""
    settings = client.Configuration()
    await config.load_kube_config(config_file=str(kubeconfig), client_configuration=settings)  # type: ignore[no-untyped-call]
    async with client.ApiClient(settings) as api:
        core: Any = client.CoreV1Api(api)
        stream: Any = watch.Watch()  # type: ignore[no-untyped-call] # the package's types are partial
        plans: dict[str, bytes] = {}
        selector = f"{ROLE} in (profiler, planner)"
        async for event in stream.stream(core.list_namespaced_config_map, NAMESPACE, label_selector=selector):
            found = event["raw_object"]
            name, role = found["metadata"]["name"], found["metadata"]["labels"][ROLE]
            if event["type"] != "ADDED" or found.get("data") or not name.endswith("-result"):
                continue
            files = profile() if role == "profiler" else await plan_for(core, name, plans)
            packed = pack_files(files)
            body = {"data": dict(packed.data), "binaryData": dict(packed.binary_data)}
            await core.patch_namespaced_config_map(name, NAMESPACE, body)


def profile() -> dict[str, bytes]:
    """Return the bundled cost models as a profiler's result."""
    folder = bundled_root() / DEVICE
    bundle = bundled_bundle(DEVICE)
    topology = gpu_topology()
    hardware = Hardware(
        fingerprint=hashlib.sha256(DEVICE.encode()).hexdigest(),
        source=f"simulated:{DEVICE}",
        device=bundle.manifest.device,
        intra_node=topology.intra_node,
        inter_node=topology.inter_node,
        devices_per_node=8,
    )
    files = {name: (folder / name).read_bytes() for name in ("manifest.json", "weights.safetensors")}
    return {**files, "hardware.json": hardware.to_json().encode()}


def gpu_topology() -> Any:  # noqa: ANN401 - a Topology
    """Return the usual node of the device."""
    return preset(DEVICE).topology()


async def plan_for(core: Any, result: str, plans: dict[str, bytes]) -> dict[str, bytes]:  # noqa: ANN401 - an API of the client
    """Return the plan that a request asks for; equal requests but for the job's name are planned once."""
    name = result.replace("-planner-", "-request-").removesuffix("-result")
    while True:
        try:
            found = (await core.read_namespaced_config_map(name, NAMESPACE)).to_dict()
            break
        except client.ApiException:
            await asyncio.sleep(0.05)
    contents = {"data": found.get("data"), "binaryData": found.get("binary_data")}
    request = PlanRequest.from_json(unpack_files(contents_of(contents))["request.json"])
    if not plans:
        plans["plan"] = plan(request, bundle=bundled_bundle(DEVICE)).to_json().encode()
    return {"plan.json": plans["plan"]}


def metrics() -> str:
    """Return the operator's metrics."""
    with urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def quantile_s(text: str, name: str, share: float) -> float:
    """Return the bucket bound in seconds that a share of a histogram stays below, over all its labels."""
    counts: dict[float, float] = {}
    for found, bound, count in BUCKET.findall(text):
        if found == name:
            counts[float(bound)] = counts.get(float(bound), 0.0) + float(count)
    return next(bound for bound in sorted(counts) if counts[bound] >= share * counts[float("inf")])


def total(text: str, name: str) -> float:
    """Return the sum of a counter over its labels."""
    return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))


def by_verb(text: str) -> dict[str, float]:
    """Return the operator's API calls by verb."""
    found = re.findall(r'^neuroshard_api_calls_total\{verb="(\w+)"\} (\S+)$', text, re.MULTILINE)
    return {verb: float(count) for verb, count in found}


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def busy_by_program() -> dict[str, float]:
    """Return the processor seconds of all processes that run, by program, and of the whole machine, idle ones too."""
    per_second = os.sysconf("SC_CLK_TCK")
    found: dict[str, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            name, fields = stat.read_text(errors="replace").split("(", 1)[1].rsplit(")", 1)
            found[name] = found.get(name, 0.0) + sum(map(int, fields.split()[11:13])) / per_second
    whole = [int(field) / per_second for field in Path("/proc/stat").read_text(encoding="ascii").split()[1:9]]
    return {**found, IDLE: whole[3] + whole[4], ALL: sum(whole)}


def create_steadily(kubectl: Kubectl, *, jobs: int, waiting: int, per_second: float) -> None:
    """Create jobs at a steady rate, a few at a time; the last `waiting` ones wait for an approval of their plan."""
    began = time.monotonic()
    made = [training_job(f"job-{number}") for number in range(jobs - waiting)]
    made += [training_job(f"waits-{number}", launch_policy="Manual") for number in range(waiting)]
    for first in range(0, jobs, BATCH):
        kubectl.create(*made[first : first + BATCH])
        time.sleep(max(0.0, began + (first + BATCH) / per_second - time.monotonic()))


def reasons(kubectl: Kubectl) -> Counter[str]:
    """Return the number of jobs that show each reason."""
    return Counter(kubectl("get", "dlrmjob", "--output=jsonpath={.items[*].status.reason}", timeout_s=300).split())


def start_s(kubeconfig: Path, log: Path, *, jobs: int) -> tuple[float, float, float]:
    """Start an operator with jobs that are there already.

    Returns:
        Seconds until it is ready, seconds until it has made as many passes as there are jobs and none waits, and its
        memory then in MiB. A job that was reconciled twice counts twice.
    """
    began = time.monotonic()
    with operator(kubeconfig, log) as process:
        ready_s = wait("the operator is ready", lambda: _answers("readyz"), within_s=120, every_s=0.1)

        def has_seen_all() -> bool:
            text = metrics()
            return total(text, "neuroshard_reconcile_seconds_count") >= jobs and not total(
                text, "neuroshard_queue_depth"
            )

        wait("as many passes as jobs", has_seen_all, within_s=600, every_s=0.5)
        return ready_s, time.monotonic() - began, rss_mib(process.pid)


def wait(
    what: str,
    done: Callable[[], bool],
    *,
    within_s: float,
    each: Callable[[], None] = lambda: None,
    every_s: float = 2.0,
) -> float:
    """Wait until something is done; return the seconds it took."""
    began = time.monotonic()
    while not done():
        each()
        if time.monotonic() - began > within_s:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(every_s)
    return time.monotonic() - began


def measure(cluster: LocalCluster, *, nodes: int, jobs: int, waiting: int, per_second: float, log: Path) -> list[str]:
    """Return the result's lines."""
    kubectl = cluster.kubectl.in_namespace(NAMESPACE)
    addons.install_kwok(cluster, default_home(), say=lambda _: None)
    cluster.kubectl.apply((ROOT / "crds" / "dlrmtrainingjobs.yaml").read_text(encoding="utf-8"))
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for node in cluster.nodes():
        cluster.kubectl("cordon", node)
    cluster.kubectl("delete", "--raw", FLEET)
    create_all(cluster.kubectl, fleet(nodes))
    peak = [0.0]
    with operator(kubectl.kubeconfig, log) as process, ThreadPoolExecutor(1) as pool:
        wait("the operator is up", _answers, within_s=60)
        idle = rss_mib(process.pid)
        publisher = subprocess.Popen(  # noqa: S603 - this script again, as the pods' effect
            [sys.executable, "-m", "benchmarks.operator_scale", "--publish", str(kubectl.kubeconfig)], cwd=ROOT
        )
        try:
            began, busy_before = time.monotonic(), busy_by_program()
            creating = pool.submit(create_steadily, kubectl, jobs=jobs, waiting=waiting, per_second=per_second)

            def look() -> None:
                peak[0] = max(peak[0], rss_mib(process.pid))

            def are_done() -> bool:
                # The operator's own count is asked first: a list of all jobs takes the API server a second.
                if total(metrics(), 'neuroshard_jobs{stage="Succeeded"}') < jobs - waiting:
                    return False
                found = reasons(kubectl)
                return found[TRAINED] == jobs - waiting and found[WAITING] == waiting

            wait("all jobs end or wait", are_done, within_s=1800, each=look)
            creating.result()
            took_s, busy_after = time.monotonic() - began, busy_by_program()
        finally:
            publisher.kill()
            publisher.wait()
        text = metrics()
        children = Counter(
            (each["metadata"]["labels"]["training.neuroshard.dev/job-name"], each["metadata"]["labels"][ROLE])
            for each in kubectl.list("jobs", selector=ROLE)
        )
        end, busy_s = rss_mib(process.pid), cpu_s(process.pid)
    ready_s, seen_s, start_mib = start_s(kubectl.kubeconfig, log.with_suffix(".start.log"), jobs=jobs)
    cluster.kubectl("delete", "--raw", FLEET)
    cluster.kubectl("delete", "namespace", NAMESPACE, "--wait=false")
    launched = jobs - waiting
    workers = [count for (_, role), count in children.items() if role == "worker"]
    planners = [count for (_, role), count in children.items() if role == "planner"]
    profilers = sum(count for (_, role), count in children.items() if role == "profiler")
    wait_name, pass_name = "neuroshard_queue_wait_seconds", "neuroshard_reconcile_seconds"
    rows = {
        "reconcile lag, from wake-up to pass: median, 99th percentile (bucket bounds)": " s, ".join(
            str(quantile_s(text, wait_name, share)) for share in (0.5, 0.99)
        )
        + " s",
        "one pass with its API calls: median, 99th percentile (bucket bounds)": " s, ".join(
            str(quantile_s(text, pass_name, share)) for share in (0.5, 0.99)
        )
        + " s",
        "passes per job": f"{total(text, pass_name + '_count') / jobs:.1f}",
        "API calls per job, events included": f"{total(text, 'neuroshard_api_calls_total') / jobs:.1f}: "
        + ", ".join(f"{verb} {count / jobs:.1f}" for verb, count in sorted(by_verb(text).items())),
        "API calls that failed, conflicts included": f"{total(text, 'neuroshard_api_errors_total'):.0f}",
        "operator's processor time per job": f"{1000 * busy_s / jobs:.0f} ms",
        "operator's resident memory: before, peak, after": f"{idle:.0f}, {peak[0]:.0f}, {end:.0f} MiB",
        "processor time by program, of all cores in that time": _shares(busy_before, busy_after),
        "jobs without a worker Job, jobs with several": f"{launched - len(workers)}, {sum(n > 1 for n in workers)}",
        "jobs without a planner Job, jobs with several": f"{jobs - len(planners)}, {sum(n > 1 for n in planners)}",
        "profiler Jobs, for one kind of hardware": str(profilers),
        f"another start with these {jobs} jobs: until ready, until it made as many passes as jobs and none waits": (
            f"{ready_s:.1f} s, {seen_s:.1f} s"
        ),
        "its resident memory then": f"{start_mib:.0f} MiB",
    }
    lag_s, memory_mib = quantile_s(text, wait_name, 0.99), peak[0]
    server = json.loads(kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
    return [
        "# The operator under many jobs",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores for all: API server, etcd, scheduler, controllers, kwok, the",
        f"operator, this script. Kubernetes {server}. Load average at the end: {os.getloadavg()[0]:.1f}. One run.",
        "",
        f"{jobs} jobs of two nodes with 8 mocked GPUs each on {nodes} simulated nodes, {per_second:g} made a second.",
        f"{launched} succeeded, and {waiting} wait for an approval of their plan, {took_s:.0f} s after the first was",
        "created.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {what} | {value} |" for what, value in rows.items()),
        "",
        f"Targets: a 99th percentile of the lag of at most {LAG_TARGET_S:g} s, {_met(lag_s <= LAG_TARGET_S)}; resident",
        f"memory below {MEMORY_TARGET_MIB:g} MiB, {_met(memory_mib < MEMORY_TARGET_MIB)}; a start with",
        f"{jobs} jobs below {START_TARGET_S:g} s, {_met(seen_s < START_TARGET_S)}.",
    ]


def _shares(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Return the programs that had the processors between two measurements."""
    used = {name: seconds - before.get(name, 0.0) for name, seconds in after.items()}
    programs = sorted(used.keys() - {IDLE, ALL}, key=lambda name: -used[name])[:SHOWN_PROGRAMS]
    return ", ".join(f"{name} {100 * used[name] / used[ALL]:.0f} %" for name in (*programs, IDLE))


def _met(is_met: bool) -> str:  # noqa: FBT001 - the only thing it is about
    return "met" if is_met else "missed"


def _answers(path: str = "metrics") -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{PORT}/{path}", timeout=10) as answer:
            return bool(answer.read())
    except OSError:
        return False


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="dev")
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--waiting", type=int, default=100, help="of these, jobs that wait for an approval in the end")
    parser.add_argument("--per-second", type=float, default=5.0, help="jobs created a second")
    parser.add_argument("--log", type=Path, default=Path("build/operator-scale.log"))
    parser.add_argument("--publish", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.publish:
        asyncio.run(publish_results(arguments.publish))
        return
    arguments.log.parent.mkdir(parents=True, exist_ok=True)
    cluster = LocalCluster(arguments.name, default_home())
    lines = measure(
        cluster,
        nodes=arguments.nodes,
        jobs=arguments.jobs,
        waiting=arguments.waiting,
        per_second=arguments.per_second,
        log=arguments.log,
    )
    hardware = f"{os.cpu_count()}-core-vm"
    path = write_result("operator-scale", lines, hardware=hardware, packages=("kopf", "kubernetes", "aiohttp"))
    sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
