"""The cluster's DNS: CoreDNS as kubeadm deploys it."""

from string import Template

from neuroshard_cluster.components import COREDNS
from neuroshard_cluster.folders import MANIFESTS
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.network import DNS_SERVICE_IP
from neuroshard_cluster.tiny_images import image_name
from neuroshard_cluster.waiting import eventually


def install_dns(kubectl: Kubectl) -> None:
    """Deploy CoreDNS behind the address that every kubelet tells its pods."""
    text = (MANIFESTS / "coredns.yaml").read_text()
    kubectl.apply(Template(text).substitute(dns_ip=DNS_SERVICE_IP, image=image_name(COREDNS)))


def await_dns(kubectl: Kubectl) -> None:
    """Wait until one of its pods answers.

    Raises:
        TimedOutError: None did.
    """

    def ready_pods() -> int:
        deployment = kubectl.in_namespace("kube-system").get("deployment", "coredns")
        return int(deployment["status"].get("readyReplicas", 0))

    eventually("cluster DNS is ready", ready_pods)
