"""A cluster that assigns the users of pods, as OpenShift's restricted-v2 does: any uid, group 0, and no other user.

Policies of the API server stand in for OpenShift, which is not run here: one assigns a user to each pod that names
none, the other refuses pods with another one. Pod Security refuses the rest that restricted-v2 refuses.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e import jobs
from e2e.operator_release import ACCOUNT, NAMESPACE, Release, process_of
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.kubectl import Object
from neuroshard_cluster.plugin import Namespace
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.usefixtures("operator")]

USER = 1_000_650_000
POLICY = "assigned-users"
GROUP = "admissionregistration.k8s.io"
PODS = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}


SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def pod_with(**user: int) -> Object:
    """Return a pod that Pod Security takes, with a user or none."""
    context = {**user, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    containers = [{"name": "any", "image": "any", "securityContext": SECURITY}]
    spec = {"securityContext": context, "containers": containers}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": spec}


def policies(*namespaces: str) -> list[Object]:
    """Return the policies that assign one user to all pods of namespaces, and refuse another one."""
    where = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    matches = {
        "resourceRules": [PODS],
        "namespaceSelector": {"matchExpressions": [where]},
    }
    assigned = (
        "Object{spec: Object.spec{securityContext: "
        f"Object.spec.securityContext{{runAsUser: {USER}, fsGroup: {USER}}}}}}}"
    )
    own = (
        "(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))"
        ".all(c, !has(c.securityContext) || !has(c.securityContext.runAsUser))"
    )
    rule = f"object.spec.securityContext.runAsUser == {USER} && object.spec.securityContext.fsGroup == {USER} && {own}"
    unset = "!has(object.spec.securityContext) || !has(object.spec.securityContext.runAsUser)"
    mutating = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": matches,
        "matchConditions": [{"name": "without-a-user", "expression": unset}],
        "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": assigned}}],
    }
    validating = {
        "failurePolicy": "Fail",
        "matchConstraints": matches,
        "validations": [{"expression": rule, "message": "the user of a pod is the cluster's choice"}],
    }

    def made(kind: str, spec: Object) -> Object:
        return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": {"name": POLICY}, "spec": spec}

    return [
        made("MutatingAdmissionPolicy", mutating),
        made("MutatingAdmissionPolicyBinding", {"policyName": POLICY}),
        made("ValidatingAdmissionPolicy", validating),
        made("ValidatingAdmissionPolicyBinding", {"policyName": POLICY, "validationActions": ["Deny"]}),
    ]


@pytest.fixture
def assigned(release: Release, cluster: Cluster, namespace: Namespace) -> Iterator[Release]:
    """The operator with `fixedUser=false`, and policies that assign users in its namespace and the test's."""
    kinds = [each["kind"].lower() for each in policies()]
    cluster.kubectl.apply(*policies(namespace.name, NAMESPACE))
    create = ("create", "--dry-run=server", "--output=json", "--filename=-")

    def refuses() -> bool:
        try:
            namespace.kubectl(*create, stdin=json.dumps(pod_with(runAsUser=65532)))
        except CommandError as error:
            return "the cluster's choice" in str(error)
        return False

    def assigns() -> bool:
        made = json.loads(namespace.kubectl(*create, stdin=json.dumps(pod_with())))
        return bool(made["spec"]["securityContext"].get("runAsUser") == USER)

    try:
        eventually("another user is refused", refuses)
        eventually("a user is assigned", assigns)  # by another policy, which may come into force later
        release.install(fixedUser=False)
        yield release
    finally:
        for kind in kinds:
            cluster.kubectl.delete(kind, POLICY)
        release.install()


def test_a_job_trains_where_the_cluster_assigns_users(assigned: Release, namespace: Namespace) -> None:
    """The operator, the planner, and a trainer of one's own run as a uid that no image knows, with group 0."""
    namespace.kubectl.apply(jobs.script_job("shop", f'touch /tmp/file && test "$(id -u):$(id -g)" = {USER}:0'))
    jobs.wait_for_stage(namespace.kubectl, "shop", "Succeeded")
    pods = jobs.children(namespace.kubectl, "shop", "pods")
    users = {pod["spec"]["securityContext"]["runAsUser"] for pod in pods}
    roles = {pod["metadata"]["labels"][jobs.ROLE_LABEL] for pod in pods}
    [operator] = assigned.pods()
    process = Path(f"/proc/{process_of(operator)}/status").read_text(encoding="ascii")

    assert users == {USER}
    assert roles == {"planner", "worker"}
    assert operator["spec"]["securityContext"]["runAsUser"] == USER
    assert f"Uid:\t{USER}\t" in process


def test_the_operator_may_set_owner_references_where_they_are_enforced(release: Release) -> None:
    """OpenShift asks anyone who blocks the deletion of an owner for the right to update its finalizers."""
    asked = ("auth", "can-i", "update", "dlrmtrainingjobs", "--subresource=finalizers", f"--as={ACCOUNT}")

    assert release.kubectl(*asked).strip() == "yes"
