"""Whether a node may take a pod, by the rules of Kubernetes' scheduler that do not depend on other pods. Calls no API.

Node selector, required node affinity, taints, and cordons. What is free on a node is not asked: a busy node of the
right kind will be free again. The pod's spec comes from the user: what the API server would reject counts as not given.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from neuroshard_decisions.observed.objects import Node, Taint

UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""What a cordon means to a pod."""
_LIFECYCLE = "node.kubernetes.io/"
_REPELS = {"NoSchedule", "NoExecute"}


def may_take(node: Node, pod_spec: Mapping[str, Any], *, resource: str, ever: bool = False) -> bool:
    """Return whether the scheduler may place a pod on a node.

    Args:
        node: of the cluster.
        pod_spec: of the pod.
        resource: extended resource of the pod, or empty. A taint with its name counts as tolerated: admission plugins
            add that toleration, and without it no node with the resource would take the pod.
        ever: leave out what passes: cordons and taints of nodes that are not ready.
    """
    selector = _mapping(pod_spec.get("nodeSelector"))
    if any(node.labels.get(key) != value for key, value in selector.items()):
        return False
    if not _is_allowed(node, required_affinity(pod_spec)):
        return False
    tolerations = list(_mappings(pod_spec.get("tolerations")))
    taints = [*node.taints, *([UNSCHEDULABLE] if node.unschedulable else [])]
    return all(
        taint.effect not in _REPELS
        or (resource and taint.key == resource)
        or (ever and taint.key.startswith(_LIFECYCLE))
        or any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


def required_affinity(pod_spec: Mapping[str, Any]) -> Sequence[Mapping[str, Any]] | None:
    """Return the node selector terms that a pod requires, of which one must hold; None where it requires none."""
    affinity = _mapping(_mapping(pod_spec.get("affinity")).get("nodeAffinity"))
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if not isinstance(required, Mapping):
        return None
    return list(_mappings(required.get("nodeSelectorTerms")))


def spreads(pod_spec: Mapping[str, Any]) -> bool:
    """Return whether pods require to be on different nodes: anti-affinity by host name, which is to each other."""
    affinity = _mapping(_mapping(pod_spec.get("affinity")).get("podAntiAffinity"))
    terms = _mappings(affinity.get("requiredDuringSchedulingIgnoredDuringExecution"))
    return any(term.get("topologyKey") == "kubernetes.io/hostname" for term in terms)


def _is_allowed(node: Node, terms: Sequence[Mapping[str, Any]] | None) -> bool:
    return terms is None or any(_holds(term, node) for term in terms)


def _holds(term: Mapping[str, Any], node: Node) -> bool:
    """Whether all of a term's requirements hold; an empty term holds of no node."""
    expressions = list(_mappings(term.get("matchExpressions")))
    fields = list(_mappings(term.get("matchFields")))
    if not expressions and not fields:
        return False
    return all(_matches(each, node.labels) for each in expressions) and all(
        _matches(each, {"metadata.name": node.name}) for each in fields
    )


def _matches(requirement: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    test = _OPERATORS.get(str(requirement.get("operator")))
    values = requirement.get("values")
    return test is not None and test(
        labels.get(str(requirement.get("key"))), values if isinstance(values, Sequence) else ()
    )


def _compared(value: str | None, values: Sequence[Any]) -> int | None:
    """Return the difference of a label and the one value that it is compared with; None where one is not an integer."""
    try:
        return int(value or "") - int(values[0])
    except (ValueError, TypeError, IndexError):
        return None


_OPERATORS: Mapping[str, Callable[[str | None, Sequence[Any]], bool]] = {
    "In": lambda value, values: value is not None and value in values,
    "NotIn": lambda value, values: value not in values,
    "Exists": lambda value, _values: value is not None,
    "DoesNotExist": lambda value, _values: value is None,
    "Gt": lambda value, values: (_compared(value, values) or 0) > 0,
    "Lt": lambda value, values: (_compared(value, values) or 0) < 0,
}
"""A requirement's operators, on the node's value (None: no such label) and the requirement's values."""


def _tolerates(toleration: Mapping[str, Any], taint: Taint) -> bool:
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if (toleration.get("effect") or taint.effect) != taint.effect:
        return False
    if operator == "Exists":
        return key in {"", taint.key}
    return operator == "Equal" and key == taint.key and (toleration.get("value") or "") == taint.value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    return (each for each in (value if isinstance(value, list) else []) if isinstance(each, Mapping))
