"""The blows of the chaos test hit what they are meant to hit."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from e2e import jobs
from e2e.test_chaos import SCRIBBLES, Chaos, Fate
from neuroshard_api.job.stage_commands import PROGRESS_FILE, STEP_REPORT_FILE
from neuroshard_cluster.errors import ClusterError
from neuroshard_decisions import names
from neuroshard_decisions.observed.results import Unreadable
from neuroshard_operator.observed import parsing

JOB = {"apiVersion": "v1", "kind": "DLRMTrainingJob", "metadata": {"name": "works-0", "uid": "u", "namespace": "n"}}


class Writes:
    """A client of a cluster with one job, which records what is written."""

    def __init__(self) -> None:
        self.created: list[dict[str, Any]] = []
        self.patched: dict[str, Any] = {}

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Return the job."""
        assert (kind, name) == (jobs.KIND, "works-0")
        return JOB

    def create(self, document: dict[str, Any]) -> None:
        """Record an object."""
        self.created.append(json.loads(json.dumps(document)))

    def patch(self, kind: str, name: str, change: dict[str, Any], *, subresource: str = "") -> None:
        """Record a change."""
        assert subresource in {"", "status"}
        self.patched[f"{kind}/{name}"] = change


def chaos_of(kubectl: object, nodes: list[str], seed: int = 0) -> Chaos:
    """Return a chaos over one job that is under way."""
    restarted: list[tuple[str, str]] = []
    cluster = SimpleNamespace(nodes=lambda: nodes, restart=lambda *what: restarted.append(what))
    release: Any = SimpleNamespace(cluster=cluster)
    where, tenant = SimpleNamespace(kubectl=kubectl), SimpleNamespace()
    made = Chaos(release, where, tenant=tenant, at_once=1, api_away_s=0, seed=seed)  # type: ignore[arg-type]
    made.fates.append(Fate(name="works-0", stage="Succeeded"))
    return made


def until(done: Callable[[], object], chaos: Chaos) -> None:
    """Scribble until something was written; the seed decides where to."""
    while not done():
        chaos._scribble()


def test_garbage_passes_for_a_child_that_the_operator_watches() -> None:
    """Without its labels the watch would leave it out, and the blow would hit nothing."""
    kubectl = Writes()
    until(lambda: kubectl.created, chaos_of(kubectl, []))

    [made] = kubectl.created
    made["metadata"]["namespace"] = "n"
    labels = made["metadata"]["labels"]
    assert (labels[names.MANAGED_BY_LABEL], labels[names.JOB_LABEL]) == (names.MANAGED_BY, "works-0")
    assert parsing.config_map(made).meta.owner_uid == "u"


def test_garbage_in_a_report_is_in_files_that_the_operator_reads() -> None:
    """The workers of this test report nothing themselves, so there is no file to overwrite."""
    kubectl = Writes()
    until(lambda: kubectl.patched, chaos_of(kubectl, []))

    [(place, change)] = kubectl.patched.items()
    assert place == f"configmap/{names.report('works-0')}"
    assert set(change["data"]) == {STEP_REPORT_FILE, PROGRESS_FILE}


@pytest.mark.parametrize("text", SCRIBBLES)
def test_every_scribble_is_garbage_to_the_operator(text: str) -> None:
    """None of them is by chance a report, and none is more than it can read."""
    labels = {names.ROLE_LABEL: names.WORKER}
    body = {"kind": "ConfigMap", "metadata": {"name": "r", "labels": labels}, "data": {STEP_REPORT_FILE: text}}

    assert isinstance(parsing.config_map_with_data(body).document, Unreadable)


def test_the_kubelet_of_a_broken_node_stays_down() -> None:
    """A restart would start it long before the node is fixed."""
    chaos = chaos_of(Writes(), ["one", "two"])
    chaos._broken = ("one", 0.0)

    assert {chaos._kill_a_kubelet() for _ in range(20)} == {"kubelet of two"}
    chaos._broken = None
    assert {chaos._kill_a_kubelet() for _ in range(20)} == {"kubelet of one", "kubelet of two"}
    alone = chaos_of(Writes(), ["one"])
    alone._broken = ("one", 0.0)
    with pytest.raises(ClusterError, match="the only node is broken"):
        alone._kill_a_kubelet()


def test_the_pod_that_is_rejected_is_one_that_never_ran() -> None:
    """On the node whose kubelet is stopped meanwhile, which runs again afterwards."""

    def pod(name: str, node: str, **status: Any) -> dict[str, Any]:
        return {"metadata": {"name": name}, "spec": {"nodeName": node}, "status": status}

    class Pods(Writes):
        def list(self, _kind: str, *, selector: str) -> list[dict[str, Any]]:
            """Return a pod that runs, one of another node, and one that is new."""
            assert selector == jobs.ROLE_LABEL
            return [pod("runs", "one", containerStatuses=[{}]), pod("elsewhere", "two"), pod("new", "one")]

    kubectl, calls = Pods(), []
    chaos = chaos_of(kubectl, ["one"])
    chaos._cluster.stop = lambda *what: calls.append(("stop", *what))  # type: ignore[method-assign]
    chaos._cluster.start = lambda *what: calls.append(("start", *what))  # type: ignore[method-assign]
    told = chaos._reject_a_pod()

    assert told == "pod new rejected by the kubelet of one"
    assert kubectl.patched["pod/new"]["status"]["reason"] == "UnexpectedAdmissionError"
    assert calls == [("stop", "kubelet", "one"), ("start", "kubelet", "one")]
