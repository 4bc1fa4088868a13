"""One node: the pid 1 of its own mount, pid, network, host name and IPC namespaces, with containerd and a kubelet.

The node has a /var and a /run of its own, so every path inside is the program's default one. Started with the node's
folder as its one argument, which holds `node.json`.
"""

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from neuroshard_cluster import network
from neuroshard_cluster.supervisor import declare, supervise

SANDBOX_IMAGE = "localhost/pause:1"
ROUTER_SYSCTLS = {"net/ipv4/ip_forward": "1", "net/ipv4/conf/all/rp_filter": "0"}
# A kubelet writes these; it gets files of the node's own instead of the machine's settings.
KUBELET_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeSpec:
    """What a node must know before it starts. `cgroup` is a path below every control group hierarchy."""

    name: str
    index: int
    cgroup: str
    kubeconfig: str
    proxy_kubeconfig: str
    ca_certificate: str
    plugins: str
    labels: str

    def write(self, folder: Path) -> None:
        """Write `node.json` into the node's folder."""
        (folder / "node.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> "NodeSpec":
        """Read the `node.json` of the node's folder."""
        return cls(**json.loads((folder / "node.json").read_text()))


def _mount(*argv: str) -> None:
    subprocess.run(["mount", *argv], check=True)


def isolate(spec: NodeSpec, folder: Path) -> None:
    """Give the namespaces that this process is in a host name, routing, settings, and a /var and /run of their own."""
    socket.sethostname(spec.name)
    for name, value in (network.SHORT_FAREWELLS | ROUTER_SYSCTLS).items():
        Path(f"/proc/sys/{name}").write_text(value)
    for name, value in KUBELET_SYSCTLS.items():
        stand_in = folder / "sysctl" / name
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        stand_in.write_text(value)
        _mount("--bind", str(stand_in), f"/proc/sys/{name}")
    for name in ("lib", "log", "tmp", "cache"):
        (folder / "var" / name).mkdir(parents=True, exist_ok=True)
    if not (folder / "var" / "run").is_symlink():
        (folder / "var" / "run").symlink_to("/run")
    _mount("--bind", str(folder / "var"), "/var")
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _mount("--make-rshared", "/")
    Path("/run/resolv.conf").touch()  # pods ask the cluster's DNS and nobody else


def _cni(spec: NodeSpec) -> str:
    """Point-to-point links as kind has them: a bridge would need br_netfilter for Services on the same node."""
    ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": network.pod_range(spec.index)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": ipam, "mtu": 1500},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": plugins})


def _containerd(spec: NodeSpec) -> str:
    """Settings for a machine that may lack the right to lower OOM scores, AppArmor and NRI."""
    return f"""
version = 3
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{SANDBOX_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{spec.plugins}"]
    conf_dir = "/run/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      SystemdCgroup = false
"""


def _kubelet(spec: NodeSpec) -> str:
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{spec.cgroup}",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "resolvConf": "/run/resolv.conf",
        "clusterDomain": "cluster.local",
        "clusterDNS": [network.DNS_SERVICE_IP],
        "failSwapOn": False,
        "maxOpenFiles": 20000,
        "oomScoreAdj": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": spec.ca_certificate},
        },
        "authorization": {"mode": "Webhook"},
        # All nodes share one disk that is not theirs: only a nearly full one is a reason to evict.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "4s",
    }
    return yaml.safe_dump(document)


def declare_processes(spec: NodeSpec, processes: Path) -> None:
    """Write the configuration of containerd, kubelet and kube-proxy, and say that they should run."""
    files = {
        "/run/cni/10-pods.conflist": _cni(spec),
        "/run/containerd.toml": _containerd(spec),
        "/run/kubelet.yaml": _kubelet(spec),
    }
    for path, text in files.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    declare(processes, "containerd", ["containerd", "-c", "/run/containerd.toml"])
    declare(
        processes,
        "kubelet",
        [
            "kubelet",
            "--config=/run/kubelet.yaml",
            f"--kubeconfig={spec.kubeconfig}",
            f"--node-ip={network.node_ip(spec.index)}",
            f"--hostname-override={spec.name}",
            f"--node-labels={spec.labels}",
            "--v=2",
        ],
    )
    declare(
        processes,
        "kube-proxy",
        [
            "kube-proxy",
            f"--kubeconfig={spec.proxy_kubeconfig}",
            f"--hostname-override={spec.name}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={network.POD_RANGE}",
            "--oom-score-adj=0",
            # These settings belong to the machine, not to the node.
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ],
    )


def main() -> None:
    """Be the node until killed."""
    folder = Path(sys.argv[1])
    spec = NodeSpec.read(folder)
    isolate(spec, folder)
    os.chdir("/")
    declare_processes(spec, folder / "processes")
    supervise(folder / "processes")


if __name__ == "__main__":
    main()
