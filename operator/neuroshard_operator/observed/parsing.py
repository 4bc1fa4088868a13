"""Kubernetes objects as the watch brings them, cut down to what decisions need. Pure functions; calls no API."""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from neuroshard_api.job.resource import quantity
from neuroshard_api.job.spec import GROUP
from neuroshard_api.job.training_job import KIND
from neuroshard_api.lifecycle.failures import DISRUPTION, LOG_CHARACTERS
from neuroshard_api.process.printable import printable
from neuroshard_decisions import names
from neuroshard_decisions.observed.objects import (
    ChildConfigMap,
    ChildJob,
    ChildObject,
    ChildPod,
    JobEnd,
    JsonText,
    Meta,
    Node,
    Taint,
    Termination,
    TrainingJobObject,
)
from neuroshard_decisions.observed.results import content_hash, read_result

from neuroshard_operator.observed.bounded import UNREADABLE, problem_of
from neuroshard_operator.observed.json_text import members

Raw = Mapping[str, Any]

_STEPS = {"PodScheduled", "PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"}
"""Conditions that every pod passes through."""
UNSCHEDULABLE = "Unschedulable"
"""Reason of the scheduler for a pod that no node takes."""
_USUAL_WAITING = {"ContainerCreating", "PodInitializing"}
_LAST = datetime.max.replace(tzinfo=UTC)
_FIRST, _LAST_USUAL = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
_NONE_LOST: Mapping[str, str] = MappingProxyType({})
_KEPT_LABELS = (f"{GROUP}/", names.KUEUE_LABEL_PREFIX)


_shared = functools.lru_cache(maxsize=2**16)(str)
"""One object for equal texts. Not sys.intern: what Python 3.12 interns it keeps for ever."""


def training_job(body: Raw) -> TrainingJobObject:
    """Return the custom resource without its managed fields; spec and status come as texts, or as mappings."""
    metadata = body["metadata"]
    problem = str(body.get(UNREADABLE, ""))
    texts = {"spec": b"{}", "status": b"{}"}
    for part in texts:
        text = _json_text(body.get(part))
        found = f"{part}: nests lists and mappings too deep" if text is None else problem_of(part, text)
        problem = problem or found
        if text is not None and not found:
            texts[part] = text
    return TrainingJobObject(
        meta=_meta(body),
        namespace=metadata["namespace"],
        generation=metadata.get("generation", 1),
        annotations={key: value for key, value in _map(metadata, "annotations").items() if key.startswith(GROUP)},
        managed_by=members(texts["spec"], b'"managedBy"'.__eq__).get(b'"managedBy"', b"").decode().strip('"'),
        stored_spec=JsonText.of(texts["spec"]),
        stored_status=JsonText.of(texts["status"]),
        unreadable=problem,
    )


def _json_text(value: object) -> bytes | None:
    """Return the JSON of a value, which is its text already where it is a string. None: it nests too deep."""
    if isinstance(value, str):
        return value.encode(errors="replace")
    try:
        return json.dumps(value or {}).encode()
    except RecursionError:
        return None


def job(body: Raw) -> ChildJob:
    """Return a Job, with the labels that it was made with: those of its pods, which nobody can change once it runs."""
    spec, status = _map(body, "spec"), _map(body, "status")
    meta, made = _meta(body), _labels_of_pods(body)
    labels = {**meta.labels, **{key: value for key, value in made.items() if key.startswith(_KEPT_LABELS)}}
    found = _map(body["metadata"], "labels")
    return ChildJob(
        meta=replace(meta, labels=labels),
        role=labels.get(names.ROLE_LABEL, ""),
        attempt=_number(labels.get(names.ATTEMPT_LABEL, "")) or 0,
        parallelism=int(spec.get("parallelism", 1)),
        completions=spec.get("completions"),
        suspended=bool(spec.get("suspend")),
        active=int(status.get("active") or 0),
        ready=int(status.get("ready") or 0),
        succeeded=int(status.get("succeeded") or 0),
        failed=int(status.get("failed") or 0),
        start_time=timestamp(status.get("startTime")),
        deadline_s=spec.get("activeDeadlineSeconds"),
        outcome=_outcome(_true_conditions(status)),
        least_pods=_number(_map(body["metadata"], "annotations").get(names.LEAST_PODS_ANNOTATION, "")),
        lost_labels={key: value for key, value in made.items() if found.get(key) != value} or _NONE_LOST,
    )


