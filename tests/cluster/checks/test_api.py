"""What the API server itself promises the operator: validation, admission, garbage collection, an audit log."""

import json

import pytest
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.diagnosis import audited
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually
from neuroshard_cluster.workloads import job, pod, pod_spec

pytestmark = pytest.mark.e2e

CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "probes.test.neuroshard.dev"},
    "spec": {
        "group": "test.neuroshard.dev",
        "scope": "Namespaced",
        "names": {"plural": "probes", "singular": "probe", "kind": "Probe"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"devices": {"type": "integer"}},
                                "x-kubernetes-validations": [
                                    {"rule": "self.devices > 0", "message": "a job needs a device"},
                                    {"rule": "self.devices == oldSelf.devices", "message": "devices cannot change"},
                                ],
                            }
                        },
                    }
                },
            }
        ],
    },
}


def probe(devices: int) -> dict[str, object]:
    """Return a custom resource with that many devices."""
    return {
        "apiVersion": "test.neuroshard.dev/v1",
        "kind": "Probe",
        "metadata": {"name": "one"},
        "spec": {"devices": devices},
    }


def test_cel_rules_reject_with_their_message(cluster: Cluster, namespace: Namespace) -> None:
    """CEL rules and transition rules of a CRD reject with their own message."""
    cluster.kubectl.define("probes.test.neuroshard.dev", CRD)

    with pytest.raises(CommandError, match="a job needs a device"):
        namespace.kubectl.create(probe(0))
    namespace.kubectl.apply(probe(2))
    with pytest.raises(CommandError, match="devices cannot change"):
        namespace.kubectl.apply(probe(3))


def test_restricted_namespace_refuses_a_privileged_pod(namespace: Namespace) -> None:
    """A namespace with restricted Pod Security refuses a pod that runs as root."""
    rooted = pod("rooted", "wait", securityContext={"runAsUser": 0})
    rooted["spec"]["containers"][0]["securityContext"] = {"privileged": True}

    with pytest.raises(CommandError, match="violates PodSecurity"):
        namespace.kubectl.create(rooted)


def test_rights_are_checked(namespace: Namespace) -> None:
    """A service account without a role may not read secrets."""
    with pytest.raises(CommandError, match="Forbidden"):
        namespace.kubectl("get", "secrets", f"--as=system:serviceaccount:{namespace.name}:default")


def test_children_go_with_their_owner(namespace: Namespace) -> None:
    """Deleting an owner deletes what its owner references name."""
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    namespace.kubectl.create(owner)
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": namespace.kubectl.get("configmap", "owner")["metadata"]["uid"],
    }
    namespace.kubectl.create(job("child", pod_spec("wait"), suspend=True))
    namespace.kubectl.patch("job", "child", {"metadata": {"ownerReferences": [reference]}})

    namespace.kubectl.delete("configmap", "owner")

    eventually("the child is gone", lambda: not namespace.kubectl.list("jobs"))


def test_writes_are_audited(cluster: Cluster, namespace: Namespace) -> None:
    """The audit log names who wrote what."""
    namespace.kubectl.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "seen"}})

    def writers() -> list[str]:
        entries = map(json.loads, audited(cluster.audit_log, namespace.name))
        return [entry["user"]["username"] for entry in entries if entry["objectRef"].get("name") == "seen"]

    eventually("the write is in the audit log", writers)
