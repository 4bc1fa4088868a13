"""What the chart installs, for every combination of its values."""

import functools
import itertools
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from neuroshard_cluster.addons import helm
from neuroshard_cluster.bare_api import BareApi
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.images import ROOMS
from neuroshard_cluster.waiting import eventually
from neuroshard_operator.controller import MISSED_RESYNCS
from neuroshard_operator.process.metrics import OperatorMetrics
from neuroshard_operator.settings import PREFIX, Settings, settings_from
from support import builders

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "neuroshard-operator"
NAME = "shop-neuroshard-operator"
NAMESPACE = "neuroshard"
Values = Mapping[str, Any]
GIVEN: Values = {"images": {"registry": "registry.example/team"}}
SWITCHES: Mapping[str, Sequence[Values]] = {
    "replicas": [{"replicas": 1}, {"replicas": 2}],
    "namespaces": [{}, {"watchNamespaces": ["blue", "green"]}],
    "nodes": [{"readNodes": True}, {"readNodes": False}],
    "extras": [
        {},
        {
            "rbac": {"aggregate": False},
            "fixedUser": False,
            "admissionPolicy": {"create": False},
            "jobPolicy": {"mode": "unrestricted"},
            "logTails": False,
            "crds": {"install": False},
            "networkPolicy": {"from": [{"namespaceSelector": {}}]},
            "metrics": {key: {"create": True} for key in ("serviceMonitor", "prometheusRule", "dashboard")},
            "serviceAccount": {"annotations": {"a": "b"}},
            "nodeSelector": {"pool": "cpu"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "podLabels": {"team": "ads"},
            "podAnnotations": {"c": "d"},
            "priorityClassName": "high",
        },
    ],
    "accounts": [{}, {"serviceAccount": {"create": False, "name": "given"}, "rbac": {"create": False}}],
}
COMBINATIONS = [functools.reduce(lambda a, b: {**a, **b}, chosen) for chosen in itertools.product(*SWITCHES.values())]


def run_helm(verb: str, values: Values, *flags: str) -> "subprocess.CompletedProcess[str]":
    """Run helm on the chart with these values."""
    release = [] if verb == "lint" else ["shop"]
    argv = [helm(), verb, *release, str(CHART), "--values=-", f"--namespace={NAMESPACE}", *flags]
    text = json.dumps({**GIVEN, **values})
    return subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=100)


def rendered(values: Values | None = None) -> list[dict[str, Any]]:
    """Return the objects that the chart installs with these values."""
    return rendered_text(json.dumps(values or {}))


@functools.cache
def rendered_text(values: str) -> list[dict[str, Any]]:
    """Return the objects that the chart installs with values in JSON."""
    done = run_helm("template", json.loads(values))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if each]