def pod(body: Raw) -> ChildPod:
    """Return a pod."""
    status = _map(body, "status")
    true = _true_conditions(status)
    phase = status.get("phase", "Pending")
    disruption = true.get(DISRUPTION, {})
    role = _label(body, names.ROLE_LABEL)
    main = names.TRAINER if role in names.OF_AN_ATTEMPT else role
    ends = _exit_codes(status)
    return ChildPod(
        meta=_meta(body),
        role=role,
        attempt=_number(_label(body, names.ATTEMPT_LABEL)) or 0,
        index=_number(_label(body, names.POD_INDEX_LABEL)),
        node=_map(body, "spec").get("nodeName") or "",
        placed=timestamp(true.get("PodScheduled", {}).get("lastTransitionTime")),
        phase=phase,
        ready="Ready" in true,
        ended_well=phase == "Succeeded" or (ends.get(main) == 0 if main in ends else set(ends.values()) == {0}),
        exit_code=ends.get(main),
        started=_started(status, main),
        never_ran=phase == "Failed" and not any(_has_run(each) for each in _statuses(status)),
        beside=tuple(name for name in _running(status) if name != main),
        termination=_termination(status, main) or _whole_pod_termination(status),
        conditions={
            _shared(each["type"]): _shared(each["status"])
            for each in status.get("conditions") or ()
            if each["type"] not in _STEPS
        },
        reason=status.get("reason") or "",
        disruption=(disruption.get("reason") or DISRUPTION) if disruption else "",
        waiting=_waiting(status),
    )


def config_map(body: Raw) -> ChildConfigMap:
    """Return a ConfigMap without its data, which anybody may have written and which is read only on demand.

    One without data need not be read.
    """
    return ChildConfigMap(
        meta=_meta(body),
        role=_label(body, names.ROLE_LABEL),
        immutable=bool(body.get("immutable")),
        is_read=not body.get("data") and not body.get("binaryData"),
    )


def config_map_with_data(body: Raw) -> ChildConfigMap:
    """Return a ConfigMap with the meaning of its data in place of the data. Takes up to a second for a large plan."""
    found = config_map(body)
    digest = content_hash(body) if found.role == names.PLAN else ""
    return replace(found, is_read=True, content_hash=digest, document=read_result(found.role, body))


def other(kind: str, body: Raw) -> ChildObject:
    """Return a child of another kind."""
    return ChildObject(kind=kind, meta=_meta(body), content_hash=hash_of(kind, body))


def node(body: Raw) -> Node:
    """Return the facts of a node that decide on its pods and on their hardware."""
    spec = body.get("spec") or {}
    taints = tuple(
        Taint(key=each["key"], value=each.get("value") or "", effect=each["effect"])
        for each in spec.get("taints") or ()
    )
    offered = (body.get("status") or {}).get("allocatable") or {}
    return Node(
        name=body["metadata"]["name"],
        labels=_map(body["metadata"], "labels"),
        taints=taints,
        unschedulable=bool(spec.get("unschedulable")),
        # Extended resources have a prefix and are whole numbers.
        resources={name: int(amount) for name, amount in offered.items() if "/" in name and str(amount).isdecimal()},
        memory_bytes=int(quantity(offered["memory"])) if offered.get("memory") else None,
    )


def unreadable_job(body: Raw, problem: str) -> TrainingJobObject:
    """Return a job of which nothing but its names can be read."""
    metadata = body["metadata"]
    generation = metadata.get("generation")
    return TrainingJobObject(
        meta=names_of(body),
        namespace=str(metadata["namespace"]),
        generation=generation if isinstance(generation, int) else 1,
        unreadable=problem,
    )


