"""What a profiler's Job has more where nodes measure the network between them: pods on different nodes that meet."""

from collections.abc import Mapping
from typing import Any

from neuroshard_decisions import names
from neuroshard_decisions.context import Context
from neuroshard_decisions.hardware import network_annotations, network_environment

from neuroshard_operator.children.headless import headless_service
from neuroshard_operator.children.overlay import merged
from neuroshard_operator.children.pods import NODE_RANK
from neuroshard_operator.writes import Manifest

HOSTNAME = "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def profiler_service(context: Context) -> Manifest:
    """Return the headless Service of the profilers."""
    return headless_service(context, names.profiler_service(context.name), names.PROFILER)


def endpoint(context: Context, job: str) -> str:
    """Return the address of pod 0 of a profiler's Job."""
    return f"{names.host(job, 0, names.profiler_service(context.name))}:{context.spec.experimental.rendezvous.port}"


def over_nodes(context: Context, job: Manifest, *, profile_key: str, num_nodes: int) -> dict[str, Any]:
    """Return a profiler's Job as an Indexed Job of one pod on each of several nodes, in the workers' network.

    What lets the workers' containers use the network counts for the profiler's: variables, annotations, capabilities.
    """
    template = job["spec"]["template"]
    pod = template["spec"]
    [main] = pod["containers"]
    network = {
        "env": [*main["env"], NODE_RANK, *network_environment(context.spec)],
        "ports": [{"name": "rendezvous", "containerPort": context.spec.experimental.rendezvous.port}],
        "securityContext": merged(main["securityContext"], _security_of_workers(context.spec.pod_template.spec)),
    }
    labels = {names.JOB_LABEL: context.name, names.PROFILE_KEY_LABEL: names.short(profile_key)}
    spec = {
        **pod,
        "subdomain": names.profiler_service(context.name),
        "affinity": _apart(pod.get("affinity") or {}, labels),
        "containers": [{**main, **network}],
    }
    ours = template["metadata"]
    metadata = {**ours, "annotations": {**ours.get("annotations", {}), **network_annotations(context.spec)}}
    indexed = {"completionMode": "Indexed", "completions": num_nodes, "parallelism": num_nodes}
    return {**job, "spec": {**job["spec"], **indexed, "template": {"metadata": metadata, "spec": spec}}}


def _apart(affinity: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return an affinity with the rule that pods with these labels are on different nodes."""
    against = affinity.get("podAntiAffinity") or {}
    term = {"topologyKey": HOSTNAME, "labelSelector": {"matchLabels": dict(labels)}}
    return {**affinity, "podAntiAffinity": {**against, _REQUIRED: [*(against.get(_REQUIRED) or []), term]}}


def _security_of_workers(pod_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the security context that the template gives the trainer's container, such as IPC_LOCK for RDMA."""
    containers = pod_spec.get("containers")
    entries = [each for each in (containers if isinstance(containers, list) else []) if isinstance(each, Mapping)]
    found = next((each.get("securityContext") for each in entries if each.get("name") == names.TRAINER), None)
    return found if isinstance(found, Mapping) else {}