def one(objects: Sequence[dict[str, Any]], kind: str, name: str = NAME) -> dict[str, Any]:
    """Return the one object of that kind and name."""
    [found] = [each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def identities(objects: Sequence[dict[str, Any]]) -> set[tuple[str, str]]:
    """Return kind and name of each object."""
    return {(each["kind"], each["metadata"]["name"]) for each in objects}


@pytest.mark.api_server
@pytest.mark.slow
def test_every_combination_of_values_renders_what_an_api_server_takes(bare_api: BareApi) -> None:
    """Each object is applied to a real API server without being stored; lint has nothing to complain about."""
    for namespace in (NAMESPACE, "blue", "green"):
        bare_api.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    distinct: dict[str, dict[str, Any]] = {}
    for values in COMBINATIONS:
        for each in rendered(values):
            assert each["metadata"]["labels"]["app.kubernetes.io/instance"] == "shop"
            if each["apiVersion"] != "monitoring.coreos.com/v1":
                distinct[json.dumps(each, sort_keys=True)] = each

    assert run_helm("lint", COMBINATIONS[-1], "--strict").returncode == 0
    bare_api.kubectl("apply", "--server-side", "--dry-run=server", "--filename=-", stdin="\n---\n".join(distinct))


@pytest.mark.api_server
@pytest.mark.slow
def test_the_admission_policy_keeps_the_operator_to_its_own_objects(bare_api: BareApi) -> None:
    """On a real API server, with every right: only what a job owns, and profiles, can be made, changed or deleted."""
    kubectl = bare_api.kubectl
    kubectl.apply(*policies(NAME))
    as_operator = [f"--as=system:serviceaccount:{NAMESPACE}:{NAME}", "--as-group=system:masters"]
    labels = {"app.kubernetes.io/managed-by": "dlrm-operator"}
    ours = {"apiVersion": "training.neuroshard.dev/v1alpha1", "kind": "DLRMTrainingJob", "name": "job", "uid": "1"}
    owner = {**ours, "controller": True}
    another = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "job", "uid": "2", "controller": True}

    def config_map(name: str, **metadata: Any) -> str:
        return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}})

    def refusal(*words: str, stdin: str | None = None) -> str:
        try:
            kubectl(*words, *as_operator, stdin=stdin)
        except CommandError as error:
            return str(error)
        return ""

    def created(name: str, namespace: str = "default", **metadata: Any) -> str:
        return refusal("create", f"--namespace={namespace}", "--filename=-", stdin=config_map(name, **metadata))

    kubectl("create", "--filename=-", stdin=config_map("aws-auth"))
    delete = ("delete", "configmap", "aws-auth", "--dry-run=server")
    eventually("the policy works", lambda: refusal(*delete), within_s=100)

    assert "only objects with the label" in refusal(*delete)
    assert "only objects with the label" in refusal("label", "configmap", "aws-auth", "a=b")
    assert "only objects with the label" in created("job-foreign", ownerReferences=[owner])
    for name, owners in [("nobodys", []), ("job-a", [ours]), ("other-a", [owner]), ("job-a", [ours, another])]:
        assert "only objects that a DLRMTrainingJob controls" in created(name, labels=labels, ownerReferences=owners)
    kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    for namespace in ("kube-system", NAMESPACE):
        assert "neither to kube-*" in created("job-a", namespace, labels=labels, ownerReferences=[owner])
    assert created("job-plan", labels=labels, ownerReferences=[owner]) == ""
    assert created("profile", labels={**labels, "training.neuroshard.dev/role": "profile"}) == ""
    kubectl("label", "configmap", "job-plan", "profile", "app.kubernetes.io/managed-by-")
    again = "app.kubernetes.io/managed-by=dlrm-operator"
    assert "only objects with the label" in refusal("annotate", "configmap", "job-plan", "a=b")
    assert "only objects with the label" in refusal("delete", "configmap", "job-plan")
    assert "only objects with the label" in refusal("label", "configmap", "profile", again)
    assert refusal("label", "configmap", "job-plan", again) == ""
    assert refusal("delete", "configmap", "job-plan") == ""
    assert kubectl.get("configmap", "aws-auth")["metadata"].get("labels") is None

    pod = {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}
    metadata = {"name": "job-worker-0", "labels": labels, "ownerReferences": [owner]}
    by_account = {
        name: refusal("create", "--dry-run=server", "--filename=-", stdin=json.dumps(made))
        for name in ("job-worker", "another")
        for template in [{"spec": {**pod, "serviceAccountName": name}}]
        for made in [{"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": {"template": template}}]
    }
    assert by_account["job-worker"] == ""
    assert "only with the ServiceAccounts of their DLRMTrainingJob" in by_account["another"]


def policies(name: str, values: Values = {}) -> list[Any]:  # noqa: B006 - read only
    """Return a policy of the chart and its binding."""
    found = [each for each in rendered(values) if each["kind"].startswith("ValidatingAdmissionPolicy")]
    return [each for each in found if each["metadata"]["name"] == name]


