"""What runs on top of a bare control plane: cluster DNS always; Kueue and kwok when a test asks for them."""

from string import Template

from neuroshard_cluster import network
from neuroshard_cluster.components import COREDNS
from neuroshard_cluster.folders import MANIFESTS
from neuroshard_cluster.tiny_images import image_name


def dns() -> str:
    """Return the manifests of the cluster's DNS."""
    text = (MANIFESTS / "coredns.yaml").read_text()
    return Template(text).substitute(dns_ip=network.DNS_SERVICE_IP, image=image_name(COREDNS))
