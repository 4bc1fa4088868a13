"""How pods find and reach each other, and how people reach them."""

import http.client
import re
import subprocess

import pytest
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from neuroshard_cluster.workloads import job, pod, pod_spec, service, spread

pytestmark = pytest.mark.e2e


def start(namespace: Namespace, name: str, *args: str, node: str = "") -> None:
    """Run a pod, on a node if one is named, and wait until it is Ready."""
    place = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    namespace.kubectl.create(pod(name, *args, **place))
    namespace.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=600s")


def answered(port: int) -> str:
    """Return the answer of a port of this machine, or nothing while it refuses."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode()
    except OSError:
        return ""
    finally:
        connection.close()


def fetched(namespace: Namespace, client: str, url: str) -> str:
    """Return a pod's answer from a URL, which may take a while to be there."""
    asks = ("exec", client, "--", "python3", "/probe.py", "fetch", url)
    return eventually(f"{client} has an answer", lambda: namespace.kubectl(*asks).strip())


def test_workers_find_each_other_by_name(namespace: Namespace) -> None:
    """Pods of an Indexed Job on different nodes resolve each other's hostnames through a headless Service."""
    namespace.kubectl.create(service("ranks", headless=True))
    template = pod_spec("resolve", "ranks-0.ranks", "ranks-1.ranks", subdomain="ranks", affinity=spread("ranks"))
    indexed = {"completions": 2, "parallelism": 2, "completionMode": "Indexed"}
    namespace.kubectl.create(job("ranks", template, **indexed))

    namespace.kubectl("wait", "--for=condition=Complete", "job/ranks", "--timeout=600s")

    nodes = {each["spec"]["nodeName"] for each in namespace.kubectl.list("pods")}
    assert len(nodes) == 2


def test_service_answers_on_the_same_and_on_another_node(cluster: Cluster, namespace: Namespace) -> None:
    """A Service is reached by name from its pod's own node and from another one."""
    here, there = cluster.nodes()[:2]
    namespace.kubectl.create(service("server"))
    start(namespace, "server", "serve", node=here)
    start(namespace, "near", "wait", node=here)
    start(namespace, "far", "wait", node=there)

    url = f"http://server.{namespace.name}.svc.cluster.local:8080"
    assert [fetched(namespace, client, url) for client in ("near", "far")] == ["server", "server"]


def test_pod_reaches_the_api_server(namespace: Namespace) -> None:
    """A pod reaches the API server through its Service."""
    start(namespace, "client", "wait")
    script = "import socket; socket.create_connection(('kubernetes.default.svc', 443), 5); print('open')"

    asks = ("exec", "client", "--", "python3", "-c", script)
    assert eventually("the API server answers", lambda: namespace.kubectl(*asks).strip()) == "open"


def test_logs_and_exec(namespace: Namespace) -> None:
    """`kubectl logs` and `kubectl exec` reach a pod."""
    start(namespace, "server", "serve")
    fetched(namespace, "server", "http://127.0.0.1:8080")

    eventually("the log has the request", lambda: "served" in namespace.kubectl("logs", "server"))


def test_port_forward(namespace: Namespace) -> None:
    """`kubectl port-forward` carries a request from this machine to a pod."""
    start(namespace, "server", "serve")
    fetched(namespace, "server", "http://localhost:8080/")  # kubectl gives up on a port that nobody listens to yet
    argv = [*namespace.kubectl.prefix, "port-forward", "pod/server", ":8080"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as forward:
        assert forward.stdout is not None
        port = re.search(r"127\.0\.0\.1:(\d+)", forward.stdout.readline())
        assert port is not None
        try:
            answer = eventually("the pod answers", lambda: answered(int(port[1])))
        finally:
            forward.kill()

    assert answer == "server"
