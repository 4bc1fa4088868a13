"""What a person would look at after a failure in one namespace: objects, events, logs. Only reads the cluster."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from neuroshard_cluster.errors import ClusterError
from neuroshard_cluster.kubectl import Kubectl

KINDS = "pods,jobs,services,configmaps"
RESOURCES = ("dlrmtrainingjobs.training.neuroshard.dev", "jobsets.jobset.x-k8s.io", "workloads.kueue.x-k8s.io")
"""Custom resources, which a cluster may not know."""
EVENT_COLUMNS = "TIME:.lastTimestamp,TYPE:.type,REASON:.reason,OBJECT:.involvedObject.name,MESSAGE:.message"
SHOWN_LINES = 200
"""Of events, and of each log: where the output is all that is kept of a run, it tells as much as it can."""
SHOWN_CONTAINERS = 6
CALL_TIMEOUT_S = 60.0


def _ask(kubectl: Kubectl, *words: str) -> str:
    """Return the output of kubectl, or its failure: a diagnosis continues."""
    try:
        return kubectl(*words, timeout_s=CALL_TIMEOUT_S)
    except ClusterError as error:
        return f"{error}\n"


def _objects(kubectl: Kubectl, how: str) -> str:
    """Return the objects of all kinds, without a word on resources that are not defined or that nobody made."""
    found = [_ask(kubectl, "get", kind, f"--output={how}", "--ignore-not-found") for kind in RESOURCES]
    known = [each for each in found if "the server doesn't have a resource type" not in each]
    return "\n".join([*filter(None, known), _ask(kubectl, "get", KINDS, f"--output={how}")])


def collect(kubectl: Kubectl, audit_log: Path, folder: Path) -> None:
    """Write everything about the client's namespace into `folder`, one file a subject."""
    files = {
        "objects.txt": _objects(kubectl, "wide"),
        "objects.yaml": _objects(kubectl, "yaml"),
        "events.txt": _ask(
            kubectl, "get", "events", "--sort-by=.lastTimestamp", f"--output=custom-columns={EVENT_COLUMNS}"
        ),
        "nodes.txt": _ask(kubectl, "describe", "nodes"),
        "audit.jsonl": "".join(audited(audit_log, kubectl.namespace)),
    }
    for container, text in _logs(kubectl):
        files[f"log-{container}.txt"] = text
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def _logs(kubectl: Kubectl) -> Iterator[tuple[str, str]]:
    try:
        pods = kubectl.list("pods")
    except ClusterError:
        return
    for pod in pods:
        name = pod["metadata"]["name"]
        for container in pod["spec"]["containers"]:
            yield f"{name}-{container['name']}", _ask(kubectl, "logs", name, f"--container={container['name']}")


def audited(audit_log: Path, namespace: str) -> Iterator[str]:
    """Yield the lines of the audit log about one namespace."""
    if not audit_log.exists():
        return
    with audit_log.open() as lines:
        for line in lines:
            if not line.endswith("\n"):  # it is being written
                return
            about: Mapping[str, str] = json.loads(line).get("objectRef") or {}
            if about.get("namespace") == namespace:
                yield line


def sections(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the sections of the failure message: a title and the end of each subject."""
    yield "objects", (folder / "objects.txt").read_text()
    for path in [folder / "events.txt", *sorted(folder.glob("log-*.txt"))[:SHOWN_CONTAINERS]]:
        yield path.stem, "\n".join(path.read_text().splitlines()[-SHOWN_LINES:])
    yield "everything", str(folder)
