"""What the pods of all stages have in common: restricted security, files from ConfigMaps, a service account's token."""

from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_api.job.stage_commands import NODE_RANK_VARIABLE
from neuroshard_api.job.workers import PodTemplateMetadata, Resources
from neuroshard_decisions import names
from neuroshard_decisions.context import Context

from neuroshard_operator.children.metadata import labels
from neuroshard_operator.children.overlay import merged
from neuroshard_operator.settings import Settings

RESTRICTED: Mapping[str, Any] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
USER = 65532
"""User and group of our images; restricted namespaces want one that is not root."""
TOKEN_SECONDS = 3607
"""What the kubelet asks for by default; it renews the token in time."""
WORK = "/neuroshard"
"""Parent folder of the files that a stage's pod reads and writes."""
RESULT = "result"
NODE_RANK: Mapping[str, Any] = {
    "name": NODE_RANK_VARIABLE,
    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{names.POD_INDEX_LABEL}']"}},
}
"""The pod's index is the node's rank: rank 0 is pod 0, whose host name the others connect to."""
_BLOCKING = "env --block-signal=TERM"
KEEPING_SIGTERM = ("sh", "-c", f'{_BLOCKING} true 2>/dev/null && exec {_BLOCKING} "$@"; exec "$@"', "sh")
"""Words before `neuroshard publish` as a container's first process: SIGTERM waits until the command has its handlers.

The kernel drops a signal that the first process has no handler for, and the pod would end with its grace period. Where
`env` cannot block signals (GNU coreutils before 8.31, busybox), the command is started without it.
"""
DISRUPTED: Mapping[str, Any] = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}
"""Rule of a pod failure policy: a pod that the cluster takes away is replaced and does not count."""


def container(
    name: str, image: str, command: Sequence[str], *, mounts: Mapping[str, str], env: Mapping[str, str], **more: object
) -> dict[str, Any]:
    """Return a container within the restricted Pod Security Standard; `mounts` are paths by volume."""
    writable = {RESULT, "tmp", "dshm", "checkpoints", names.DENSE}
    return {
        "name": name,
        "image": image,
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in env.items()],
        "volumeMounts": [
            {"name": volume, "mountPath": path, **({} if volume in writable else {"readOnly": True})}
            for volume, path in mounts.items()
        ],
        "securityContext": {**RESTRICTED, "readOnlyRootFilesystem": True},
        # The end of the log becomes the reason that people see in status.lastFailure.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **more,
    }


def pod_template(
    context: Context,
    settings: Settings,
    role: str,
    spec: Mapping[str, Any],
    more_labels: Mapping[str, str],
    *,
    overlay: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the pod template of a stage's Job; `overlay` is merged over all of its spec."""
    priority = context.spec.pod_template.spec.get("priorityClassName")
    user = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    defaults = {
        "restartPolicy": "Never",
        "serviceAccountName": names.account(context.name, role),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**(user if settings.fixed_user else {}), "runAsNonRoot": True},
        **({"priorityClassName": priority} if priority else {}),
    }
    return {
        "metadata": {"labels": labels(context, role, **more_labels)},
        "spec": {**merged({**defaults, **spec}, overlay or {}), **_pull_secrets(context, settings)},
    }


def dns_of(template: Mapping[str, Any]) -> dict[str, Any]:
    """Return the DNS policy of pods in the network of their nodes: with the node's, they do not find each other.

    Nothing where the template has another network, or a policy of its own.
    """
    is_needed = template.get("hostNetwork") is True and not template.get("dnsPolicy")
    return {"dnsPolicy": "ClusterFirstWithHostNet"} if is_needed else {}


def with_metadata(template: Mapping[str, Any], said: PodTemplateMetadata) -> dict[str, Any]:
    """Return a pod template with the job's labels and annotations; those of the operator win.

    By the labels that the operator has names for, it later knows what a Job was made with: none of them is the user's.
    """
    ours = template["metadata"]
    annotations = {**said.annotations, **ours.get("annotations", {})}
    added = {key: value for key, value in said.labels.items() if key not in names.MADE_LABELS}
    metadata = {"labels": {**added, **ours["labels"]}, **({"annotations": annotations} if annotations else {})}
    return {**template, "metadata": metadata}


def _pull_secrets(context: Context, settings: Settings) -> dict[str, Any]:
    """Return the Secrets that images are pulled with: the service accounts of the stages are ours and name none."""
    key = "imagePullSecrets"
    ours, template = settings.image_pull_secrets, context.spec.pod_template.spec
    base = {key: [{"name": name} for name in ours]} if ours else {}
    return merged(base, {key: template[key]} if key in template else {})


def token_volume() -> dict[str, Any]:
    """Return the volume with the pod's token, mounted only where a container publishes."""
    sources: list[dict[str, Any]] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    return {"name": "token", "projected": {"sources": sources}}


TOKEN_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - where tokens are mounted, and no token


def config_map_volume(name: str, config_map: str, items: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return a volume with the files of a ConfigMap; `items` are paths by key, None for all keys as they are."""
    chosen = {} if items is None else {"items": [{"key": key, "path": path} for key, path in items.items()]}
    return {"name": name, "configMap": {"name": config_map, **chosen}}


def empty_volume(name: str, **more: object) -> dict[str, Any]:
    """Return a volume that lives as long as the pod."""
    return {"name": name, "emptyDir": dict(more)}


def resources(asked: Resources | None, default: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container's resources: what the job asks for, or else the default."""
    if asked is None:
        return dict(default)
    return {key: value for key, value in (("limits", dict(asked.limits)), ("requests", dict(asked.requests))) if value}


def publishing(
    config_map: str, results: Sequence[str], command: Sequence[str] = (), *, watch: bool = False
) -> list[str]:
    """Return the command that publishes what another command writes; if there is none, what other containers write."""
    sources = [word for path in results for word in ("--from", path)]
    return [
        *KEEPING_SIGTERM,
        "neuroshard",
        "publish",
        "--config-map",
        config_map,
        *sources,
        *(["--watch"] if watch else []),
        *(["--", *command] if command else []),
    ]