def unreadable_pod(body: Raw, problem: str) -> ChildPod:
    """Return a pod of which nothing but its names can be read: it counts as one that lives, and waits for that."""
    labels, owners = body["metadata"].get("labels"), body["metadata"].get("ownerReferences")
    labels = labels if isinstance(labels, Mapping) else {}
    owner: Raw = next((each for each in owners if _is_controller(each)), {}) if isinstance(owners, list) else {}
    return ChildPod(
        meta=replace(names_of(body), owner_uid=str(owner.get("uid", ""))),
        role=str(labels.get(names.ROLE_LABEL, "")),
        attempt=_number(str(labels.get(names.ATTEMPT_LABEL, ""))) or 0,
        phase="Unknown",
        waiting=f"the pod cannot be read: {problem}; hint: delete it",
    )


def names_of(body: Raw) -> Meta:
    """Return the names of an object, and nothing else of it. Raises KeyError, AttributeError or TypeError."""
    metadata = body["metadata"]
    deleted = metadata.get("deletionTimestamp")
    return Meta(
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        resource_version=str(metadata.get("resourceVersion", "")),
        deleted=timestamp(deleted) if isinstance(deleted, str) else None,
    )


def owner_name(body: Raw) -> str:
    """Return the name of the DLRMTrainingJob that controls a child; empty where none does."""
    owner = _controller(body["metadata"])
    return str(owner["name"]) if owner.get("kind") == KIND else ""


def owner_uid(body: Raw) -> str:
    """Return the uid of an object's controller; empty where it has none."""
    return str(_controller(body["metadata"]).get("uid", ""))


def hash_of(kind: str, body: Raw) -> str:
    """Return a hash of what the operator sets on a child, so that an edit by hand shows."""
    if kind == "Role":
        said: object = [
            {key: sorted(rule.get(key) or ()) for key in ("apiGroups", "resources", "resourceNames", "verbs")}
            for rule in body.get("rules") or ()
        ]
    elif kind == "RoleBinding":
        subjects = [
            [subject.get(key) for key in ("kind", "name", "namespace")] for subject in body.get("subjects") or ()
        ]
        said = [subjects, body["roleRef"]["kind"], body["roleRef"]["name"]]
    elif kind == "Service":
        spec = body["spec"]
        ports = [[port.get("name"), port["port"]] for port in spec.get("ports") or ()]
        said = [spec.get("clusterIP"), spec.get("selector"), ports, bool(spec.get("publishNotReadyAddresses"))]
    else:
        said = None
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def timestamp(text: str | None) -> datetime | None:
    """Return the time in Kubernetes' notation; None where there is none, or what is there is no time.

    Kubelets and users write times of their own clocks: those that nothing can be added to are cut to the nearest usual
    one.
    """
    if not text:
        return None
    if text.startswith("0000-"):
        return _FIRST
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.year < _FIRST.year:
        return _FIRST
    return _LAST_USUAL if found.year >= _LAST_USUAL.year else found.replace(tzinfo=found.tzinfo or UTC)


def _meta(body: Raw) -> Meta:
    metadata = body["metadata"]
    owner = _controller(metadata)
    return Meta(
        name=metadata["name"],
        uid=_shared(metadata.get("uid", "")),
        resource_version=metadata.get("resourceVersion", ""),
        owner_uid=_shared(owner.get("uid", "")),
        labels={
            _shared(key): _shared(value)
            for key, value in _map(metadata, "labels").items()
            if key.startswith(_KEPT_LABELS)
        },
        deleted=timestamp(metadata.get("deletionTimestamp")),
        created=timestamp(metadata.get("creationTimestamp")),
    )


def _controller(metadata: Raw) -> Raw:
    """Return the owner reference of an object's controller; empty where it has none."""
    return next((each for each in metadata.get("ownerReferences") or () if _is_controller(each)), {})


def _is_controller(owner: object) -> bool:
    return isinstance(owner, Mapping) and bool(owner.get("controller"))


