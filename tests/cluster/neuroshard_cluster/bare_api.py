"""An API server with its etcd and nothing else: objects are validated and stored, and nobody acts on them.

Needs no root and starts in seconds, so that unit tests may ask a real API server. `make api-build`
makes its programs.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from neuroshard_cluster.components import ETCD, KUBERNETES, search_path
from neuroshard_cluster.control_plane import service_account_tokens
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.pki import Authority
from neuroshard_cluster.ports import LOCALHOST, held_port
from neuroshard_cluster.waiting import eventually

PROGRAMS = (ETCD, KUBERNETES)
CONTEXT = "neuroshard-local-bare"
READY_WITHIN_S = 240.0
"""Ends a hang with what was seen last, before pytest ends it without."""


class BareApi:
    """A running API server on a free port of this machine, with RBAC."""

    def __init__(self, folder: Path, home: Home) -> None:
        self._folder = folder
        self._home = home
        self._pki = Authority(folder / "pki")
        self._api: subprocess.Popen[bytes] | None = None
        self._etcd: subprocess.Popen[bytes] | None = None
        self._held = held_port(), held_port()
        self.port, self._etcd_port = (held.getsockname()[1] for held in self._held)

    @property
    def kubectl(self) -> Kubectl:
        """A client with every right."""
        program = str(KUBERNETES.target(self._home) / "kubectl")
        return Kubectl(kubeconfig=self._folder / "kubeconfig", program=program)

    @property
    def authority(self) -> Path:
        """The certificate that its clients trust."""
        return self._pki.certificate

    def start(self) -> None:
        """Start both programs and wait until the API server is ready."""
        self._pki.create()
        self._pki.issue("kube-apiserver", "/CN=kube-apiserver", serves=(f"IP:{LOCALHOST}", "DNS:localhost"))
        self._pki.issue("admin", "/O=system:masters/CN=admin")
        server = f"https://{LOCALHOST}:{self.port}"
        self._pki.write_kubeconfig(self.kubectl.kubeconfig, identity="admin", server=server, context=CONTEXT)
        self._etcd = self._run("etcd", *self._etcd_flags())
        self.start_api()

    def start_api(self) -> None:
        """Start the API server, again after `stop_api`, and wait until it is ready."""
        self._api = self._run("kube-apiserver", *self._api_flags())
        eventually("the API server is ready", lambda: self.kubectl("get", "--raw=/readyz"), within_s=READY_WITHIN_S)

    def stop_api(self) -> None:
        """Kill the API server; what it stored stays."""
        _kill(self._api)

    def stop(self) -> None:
        """Kill both."""
        _kill(self._api)
        _kill(self._etcd)
        for held in self._held:
            held.close()

    def token(self, namespace: str, service_account: str) -> str:
        """Return a token of a service account, which must exist."""
        return self.kubectl.in_namespace(namespace)("create", "token", service_account).strip()

    def _run(self, program: str, *flags: str) -> "subprocess.Popen[bytes]":
        environment = os.environ | {"PATH": search_path(self._home, PROGRAMS)}
        # Killed with its parent, so that an interrupted test run leaves nothing behind.
        bound = ["setpriv", "--pdeathsig", "KILL", "--"]
        with (self._folder / f"{program}.log").open("a") as log:
            return subprocess.Popen([*bound, program, *flags], env=environment, stdout=log, stderr=log)

    def _etcd_flags(self) -> list[str]:
        client, peer = f"http://{LOCALHOST}:{self._etcd_port}", f"http://{LOCALHOST}:0"
        return [
            f"--data-dir={self._folder / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            "--unsafe-no-fsync",
            "--socket-reuse-port",
        ]

    def _api_flags(self) -> list[str]:
        return [
            f"--etcd-servers=http://{LOCALHOST}:{self._etcd_port}",
            f"--secure-port={self.port}",
            f"--bind-address={LOCALHOST}",
            "--permit-port-sharing",
            f"--tls-cert-file={self._pki.path('kube-apiserver', 'crt')}",
            f"--tls-private-key-file={self._pki.path('kube-apiserver', 'key')}",
            f"--client-ca-file={self._pki.certificate}",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            # Nobody makes service accounts here.
            "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--shutdown-delay-duration=0s",
            *service_account_tokens(self._pki),
        ]


@contextlib.contextmanager
def bare_api(folder: Path, home: Home) -> Iterator[BareApi]:
    """Run an API server that keeps its files in `folder` until the block ends.

    Raises:
        HostError: Its programs have not been built, or there is no openssl.
    """
    missing = [component.name for component in PROGRAMS if not component.target(home).exists()]
    if missing:
        raise HostError(f"not built: {', '.join(missing)}; hint: `make api-build`, which needs Go")
    for tool in ("openssl", "setpriv"):
        if shutil.which(tool) is None:
            raise HostError(f"there is no {tool} on PATH")
    api = BareApi(folder, home)
    try:
        api.start()
        yield api
    finally:
        api.stop()


def _kill(process: "subprocess.Popen[bytes] | None") -> None:
    if process is not None and process.poll() is None:
        process.kill()
        process.wait()