def secured(**security: Any) -> Mapping[str, Any]:
    """Return the part of a pod template that gives the trainer's container a security context."""
    return {"containers": [{"name": "trainer", "image": "x", "securityContext": security}]}


def with_trainer(**fields: Any) -> Mapping[str, Any]:
    """Return the part of a pod template that gives the trainer's container fields."""
    return {"containers": [{"name": "trainer", "image": "x", **fields}]}


ELSEWHERE = {"httpGet": {"host": "169.254.169.254", "path": "/", "port": 80}}
BASELINE: Mapping[str, Mapping[str, Any]] = {
    "the node's processes": {"hostPID": True},
    "the node's shared memory": {"hostIPC": True},
    "the node's network": {"hostNetwork": True},
    "files of the node": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    "a privileged container": secured(privileged=True),
    "a privileged container before": {
        "initContainers": [{"name": "x", "image": "x", "securityContext": {"privileged": True}}]
    },
    "a privileged container next to a harmless one": {
        "containers": [
            {"name": "a", "image": "x"},
            {"name": "b", "image": "x", "securityContext": {"privileged": True}},
        ]
    },
    "all capabilities": secured(capabilities={"add": ["ALL"]}),
    "one capability too many": secured(capabilities={"drop": ["ALL"], "add": ["CHOWN", "SYS_ADMIN"]}),
    "a capability by its other name": secured(capabilities={"add": ["CAP_SYS_MODULE"]}),
    "raw packets": secured(capabilities={"add": ["NET_RAW"]}),
    "all system calls": secured(seccompProfile={"type": "Unconfined"}),
    "all system calls for the pod": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    "no AppArmor": secured(appArmorProfile={"type": "Unconfined"}),
    "no AppArmor for the pod": {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
    "another type of SELinux": secured(seLinuxOptions={"type": "spc_t"}),
    "another user of SELinux": {"securityContext": {"seLinuxOptions": {"user": "system_u"}}},
    "another role of SELinux": secured(seLinuxOptions={"role": "system_r"}),
    "a process of a Windows node": {
        "hostNetwork": True,
        "securityContext": {"windowsOptions": {"hostProcess": True, "runAsUserName": "NT AUTHORITY\\SYSTEM"}},
    },
    "a setting of the kernel": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    "a port of the node": with_trainer(ports=[{"containerPort": 80, "hostPort": 80}]),
    "the kubelet's calls by a probe": with_trainer(livenessProbe=ELSEWHERE),
    "the kubelet's connections by a probe": with_trainer(startupProbe={"tcpSocket": {"host": "10.0.0.1", "port": 22}}),
    "the kubelet's calls by a hook": with_trainer(lifecycle={"preStop": ELSEWHERE}),
}
"""Pods that the Baseline Pod Security Standard refuses."""
ASKS: Mapping[str, Mapping[str, Any]] = {
    **BASELINE,
    "/proc of the node": secured(procMount="Unmasked"),
    "another account": {"serviceAccountName": "powerful", "automountServiceAccountToken": True},
    "another account by its old name": {"serviceAccount": "powerful"},
    "two accounts, one of them allowed": {"serviceAccountName": "reader", "serviceAccount": "powerful"},
    "no account": {"serviceAccountName": None},
    "a wrong type that may be read as true": {"hostPID": "true"},
    "containers of a wrong type": {"containers": 7},
    "volumes of a wrong type": {"volumes": {"hostPath": {"path": "/"}}},
    "a security context of a wrong type": with_trainer(securityContext="privileged"),
    "capabilities of a wrong type": secured(capabilities={"add": "ALL"}),
    "a server that the node mounts": {"volumes": [{"name": "v", "nfs": {"server": "x", "path": "/"}}]},
    "a disk image that the node mounts": {"volumes": [{"name": "v", "rbd": {"monitors": ["x"], "image": "x"}}]},
    "a program of the node": {"volumes": [{"name": "v", "flexVolume": {"driver": "x/y"}}]},
    "a volume with two sources": {"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/"}}]},
    "the place of the cluster's own pods": {"priorityClassName": "system-node-critical"},
}
"""What a job must not ask of its pods where the policy of jobs is on."""
UNCONFINED = {"annotations": {"container.apparmor.security.beta.kubernetes.io/trainer": "unconfined"}}
ASKS_OUTSIDE: Mapping[str, Mapping[str, Any]] = {
    "no AppArmor by an annotation": {"podTemplate": {"metadata": UNCONFINED}},
    "no AppArmor for the profiler": {"experimental": {"profiler": {"podMetadata": UNCONFINED}}},
    "no AppArmor for the planner": {"experimental": {"planner": {"podMetadata": UNCONFINED}}},
}
"""The same outside of the pod template's spec."""
USUAL: Sequence[Mapping[str, Any]] = (
    {},
    {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "runtimeClassName": "nvidia"},
    {"containers": [{"name": "trainer", "securityContext": None}], "securityContext": None, "volumes": None},
    {"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "persistentVolumeClaim": {"claimName": "c"}}]},
    {"serviceAccountName": "reader", "hostPID": False, "hostNetwork": None, "priorityClassName": "high"},
    secured(
        capabilities={"drop": ["ALL"], "add": ["IPC_LOCK"]}, privileged=False, seccompProfile={"type": "Localhost"}
    ),
    with_trainer(ports=[{"containerPort": 80}], startupProbe={"httpGet": {"path": "/", "port": 80}}, lifecycle=None),
    {"securityContext": {"fsGroup": 5, "sysctls": [{"name": "net.ipv4.tcp_rmem", "value": "1 2 3"}]}},
)
"""What jobs ask for every day."""


@pytest.mark.api_server
@pytest.mark.slow
def test_the_policy_of_jobs_refuses_what_a_pod_of_ones_own_would_not_get(bare_api: BareApi) -> None:
    """On a real API server: each way to the rights of another account or to the node; what is usual passes.

    Pod Security of the API server itself is the judge of what reaches beyond a pod.
    """
    kubectl = bare_api.kubectl
    kubectl.define("dlrmtrainingjobs.training.neuroshard.dev", (ROOT / "crds" / "dlrmtrainingjobs.yaml").read_text())

    def attempt(verb: str, objects: Mapping[str, Any], *flags: str) -> Mapping[str, str]:
        """Return the refusals of objects; "" of those that the API server takes. One call, for each takes a second."""
        named = {f"n{number}-asks": key for number, key in enumerate(objects)}
        bodies = [{**body, "metadata": {"name": name}} for name, body in zip(named, objects.values(), strict=True)]
        argv, text = [*kubectl.prefix, verb, *flags, "--filename=-"], "\n---\n".join(map(json.dumps, bodies))
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=100)
        found = done.stderr.splitlines()
        refusals = {key: "".join(each for each in found if f'"{name}"' in each) for name, key in named.items()}
        made = sum(not refusal for refusal in refusals.values())
        assert made == len(done.stdout.splitlines()), done.stderr
        return refusals

    def jobs(specs: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {key: builders.job_data("x", **spec) for key, spec in specs.items()}

    def templates(pods: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return jobs({key: {"podTemplate": {"spec": spec}} for key, spec in pods.items()})

    dry_run = "--dry-run=server"
    old = {"files": BASELINE["files of the node"]}
    assert attempt("create", templates(old)) == {"files": ""}  # a job from before the policy
    kubectl.apply(*policies(f"{NAME}-jobs", {"jobPolicy": {"serviceAccountNames": ["reader"]}}))
    worse = templates({"files": BASELINE["the node's processes"]})
    eventually("the policy works", lambda: attempt("replace", worse, dry_run)["files"], within_s=100)
    patch = ("patch", "dlrmjob", "n0-asks", "--type=merge", '--patch={"spec":{"suspend":true}}')
    assert "suspend" in kubectl(*patch, "--output=yaml")
    # By another verb, and only a part of it.
    part = '--patch={"spec":{"podTemplate":{"spec":{"hostIPC":true}}}}'
    with pytest.raises(CommandError, match="processes of its node"):
        kubectl("patch", "dlrmjob", "n0-asks", "--type=merge", part)
    applied = {"apiVersion": worse["files"]["apiVersion"], "kind": "DLRMTrainingJob", "metadata": {"name": "n0-asks"}}
    applied["spec"] = {"podTemplate": {"spec": {"hostIPC": True}}}
    with pytest.raises(CommandError, match="processes of its node"):
        kubectl("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=json.dumps(applied))
    kubectl("delete", "dlrmjob", "n0-asks")

    refused = {**attempt("create", templates(ASKS), dry_run), **attempt("create", jobs(ASKS_OUTSIDE), dry_run)}
    assert [key for key, why in refused.items() if f"'{NAME}-jobs'" not in why] == []
    usual = attempt("create", templates({str(number): spec for number, spec in enumerate(USUAL)}), dry_run)
    assert set(usual.values()) == {""}
    assert [key for key in BASELINE if "hint: " not in refused[key]] == []  # and not by an expression that fails

    kubectl("label", "namespace", "default", "pod-security.kubernetes.io/enforce=baseline")
    plain = {"apiVersion": "v1", "kind": "Pod"}
    pods = {
        key: {**plain, "spec": {"containers": [{"name": "c", "image": "x"}], **spec}} for key, spec in BASELINE.items()
    }
    judged = attempt("create", pods, dry_run)
    assert [key for key, why in judged.items() if 'violates PodSecurity "baseline' not in why] == []


def test_pods_may_run_as_any_user() -> None:
    """OpenShift refuses a fixed one; the operator then leaves it out of the pods of jobs too."""
    pod = one(rendered({"fixedUser": False}), "Deployment")["spec"]["template"]["spec"]

    assert "runAsUser" not in pod["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"]
    [setting] = [each for each in pod["containers"][0]["env"] if each["name"] == "NEUROSHARD_FIXED_USER"]
    assert setting["value"] == "false"


PAGES = ("README.md", "docs/guides/install.md")


def shell_text(page: str) -> str:
    """Return a page whose commands are on one line each."""
    return (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")


@pytest.mark.parametrize("page", PAGES)
def test_the_installation_that_a_page_tells_works(page: str) -> None:
    """It names every value that has no default, and no value or option that does not exist."""
    [command] = re.findall(r"^    helm install (.*)$", shell_text(page), flags=re.MULTILINE)
    argv = [helm(), "template", *command.split()]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)

    assert done.returncode == 0, done.stderr
    assert "kind: Deployment" in done.stdout


@pytest.mark.parametrize("choice", re.findall(r"--set '?([^'`\s]+)", shell_text(PAGES[1])))
def test_a_choice_that_the_guide_offers_is_one(choice: str) -> None:
    """The chart takes the value of the guide."""
    done = run_helm("template", {}, "--set", choice)

    assert done.returncode == 0, done.stderr


def test_without_a_registry_nothing_is_installed() -> None:
    """No image is published, so there is no default that would work."""
    done = run_helm("template", {"images": {"registry": ""}})

    assert done.returncode != 0
    assert "images.registry: is empty; hint: give the registry that holds the image" in done.stderr


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": 3}, "replicas"),
        ({"replicas": "2"}, "replicas"),
        ({"watchNamespaces": ["Not_A_Name"]}, "watchNamespaces"),
        ({"watchNamespaces": "blue"}, "watchNamespaces"),
        ({"watchNamespaces": ["blue", "blue"]}, "watchNamespaces"),
        ({"images": {"registry": "r", "tag": "latest"}}, "images.tag"),
        ({"images": {"registry": "https://r"}}, "images.registry"),
        ({"images": {"registry": "r", "pullPolicy": "Sometimes"}}, "images.pullPolicy"),
        ({"logLevel": "verbose"}, "logLevel"),
        ({"resyncSeconds": 1}, "resyncSeconds"),
        ({"metrics": {"port": 80}}, "metrics.port"),
        ({"metrics": {"serviceMonitor": {"enabled": True}}}, "enabled"),
        ({"plannerResources": {"cpu": "1", "memory": "2G"}}, "plannerResources.memory"),
        ({"crds": {"keep": "yes"}}, "crds.keep"),
    ],
    ids=lambda value: json.dumps(value)[:50] if isinstance(value, dict) else "",
)
def test_a_wrong_value_is_refused_by_name(values: Values, words: str) -> None:
    """Before anything is installed."""
    done = run_helm("template", values)

    assert done.returncode != 0
    assert words in done.stderr


def test_the_definition_is_that_of_crds_and_stays_when_the_chart_goes() -> None:
    """Uninstalling must not delete everyone's jobs."""
    source = (ROOT / "crds" / "dlrmtrainingjobs.yaml").read_bytes()
    assert (CHART / "files" / "dlrmtrainingjobs.yaml").read_bytes() == source, "run `make crds`"
    kept = one(rendered(), "CustomResourceDefinition", "dlrmtrainingjobs.training.neuroshard.dev")

    assert kept["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert kept["spec"] == yaml.safe_load(source)["spec"]


def test_the_definition_may_be_left_to_others_or_go_with_the_chart() -> None:
    """In clusters where definitions are managed elsewhere."""
    gone = rendered({"crds": {"keep": False}})
    [definition] = [each for each in gone if each["kind"] == "CustomResourceDefinition"]

    assert "helm.sh/resource-policy" not in definition["metadata"].get("annotations", {})
    assert not [each for each in rendered({"crds": {"install": False}}) if each["kind"] == "CustomResourceDefinition"]


def test_the_operators_pod_is_within_the_restricted_standard_and_writes_nowhere() -> None:
    """All that it needs is the API server."""
    spec = one(rendered(), "Deployment")["spec"]["template"]["spec"]
    [container] = spec["containers"]

    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "volumes" not in spec


def test_one_replica_never_meets_its_successor() -> None:
    """Recreate, and no budget that would stop drains; with two, a Lease decides and a budget keeps one."""
    single, pair = rendered(), rendered({"replicas": 2})

    assert one(single, "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert ("PodDisruptionBudget", NAME) not in identities(single)
    assert one(pair, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert one(pair, "Role", f"{NAME}-lease")["rules"][1]["resourceNames"] == [NAME]
    assert environment(pair)["NEUROSHARD_LEASE"] == NAME
    assert "NEUROSHARD_LEASE" not in environment(single)


def environment(objects: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the operator's environment, as far as it is known before the pod runs."""
    [container] = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return {each["name"]: each["value"] for each in container["env"] if "value" in each}


def test_a_list_of_namespaces_gives_rights_there_and_nowhere_else() -> None:
    """No ClusterRole is left that the operator is bound to."""
    objects = rendered({"watchNamespaces": ["blue", "green"], "readNodes": False})
    roles = {each["metadata"]["namespace"] for each in objects if each["kind"] == "Role"}

    assert roles == {"blue", "green"}
    assert not [each for each in objects if each["kind"] == "ClusterRoleBinding"]
    assert environment(objects)["NEUROSHARD_NAMESPACES"] == "blue,green"
    assert environment(objects)["NEUROSHARD_READ_NODES"] == "false"


def test_the_operator_may_not_read_secrets_or_run_commands_in_pods() -> None:
    """What would make it worth attacking; every rule names its resources and verbs."""
    rules = [rule for each in rendered({"replicas": 2}) if each["kind"].endswith("Role") for rule in each["rules"]]
    resources = {resource for rule in rules for resource in rule["resources"]}
    verbs = {verb for rule in rules for verb in rule["verbs"]}

    assert not resources & {"*", "secrets", "pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers"}
    assert not verbs & {"*", "escalate", "bind", "impersonate"}


def test_job_sets_are_the_operators_only_where_they_are_asked_for() -> None:
    """No right to them, no policy about them, and no use of them otherwise."""
    without, asked = (
        json.dumps([each for each in rendered({"jobSets": wanted}) if each["kind"] != "CustomResourceDefinition"])
        for wanted in (False, True)
    )

    assert "jobset" not in without.replace("NEUROSHARD_JOB_SETS", "").lower()
    assert asked.count("jobset.x-k8s.io") == 3  # rights, what the policy is about, and who may own a Job


def test_the_guide_on_security_lists_what_the_operator_may_do() -> None:
    """Every verb on every resource of a namespace, and none that the rules do not have."""
    page = (ROOT / "docs" / "guides" / "security.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*`) \| (.*?) \|", page, flags=re.MULTILINE)
    told = {(resource, verb) for names, verbs in rows for resource in names.split(", ") for verb in verbs.split(", ")}
    rules = one(rendered({"watchNamespaces": ["blue"], "jobSets": True}), "Role")["rules"]

    assert told == {
        (f"`{resource}`", verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]
    }


def test_those_who_may_view_or_edit_a_namespace_may_do_so_with_jobs() -> None:
    """By aggregation into the cluster's own roles; the status is the operator's."""
    objects = rendered()
    view, edit = (one(objects, "ClusterRole", f"{NAME}-{suffix}") for suffix in ("view", "edit"))

    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert {verb for rule in view["rules"] for verb in rule["verbs"]} == {"get", "list", "watch"}
    assert {resource for rule in edit["rules"] for resource in rule["resources"]} == {"dlrmtrainingjobs"}


def test_images_are_named_by_room_and_may_be_replaced_one_by_one() -> None:
    """By digest, for instance."""
    images = {"registry": "r.example:5000/x/", "tag": "1.2", "planner": "other/planner@sha256:0"}
    objects = rendered({"images": images})
    [container] = one(objects, "Deployment")["spec"]["template"]["spec"]["containers"]

    assert container["image"] == "r.example:5000/x/operator:1.2"
    assert environment(objects)["NEUROSHARD_PLANNER_IMAGE"] == "other/planner@sha256:0"
    assert environment(objects)["NEUROSHARD_TRAINER_IMAGE"] == "r.example:5000/x/trainer:1.2"


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_a_target_of_the_dockerfile_and_is_not_root(room: str) -> None:
    """Docker users and the test cluster build the same file, on a base that the builder chooses."""
    text = (ROOT / "Dockerfile").read_text()
    head, *stages = re.split(r"^FROM ", text, flags=re.MULTILINE)
    names = {stage.splitlines()[0].rpartition(" AS ")[2]: stage for stage in stages}

    assert "ARG BASE_IMAGE=" in head
    assert [name for name, stage in names.items() if stage.startswith("${BASE_IMAGE}")] == ["base"]
    assert "\nUSER 65532:65532\nENTRYPOINT " in names[room]


def test_only_the_metrics_port_is_open_and_only_the_api_server_is_reached() -> None:
    """DNS next to it."""
    policy = one(rendered(), "NetworkPolicy")["spec"]

    assert policy["ingress"] == [{"ports": [{"port": "http", "protocol": "TCP"}]}]
    assert [rule["ports"] for rule in policy["egress"]] == [
        [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}],
        [{"port": 443, "protocol": "TCP"}, {"port": 6443, "protocol": "TCP"}],
    ]


@pytest.mark.api_server
@pytest.mark.slow
def test_the_notes_name_the_next_command(bare_api: BareApi) -> None:
    """What to type after `helm install`."""
    cluster = f"--kubeconfig={bare_api.kubectl.kubeconfig}"
    done = run_helm("install", {"watchNamespaces": ["blue"]}, "--dry-run=client", "--take-ownership", cluster)

    assert "helm test shop --namespace neuroshard" in done.stdout, done.stderr
    assert "kubectl apply --namespace blue --filename examples/01-smallest.yaml" in done.stdout
    assert (ROOT / "examples" / "01-smallest.yaml").exists()


def metric_names(expressions: Sequence[str]) -> set[str]:
    """Return the metrics that PromQL expressions read."""
    return {name for each in expressions for name in re.findall(r"neuroshard_\w+", each)}


def test_helm_test_may_ask_where_metrics_are_for_some_only() -> None:
    """Or a policy that names Prometheus alone would fail it."""
    objects = rendered({"networkPolicy": {"from": [{"namespaceSelector": {}}]}})
    [rule] = one(objects, "NetworkPolicy")["spec"]["ingress"]
    allowed = rule["from"][-1]["podSelector"]["matchLabels"]

    assert rule["from"][0] == {"namespaceSelector": {}}
    assert allowed.items() <= one(objects, "Pod", f"{NAME}-test")["metadata"]["labels"].items()
    assert allowed["app.kubernetes.io/instance"] == "shop"


def test_an_operator_that_sees_nothing_is_told_before_it_is_restarted() -> None:
    """A restart sets the age of its last look back, and an alert on more than that would never come."""
    [rule] = [each for each in alerts({"resyncSeconds": 120}) if each["alert"] == "NeuroshardOperatorBlind"]

    assert rule["expr"].endswith("> 240")
    assert rule["for"] == "1m"
    assert MISSED_RESYNCS * 120 > 240 + 60


def alerts(values: Values) -> list[dict[str, Any]]:
    """Return the alerts that the chart installs with these values."""
    spec = one(rendered({**values, "metrics": {"prometheusRule": {"create": True}}}), "PrometheusRule")["spec"]
    return [rule for group in spec["groups"] for rule in group["rules"]]


def test_alerts_and_dashboard_read_metrics_that_the_operator_has() -> None:
    """A query of a metric that does not exist never fires and shows nothing."""
    objects = rendered({"metrics": {"dashboard": {"create": True}}})
    dashboard = json.loads(one(objects, "ConfigMap", f"{NAME}-dashboard")["data"]["neuroshard-operator.json"])
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    registry = OperatorMetrics().registry
    known = {sample.name for family in registry.collect() for sample in family.samples}
    known |= {f"{family.name}{suffix}" for family in registry.collect() for suffix in SUFFIXES[family.type]}

    assert metric_names([rule["expr"] for rule in alerts({})]) <= known
    assert metric_names(panels) <= known


SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def test_the_operator_understands_every_setting_of_the_chart() -> None:
    """And finds all that it needs."""
    images = {**GIVEN["images"], "pullSecrets": ["one", "two"]}
    given = environment(rendered({"replicas": 2, "watchNamespaces": ["blue"], "images": images}))
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    settings = settings_from(given | {"NEUROSHARD_IDENTITY": "pod", "NEUROSHARD_LEASE_NAMESPACE": NAMESPACE})

    assert set(given) <= known
    assert (settings.namespaces, settings.lease) == (("blue",), NAME)
    assert settings.image_pull_secrets == ("one", "two")


@pytest.mark.parametrize(("flags", "found"), [(["--set", "images.tag=20261126"], "20261126"), ([], "20261127")])
def test_a_tag_of_digits_alone_is_a_tag(flags: list[str], found: str) -> None:
    """On the command line and in a file of values, where Helm takes it for a number."""
    done = run_helm("template", {"images": {"registry": "r.example", "tag": 20261127}}, *flags)
    [deployment] = [each for each in yaml.safe_load_all(done.stdout) if each and each["kind"] == "Deployment"]

    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == f"r.example/operator:{found}"