def _labels_of_pods(body: Raw) -> dict[str, str]:
    """Return the labels that the operator gave a Job and its pods: its template also has the user's."""
    labels = _map(_map(_map(body, "spec").get("template") or {}, "metadata"), "labels")
    return {_shared(key): _shared(value) for key, value in labels.items() if key in names.MADE_LABELS}


def _map(body: Raw, key: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = body.get(key) or {}
    return dict(found)


def _label(body: Raw, key: str) -> str:
    return str(_map(body["metadata"], "labels").get(key, ""))


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _true_conditions(status: Raw) -> dict[str, Raw]:
    return {each["type"]: each for each in status.get("conditions") or () if each["status"] == "True"}


def _outcome(true: Mapping[str, Raw]) -> JobEnd | None:
    """Return the outcome of a Job. A Job that is bound to fail counts as failed before its last pod is gone."""
    for kind, succeeded in (("Complete", True), ("Failed", False), ("FailureTarget", False)):
        if kind in true:
            said = true[kind]
            time = timestamp(said.get("lastTransitionTime"))
            return JobEnd(succeeded=succeeded, reason=said.get("reason", ""), message=_words(said), time=time)
    return None


def _words(said: Raw) -> str:
    """Return a message of others, which goes into statuses and events; kubectl shows those as they are."""
    return printable(said.get("message", ""))


def _statuses(status: Raw) -> Sequence[Raw]:
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def _exit_codes(status: Raw) -> dict[str, int | None]:
    """Return the exit codes of the containers by name; None of those that have not ended."""
    states = ((each["name"], _map(each, "state")) for each in status.get("containerStatuses") or ())
    return {name: (state.get("terminated") or {}).get("exitCode") for name, state in states}


def _has_run(container: Raw) -> bool:
    state, last = _map(container, "state"), _map(container, "lastState")
    return bool(state.get("running") or state.get("terminated") or last) or bool(container.get("restartCount"))


def _started(status: Raw, main: str) -> datetime | None:
    """Return the start of the stage's container."""
    states = (_map(each, "state") for each in status.get("containerStatuses") or () if each["name"] == main)
    found = (state.get("running") or state.get("terminated") for state in states)
    return next((timestamp(each.get("startedAt")) for each in found if each), None)


def _running(status: Raw) -> list[str]:
    """Return the names of the containers that run, without those that the kubelet ends with the others."""
    return [
        each["name"] for each in status.get("containerStatuses") or () if _map(each, "state").get("running") is not None
    ]


def _termination(status: Raw, main: str) -> Termination | None:
    """Return the end of the stage's container with an error; of a pod that failed, of the container that failed first.

    While the pod lives, other containers may fail: they are no part of the stage.
    """
    ended = [
        Termination(
            container=each["name"],
            exit_code=state["exitCode"],
            reason=state.get("reason", ""),
            message=_words(state)[-LOG_CHARACTERS:],
            time=timestamp(state.get("finishedAt")),
        )
        for each in _statuses(status)
        if (state := _map(each, "state").get("terminated")) and state.get("exitCode")
    ]
    if status.get("phase") != "Failed":
        ended = [each for each in ended if each.container == main]
    return min(ended, key=lambda each: (each.container != main, each.time or _LAST, each.container), default=None)


def _whole_pod_termination(status: Raw) -> Termination | None:
    """Return the end of a pod that failed as a whole, as one that was evicted before any container reported."""
    if status.get("phase") != "Failed":
        return None
    return Termination(
        container="",
        exit_code=None,
        reason=status.get("reason", ""),
        message=_words(status)[-LOG_CHARACTERS:],
        time=None,
    )


def _waiting(status: Raw) -> str:
    for each in status.get("conditions") or ():
        if each["type"] == "PodScheduled" and each["status"] == "False":
            return f"{each.get('reason', UNSCHEDULABLE)}: {_words(each) or 'no node takes the pod'}"
    for each in _statuses(status):
        waiting = _map(each, "state").get("waiting") or {}
        if waiting and waiting.get("reason") not in _USUAL_WAITING:
            return f"container {each['name']}: {waiting.get('reason')}: {_words(waiting)}".rstrip(": ")
    return ""
