"""Which nodes may take a pod, as Kubernetes' scheduler decides it."""

from typing import Any

import pytest
from neuroshard_decisions.observed.objects import Node, Taint
from neuroshard_decisions.scheduling import may_take

NODE = Node(name="n1", labels={"zone": "a", "gpus": "8"}, taints=(Taint(key="team", value="ads", effect="NoSchedule"),))
PLAIN = Node(name="n1", labels={"zone": "a", "gpus": "8"})


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's spec that requires one of several terms."""
    return {
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
        }
    }


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    """Return a term with one requirement."""
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("pod_spec", "expected"),
    [
        ({}, True),
        ({"nodeSelector": {"zone": "a"}}, True),
        ({"nodeSelector": {"zone": "b"}}, False),
        (affinity(expression("zone", "In", "a", "b")), True),
        (affinity(expression("zone", "In", "b")), False),
        (affinity(expression("zone", "NotIn", "b")), True),
        (affinity(expression("other", "NotIn", "b")), True),
        (affinity(expression("zone", "NotIn", "a")), False),
        (affinity(expression("zone", "Exists")), True),
        (affinity(expression("other", "Exists")), False),
        (affinity(expression("other", "DoesNotExist")), True),
        (affinity(expression("gpus", "Gt", "7")), True),
        (affinity(expression("gpus", "Gt", "8")), False),
        (affinity(expression("gpus", "Lt", "9")), True),
        (affinity(expression("other", "Lt", "9")), False),
        (affinity(expression("zone", "Like", "a")), False),
        (affinity(expression("zone", "In", "b"), expression("zone", "In", "a")), True),
        (affinity({}), False),
        (affinity(), False),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}), True),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n2"]}]}), False),
        ({"nodeSelector": ["a"], "affinity": "a", "tolerations": {"key": "a"}}, True),
    ],
)
def test_selectors_and_required_affinity_choose_nodes(pod_spec: dict[str, Any], *, expected: bool) -> None:
    """One of the terms must hold with all its requirements; what makes no sense is left to the API server."""
    assert may_take(PLAIN, pod_spec, resource="") is expected


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "team", "value": "ads"}, True),
        ({"key": "team", "value": "ads", "effect": "NoSchedule"}, True),
        ({"key": "team", "value": "ads", "effect": "NoExecute"}, False),
        ({"key": "team", "value": "search"}, False),
        ({"key": "team", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "team", "operator": "Gt", "value": "1"}, False),
    ],
)
def test_a_taint_needs_a_toleration(toleration: dict[str, Any], *, expected: bool) -> None:
    """Of its key, value and effect; an empty key tolerates all."""
    assert may_take(NODE, {"tolerations": [toleration]}, resource="") is expected
    assert not may_take(NODE, {}, resource="")


def test_a_preference_keeps_nobody_off() -> None:
    """The scheduler only avoids such nodes."""
    avoided = Node(name="n", labels={}, taints=(Taint(key="team", effect="PreferNoSchedule"),))

    assert may_take(avoided, {}, resource="")
