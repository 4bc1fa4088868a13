"""An API server with its etcd and nothing else, as child processes on free ports: enough to try resources on.

It needs the programs that `make cluster-up` builds, but no root, network or nodes. Several may run side by side.
"""

import contextlib
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from neuroshard_cluster.commands import BOUND_TO_CALLER
from neuroshard_cluster.components import ETCD, KUBERNETES
from neuroshard_cluster.errors import HostError, TimedOutError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.pki import Authority

READY_WITHIN_S = 60.0
LOOK_EVERY_S = 0.1
SHOWN_CHARACTERS = 2000


def missing_programs(home: Home) -> str:
    """Return a sentence that says which programs must be built first; empty when all are there."""
    missing = [component.name for component in (ETCD, KUBERNETES) if not component.target(home).exists()]
    return f"{' and '.join(missing)} not built; `make cluster-up` builds them" if missing else ""


@contextlib.contextmanager
def bare_api_server(folder: Path, home: Home) -> Iterator[Path]:
    """Give the kubeconfig of a new API server whose admin it is; the server ends with the context, or with its caller.

    Raises:
        HostError: its programs are not built.
        TimedOutError: it did not become ready; the message holds the end of its log.
    """
    if missing := missing_programs(home):
        raise HostError(missing)
    pki = Authority(folder / "pki")
    pki.create()
    pki.issue("kube-apiserver", "/CN=kube-apiserver", serves=("IP:127.0.0.1",))
    pki.issue("admin", "/O=system:masters/CN=admin")
    etcd_port, peer_port, port = _free_ports(3)
    server = f"https://127.0.0.1:{port}"
    kubeconfig = folder / "kubeconfig"
    pki.write_kubeconfig(kubeconfig, identity="admin", server=server, context="bare")
    commands = {
        "etcd": _etcd(ETCD.target(home) / "etcd", folder / "etcd", etcd_port, peer_port),
        "kube-apiserver": _api_server(KUBERNETES.target(home) / "kube-apiserver", pki, etcd_port, port),
    }
    with contextlib.ExitStack() as stack:
        started = [stack.enter_context(_running(argv, folder / f"{name}.log")) for name, argv in commands.items()]
        _wait_until_ready(f"{server}/readyz", started, folder / "kube-apiserver.log")
        yield kubeconfig


def _etcd(program: Path, data: Path, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    return [
        str(program),
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
    ]


def _api_server(program: Path, pki: Authority, etcd_port: int, port: int) -> list[str]:
    return [
        str(program),
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--tls-cert-file={pki.path('kube-apiserver', 'crt')}",
        f"--tls-private-key-file={pki.path('kube-apiserver', 'key')}",
        f"--client-ca-file={pki.certificate}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.path('tokens', 'key')}",
        f"--service-account-signing-key-file={pki.path('tokens', 'key')}",
        "--service-cluster-ip-range=10.0.0.0/24",
        # No controller makes the default ServiceAccount of a namespace here.
        "--disable-admission-plugins=ServiceAccount",
    ]


def _free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@contextlib.contextmanager
def _running(argv: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen([*BOUND_TO_CALLER, *argv], stdout=output, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(url: str, processes: list[subprocess.Popen[bytes]], log: Path) -> None:
    import ssl

    trusting = ssl._create_unverified_context()  # it is our own child; clients verify it by the kubeconfig
    deadline = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < deadline and all(process.poll() is None for process in processes):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, context=trusting, timeout=1):
            return
        time.sleep(LOOK_EVERY_S)
    raise TimedOutError(f"the bare API server did not become ready: {log.read_text()[-SHOWN_CHARACTERS:]}")
