"""Who may write a stage's result: a ServiceAccount, a Role for one ConfigMap, the binding, and that ConfigMap."""

from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_decisions import names
from neuroshard_decisions.actions import Event, EventReason
from neuroshard_decisions.context import Context
from neuroshard_decisions.observed.objects import ChildObject

from neuroshard_operator.children.metadata import metadata
from neuroshard_operator.observed.parsing import hash_of
from neuroshard_operator.writes import AnyWrite, Create, Manifest, Restore

RBAC_GROUP = "rbac.authorization.k8s.io"


def access(context: Context, role: str, result: str) -> list[Manifest]:
    """Return the RBAC objects that let a role's pods write the ConfigMap `result` and nothing else."""
    name = names.account(context.name, role)
    may = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [result], "verbs": ["patch"]}
    subject = {"kind": "ServiceAccount", "name": name, "namespace": context.observed.job.namespace}
    reference = {"apiGroup": RBAC_GROUP, "kind": "Role", "name": name}
    of_result = {names.RESULT_LABEL: names.short(names.key_of(result))}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": metadata(context, name, role),
            "automountServiceAccountToken": False,
        },
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "Role",
            "metadata": metadata(context, name, role, of_result),
            "rules": [may],
        },
        {
            "apiVersion": f"{RBAC_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": metadata(context, name, role),
            "subjects": [subject],
            "roleRef": reference,
        },
        empty_result(context, role, result),
    ]


def empty_result(context: Context, role: str, name: str) -> Manifest:
    """Return the ConfigMap that a stage's pods fill; it is made empty, for a Role cannot allow making only one."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(context, name, role)}


def ensured(context: Context, manifests: Sequence[Manifest]) -> tuple[tuple[AnyWrite, ...], tuple[Event, ...]]:
    """Return the actions that create or restore these children, and their events; none where all are right."""
    actions: list[AnyWrite] = []
    events: list[Event] = []
    for manifest in manifests:
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if not _is_there(context, kind, name):
            actions.append(Create(manifest=manifest))
        elif _is_edited(context, kind, name, manifest):
            actions.append(Restore(manifest=manifest))
            if _is_for_another_result(context, kind, name, manifest):
                continue  # that of the plan before: nobody edited it
            events.append(Event(reason=EventReason.CHILD_REPAIRED, message=f"{kind} {name} was edited and is restored"))
    return tuple(actions), tuple(events)


def _is_there(context: Context, kind: str, name: str) -> bool:
    if kind == "ConfigMap":
        return context.config_map(name) is not None
    return _hash_of_child(context, kind, name) is not None


def _is_edited(context: Context, kind: str, name: str, manifest: Mapping[str, Any]) -> bool:
    return kind != "ConfigMap" and _hash_of_child(context, kind, name) != hash_of(kind, manifest)


def _is_for_another_result(context: Context, kind: str, name: str, manifest: Mapping[str, Any]) -> bool:
    child = _child(context, kind, name)
    made_for = None if child is None else child.meta.labels.get(names.RESULT_LABEL)
    return made_for is not None and made_for != manifest["metadata"]["labels"].get(names.RESULT_LABEL)


def _hash_of_child(context: Context, kind: str, name: str) -> str | None:
    child = _child(context, kind, name)
    return None if child is None else child.content_hash


def _child(context: Context, kind: str, name: str) -> ChildObject | None:
    for child in context.observed.objects:
        if (child.kind, child.meta.name, child.meta.owner_uid) == (kind, name, context.uid):
            return child
    return None
