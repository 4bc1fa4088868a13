"""The command lines of etcd, the API server, the controller manager and the scheduler. Starts nothing."""

from pathlib import Path

from neuroshard_cluster import network
from neuroshard_cluster.folders import MANIFESTS
from neuroshard_cluster.pki import Authority

API_PORT = 6443
IN_CLUSTER_SERVER = f"https://{network.BRIDGE_IP}:{API_PORT}"
CLIENTS = {
    "admin": "/O=system:masters/CN=admin",
    "kube-controller-manager": "/CN=system:kube-controller-manager",
    "kube-scheduler": "/CN=system:kube-scheduler",
    "kube-proxy": "/CN=system:kube-proxy",
    "aggregator": "/CN=aggregator",
}
# The defaults (20 and 30 a second) make 400 pods take 40 s instead of 8 s.
BUSY_CLIENT = ["--kube-api-qps=200", "--kube-api-burst=400"]

ETCD = "http://127.0.0.1:2379"
ETCD_PEER = "http://127.0.0.1:2380"


def issue_certificates(authority: Authority, *, api_ip: str) -> None:
    """Issue every identity of the control plane; `api_ip` is the host's way to the API server."""
    authority.create()
    addresses = ("127.0.0.1", network.BRIDGE_IP, network.API_SERVICE_IP, api_ip)
    names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
    serves = (*(f"IP:{address}" for address in addresses), *(f"DNS:{name}" for name in names))
    authority.issue(
        "kube-apiserver", "/CN=kube-apiserver", serves=(*serves, "DNS:kubernetes.default.svc.cluster.local")
    )
    for name, subject in CLIENTS.items():
        authority.issue(name, subject)


def etcd(folder: Path) -> list[str]:
    """Keep the data in `folder`. Nothing survives this cluster, so nothing is flushed to disk."""
    return [
        "etcd",
        f"--data-dir={folder}",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
        f"--listen-peer-urls={ETCD_PEER}",
        f"--initial-advertise-peer-urls={ETCD_PEER}",
        f"--initial-cluster=default={ETCD_PEER}",
        "--unsafe-no-fsync",
    ]


def kube_apiserver(pki: Authority, audit_log: Path) -> list[str]:
    """RBAC, node restriction, Pod Security (on by default) and an audit log that tests may read."""
    return [
        "kube-apiserver",
        f"--etcd-servers={ETCD}",
        f"--secure-port={API_PORT}",
        "--bind-address=0.0.0.0",
        f"--advertise-address={network.BRIDGE_IP}",
        f"--tls-cert-file={pki.path('kube-apiserver', 'crt')}",
        f"--tls-private-key-file={pki.path('kube-apiserver', 'key')}",
        f"--client-ca-file={pki.certificate}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        *service_account_tokens(pki),
        f"--service-cluster-ip-range={network.SERVICE_RANGE}",
        f"--kubelet-client-certificate={pki.path('admin', 'crt')}",
        f"--kubelet-client-key={pki.path('admin', 'key')}",
        "--kubelet-preferred-address-types=InternalIP",
        # Webhooks and aggregated APIs are called on their pods' addresses: no kube-proxy runs beside the API server.
        "--enable-aggregator-routing=true",
        f"--requestheader-client-ca-file={pki.certificate}",
        "--requestheader-allowed-names=aggregator",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki.path('aggregator', 'crt')}",
        f"--proxy-client-key-file={pki.path('aggregator', 'key')}",
        f"--audit-policy-file={MANIFESTS / 'audit-policy.yaml'}",
        f"--audit-log-path={audit_log}",
        "--audit-log-maxsize=100",
        "--audit-log-maxbackup=2",
    ]


def service_account_tokens(pki: Authority) -> list[str]:
    """Sign and check the tokens of service accounts with the authority's own key."""
    return [
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki.path('tokens', 'key')}",
        f"--service-account-signing-key-file={pki.path('tokens', 'key')}",
    ]


def _client(name: str, kubeconfig: Path) -> list[str]:
    """One instance, so no leader election: a restart takes over at once."""
    flags = [
        f"--{flag}={kubeconfig}" for flag in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    ]
    return [name, *flags, "--leader-elect=false", "--bind-address=127.0.0.1", *BUSY_CLIENT]


def kube_controller_manager(pki: Authority, kubeconfig: Path) -> list[str]:
    """All default controllers; certificates are signed with the cluster's own authority."""
    return [
        *_client("kube-controller-manager", kubeconfig),
        f"--service-account-private-key-file={pki.path('tokens', 'key')}",
        f"--root-ca-file={pki.certificate}",
        f"--cluster-signing-cert-file={pki.certificate}",
        f"--cluster-signing-key-file={pki.path('ca', 'key')}",
        "--use-service-account-credentials=true",
    ]


def kube_scheduler(kubeconfig: Path) -> list[str]:
    """The default profile."""
    return _client("kube-scheduler", kubeconfig)
