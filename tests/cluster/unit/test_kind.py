import os
import tarfile
from collections.abc import Sequence
from pathlib import Path
from signal import Signals
from typing import Any

import pytest
import yaml
from neuroshard_cluster import kind, kind_host, node_image, waiting
from neuroshard_cluster.engine import Engine
from neuroshard_cluster.errors import CommandError, HostError, UnknownError
from neuroshard_cluster.folders import Home
from neuroshard_cluster.images import PROBE, TRAINER
from neuroshard_cluster.kind import KindCluster, NodeImage, configuration, pid_in_node


class Calls:
    """A cluster's command lines, recorded instead of run."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.answer = ""
        self.kubeconfig = Path()

    def __call__(self, *words: object, **_: object) -> str:
        """Record one line."""
        self.lines.append(" ".join(str(word) for word in words))
        return self.answer


@pytest.fixture
def engine_calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What a cluster with two workers asks of its engine."""
    calls = Calls()
    monkeypatch.setattr(Engine, "run", lambda _, *words, **given: calls(*words, *given.values()))
    monkeypatch.setattr(Engine, "storage", Path())
    monkeypatch.setattr(KindCluster, "_engine", Engine(program="docker", reason="", environment={}))
    monkeypatch.setattr(KindCluster, "nodes", lambda _: ["dev-worker", "dev-worker2"])
    return calls


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Return the archive of an image without layers."""
    archive = tmp_path / "trainer-0123.tar"
    with tarfile.open(archive, "w"):
        return archive


def roles(nodes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the roles of a configuration's nodes."""
    return [node["role"] for node in nodes]


def test_the_configuration_has_as_many_workers_as_were_asked_for(tmp_path: Path) -> None:
    """One control plane, whose audit log goes to the cluster's folder, and the workers."""
    document = yaml.safe_load(configuration(tmp_path / "audit", workers=2, cgroup_v1=False))

    assert roles(document["nodes"]) == ["control-plane", "worker", "worker"]
    assert str(tmp_path / "audit") in [mount["hostPath"] for mount in document["nodes"][0]["extraMounts"]]
    assert "kubeadmConfigPatches" not in document


def test_kubelets_run_on_the_first_version_of_control_groups(tmp_path: Path) -> None:
    """Kubelets refuse it by default; machines that have no other can still test."""
    document = yaml.safe_load(configuration(tmp_path, workers=1, cgroup_v1=True))

    (patch,) = document["kubeadmConfigPatches"]
    assert yaml.safe_load(patch) == {"kind": "KubeletConfiguration", "failCgroupV1": False}


def test_images_go_to_workers_alone_and_once(tmp_path: Path, engine_calls: Calls, archive: Path) -> None:
    """The control plane runs none of these pods, and a copy of 4 GB is not made twice, nor kept packed."""
    cluster = KindCluster("dev", Home(root=tmp_path))

    cluster.load_images([archive])
    cluster.load_images([archive])

    load = "ctr --namespace k8s.io images import --local --discard-unpacked-layers -"
    assert engine_calls.lines == [
        f"exec --interactive {node} {load} {archive}" for node in ("dev-worker", "dev-worker2")
    ]


def test_a_changed_archive_is_loaded_again(tmp_path: Path, engine_calls: Calls, archive: Path) -> None:
    """An image that was built again has another archive, even under the same name."""
    cluster = KindCluster("dev", Home(root=tmp_path))
    cluster.load_images([archive])
    archive.touch()

    cluster.load_images([archive])

    assert len(engine_calls.lines) == 4


def test_a_disk_that_is_too_small_for_an_image_stops_the_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_calls: Calls, archive: Path
) -> None:
    """No worker gets half an image, and the message names image and workers."""
    monkeypatch.setattr(kind_host, "SPARE_DISK_BYTES", 2**60)

    with pytest.raises(HostError, match=r"needed for trainer-0123 on 2 workers: .*\nhint: free some space"):
        KindCluster("dev", Home(root=tmp_path)).load_images([archive])

    assert engine_calls.lines == []


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """What a cluster asks of its API server and of kind, on a machine that can run it."""
    calls = Calls()
    calls.kubeconfig = tmp_path / "clusters" / "kind-dev" / "kubeconfig"
    monkeypatch.setattr(KindCluster, "kubectl", calls)
    monkeypatch.setattr(KindCluster, "_containers", staticmethod(lambda *_: []))
    monkeypatch.setattr(KindCluster, "_kind", lambda _, *words, **__: calls("kind", *words[:2]))
    monkeypatch.setattr(KindCluster, "_node_image", lambda *_: NodeImage(name="kind-node:test"))
    monkeypatch.setattr(KindCluster, "_give_gpus", lambda _, node: calls("gpus", node))
    monkeypatch.setattr(kind, "check_kind_host", lambda *_, **__: None)
    monkeypatch.setattr(kind, "check_builds", lambda *_, **__: None)
    monkeypatch.setattr(KindCluster, "_has_registry", False)
    monkeypatch.setattr(kind, "require_disk", lambda *_: None)
    return calls


@pytest.mark.usefixtures("engine_calls")
def test_up_waits_for_every_worker_before_it_gives_gpus(tmp_path: Path, kubectl: Calls) -> None:
    """Kind itself waits for the control plane alone, and tests that follow would find workers that are not Ready."""
    cluster = KindCluster("dev", Home(root=tmp_path))

    cluster.up(nodes=2, images=[], say=print)

    assert kubectl.lines.pop(0) == "kind create cluster"
    assert kubectl.lines[0].startswith("wait --for=condition=Ready node --all --timeout=")
    assert [line for line in kubectl.lines if line.startswith("gpus")] == ["gpus dev-worker", "gpus dev-worker2"]
    assert cluster.audit_log.exists()  # made by this user, who could not read one that the API server made


def test_a_worker_is_asked_for_its_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_calls: Calls) -> None:
    """A test that needs an image is skipped where a worker lacks it, with either engine."""
    monkeypatch.setattr(engine_calls, "answer", f"{TRAINER.tag}\n")
    cluster = KindCluster("dev", Home(root=tmp_path))

    assert cluster.has_image(TRAINER, "dev-worker")
    assert not cluster.has_image(PROBE, "dev-worker")
    with pytest.raises(UnknownError, match="has no node 'other'"):
        cluster.has_image(PROBE, "other")


def test_adding_a_node_names_what_to_do_instead(tmp_path: Path) -> None:
    """The nodes of a kind cluster are fixed when it is made."""
    with pytest.raises(HostError, match="make cluster-up NODES=4"):
        KindCluster("dev", Home(root=tmp_path)).add_node("a100")


def test_a_restarted_api_server_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`restart` returns when the API server answers again, as it does on a local cluster."""
    engine, kubectl = Calls(), Calls()
    monkeypatch.setattr(KindCluster, "_in_control_plane", lambda _, *words: engine(*words))
    monkeypatch.setattr(KindCluster, "kubectl", kubectl)
    monkeypatch.setattr(kind, "eventually", lambda _, reached, **__: reached())

    KindCluster("dev", Home(root=tmp_path)).restart("kube-apiserver")

    assert engine.lines == ["pkill --signal=KILL --exact kube-apiserver"]
    assert kubectl.lines == ["get --raw=/readyz"]


def test_without_an_engine_there_is_nothing_to_take_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`down` is harmless where no engine is, and removes the folder that a failed `up` left."""
    monkeypatch.setenv("PATH", str(tmp_path))
    home = Home(root=tmp_path / "home")
    left = home.clusters / "kind-dev"
    left.mkdir(parents=True)

    KindCluster("dev", home).down()

    assert not left.exists()


def test_the_pid_in_a_node_is_the_last_but_one() -> None:
    """From this machine inward, whatever is nested between: its own, the node's, the container's."""
    assert pid_in_node("Name:\tpython\nNSpid:\t41210\t1734\t1\n") == "1734"
    assert pid_in_node("Name:\tpython\nNSpid:\t97000\t41210\t1734\t1\n") == "1734"


def test_a_signal_is_sent_from_within_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_calls: Calls
) -> None:
    """A process of a pod belongs to another user, whom only root may disturb; the engine may."""
    monkeypatch.setattr(kind, "pid_in_node", lambda _: "1734")

    KindCluster("dev", Home(root=tmp_path)).send_signal(Signals.SIGSTOP, os.getpid(), "dev-worker")

    assert engine_calls.lines == ["exec dev-worker kill -19 1734"]


@pytest.mark.usefixtures("engine_calls")
def test_a_signal_to_a_process_that_has_ended_is_no_failure_of_the_engine(tmp_path: Path) -> None:
    """As on a local cluster, callers get a ProcessLookupError."""
    with pytest.raises(ProcessLookupError, match="process 99999999 has ended"):
        KindCluster("dev", Home(root=tmp_path)).send_signal(Signals.SIGCONT, 99999999, "dev-worker")


def test_a_killed_node_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_calls: Calls) -> None:
    """It is used again once it is Ready, and has its GPUs by then."""
    kubectl = Calls()
    monkeypatch.setattr(KindCluster, "kubectl", kubectl)
    monkeypatch.setattr(KindCluster, "_give_gpus", lambda _, node: kubectl("gpus", node))
    cluster = KindCluster("dev", Home(root=tmp_path))

    cluster.kill_node("dev-worker2")
    cluster.revive_node("dev-worker2")

    assert engine_calls.lines == ["kill dev-worker2", "start dev-worker2"]
    assert kubectl.lines == ["wait --for=condition=Ready node/dev-worker2 --timeout=120s", "gpus dev-worker2"]
    with pytest.raises(UnknownError, match="has no node 'other'"):
        cluster.kill_node("other")


def test_an_image_that_docker_built_is_saved_where_up_does_not_delete_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubectl: Calls
) -> None:
    """Every `up` builds; what is unchanged is neither saved nor loaded a second time."""
    digest, loaded = "sha256:0123456789abcdef", []

    def docker(_: Engine, verb: str, *words: object, stdin: Path | None = None) -> str:
        if verb == "save":
            tarfile.open(str(words[0]).removeprefix("--output="), "w").close()
        if stdin is not None:
            loaded.append(stdin.name)
        return digest if verb == "image" else ""

    monkeypatch.setattr(Engine, "run", docker)
    monkeypatch.setattr(Engine, "storage", tmp_path)
    monkeypatch.setattr(KindCluster, "_engine", Engine(program="docker", reason="", environment={}))
    monkeypatch.setattr(KindCluster, "_has_registry", True)
    monkeypatch.setattr(KindCluster, "nodes", lambda _: ["dev-worker"])

    KindCluster("dev", Home(root=tmp_path)).up(nodes=1, images=[PROBE], say=print)
    kubectl.kubeconfig.touch()
    monkeypatch.setattr(KindCluster, "_containers", staticmethod(lambda *_: ["dev-worker"]))
    KindCluster("dev", Home(root=tmp_path)).up(nodes=1, images=[PROBE], say=print)
    first = list(loaded)
    digest = "sha256:fedcba9876543210"
    KindCluster("dev", Home(root=tmp_path)).up(nodes=1, images=[PROBE], say=print)

    assert len(first) == 1
    assert len(loaded) == 2
    assert [path.name for path in (tmp_path / "images").iterdir()] == [loaded[1]]


@pytest.mark.usefixtures("engine_calls")
def test_a_cluster_that_was_not_completed_is_completed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubectl: Calls
) -> None:
    """An `up` that was ended between kind and the labels left nodes without GPUs, on which no job would start."""
    monkeypatch.setattr(KindCluster, "_containers", staticmethod(lambda *_: ["dev-worker"]))
    kubectl.kubeconfig.parent.mkdir(parents=True)
    kubectl.kubeconfig.touch()
    cluster = KindCluster("dev", Home(root=tmp_path))

    cluster.up(nodes=2, images=[], say=print)
    asked = list(kubectl.lines)
    cluster.up(nodes=2, images=[], say=print)

    assert [line for line in asked if line.startswith("gpus")] == ["gpus dev-worker", "gpus dev-worker2"]
    assert kubectl.lines == asked


@pytest.mark.usefixtures("engine_calls")
def test_a_half_made_cluster_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubectl: Calls) -> None:
    """Kind writes the kubeconfig last; containers without one are of an `up` that was ended."""
    monkeypatch.setattr(KindCluster, "_containers", staticmethod(lambda *_: ["dev-worker"]))

    KindCluster("dev", Home(root=tmp_path)).up(nodes=2, images=[], say=print)

    assert [line for line in kubectl.lines if line.startswith("kind")] == ["kind delete cluster", "kind create cluster"]


def test_a_stopped_api_server_is_awaited_until_it_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process ends some time after its manifest is gone; an outage begins when it does."""
    answers = iter(["ok", "ok"])
    asked: list[str] = []

    def readyz(*words: str) -> str:
        asked.append(" ".join(words))
        try:
            return next(answers)
        except StopIteration:
            raise CommandError("connection refused") from None

    monkeypatch.setattr(KindCluster, "_in_control_plane", lambda *_: None)
    monkeypatch.setattr(KindCluster, "kubectl", staticmethod(readyz))
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.0)

    KindCluster("dev", Home(root=tmp_path)).stop("kube-apiserver")

    assert asked == ["get --raw=/readyz"] * 3


class DownCalls(Calls):
    """An engine with these nodes of kind's, and a network to which a stranger is attached or not."""

    def __init__(self, containers: dict[str, str], *, stranger: bool = False) -> None:
        super().__init__()
        self.containers = containers
        self.stranger = stranger

    def __call__(self, *words: object, **given: object) -> str:
        """Answer one line."""
        super().__call__(*words, **given)
        line = self.lines[-1]
        if line.startswith("ps"):
            cluster = line.partition("io.x-k8s.kind.cluster")[2].removeprefix("=")
            return "\n".join(each for each, owner in self.containers.items() if cluster in ("", owner))
        if line == "network rm kind" and self.stranger:
            raise CommandError("network kind has active endpoints")
        return "kind" if line.startswith("network ls") else ""


def taken_down(monkeypatch: pytest.MonkeyPatch, home: Home, calls: DownCalls) -> list[str]:
    """Take the cluster `dev` down and return what was asked, of kind too."""

    def delete(_: KindCluster, *words: str) -> str:
        calls.lines.append(" ".join(("kind", *words)))
        calls.containers.clear()
        return ""

    monkeypatch.setattr(Engine, "run", lambda _, *words: calls(*words))
    monkeypatch.setattr(KindCluster, "_engine", Engine(program="docker", reason="", environment={}))
    monkeypatch.setattr(KindCluster, "_kind", delete)
    KindCluster("dev", home).down()
    return [line for line in calls.lines if not line.startswith(("ps", "network ls"))]


def test_containers_are_deleted_though_kind_is_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of kind may have been pinned since `up`; the containers tell that there is something."""
    asked = taken_down(monkeypatch, Home(root=tmp_path), DownCalls({"dev-worker": "dev"}))

    assert asked == ["kind delete cluster --name=dev", "network rm kind"]


def test_without_containers_kind_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have to be built first; a cluster of another name keeps the network."""
    assert taken_down(monkeypatch, Home(root=tmp_path), DownCalls({"other-worker": "other"})) == []


def test_a_network_that_others_use_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`down` goes on, and the cluster's folder goes."""
    home = Home(root=tmp_path)
    (home.clusters / "kind-dev").mkdir(parents=True)

    taken_down(monkeypatch, home, DownCalls({"dev-worker": "dev"}, stranger=True))

    assert not (home.clusters / "kind-dev").exists()


def test_a_cluster_whose_engine_does_not_answer_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its containers are there when the engine starts again, whatever other engine answers meanwhile."""
    monkeypatch.setenv("PATH", str(tmp_path))
    home = Home(root=tmp_path / "home")
    folder = home.clusters / "kind-dev"
    folder.mkdir(parents=True)
    (folder / "engine").write_text("docker")

    with pytest.raises(HostError, match=r"was made with docker, which does not answer.*\nhint: start docker"):
        KindCluster("dev", home).down()

    assert folder.exists()


def test_node_images_of_older_inputs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes 1.8 GiB of the engine's storage; one that nodes of another cluster run stays."""
    new, old, used = node_image.name(), f"{node_image.NAME}:old", f"{node_image.NAME}:used"
    images = [old, used, new, "someone/else:1"]

    def run(_: Engine, verb: str, *words: str) -> str:
        if verb == "rmi" and words == (used,):
            raise CommandError("image is in use by a container")
        if verb == "rmi":
            images.remove(words[0])
        return "\n".join(images) if verb == "images" else ""

    monkeypatch.setattr(Engine, "run", run)
    monkeypatch.setattr(KindCluster, "_engine", Engine(program="podman", reason="", environment={}))
    monkeypatch.setattr(KindCluster, "_has_registry", False)
    monkeypatch.setattr(node_image, "node_image", lambda *_, **__: tmp_path / "archive.tar")

    assert KindCluster("dev", Home(root=tmp_path))._node_image(print) == NodeImage(name=new)
    assert images == [used, new, "someone/else:1"]


@pytest.mark.usefixtures("engine_calls")
def test_the_machine_is_checked_before_kind_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kubectl: Calls
) -> None:
    """A machine that cannot run nodes says so at once, not after the build; one that runs the cluster is not asked."""

    def refuse(*_: object, **__: object) -> None:
        raise HostError("too little memory")

    monkeypatch.setattr(kind, "check_kind_host", refuse)
    monkeypatch.setattr(KindCluster, "_has_registry", property(lambda _: pytest.fail("kind was built")))
    cluster = KindCluster("dev", Home(root=tmp_path))

    with pytest.raises(HostError, match="too little memory"):
        cluster.up(nodes=2, images=[], say=print)
    assert kubectl.lines == []
    monkeypatch.setattr(KindCluster, "_containers", staticmethod(lambda *_: ["dev-worker"]))
    kubectl.kubeconfig.parent.mkdir(parents=True)
    kubectl.kubeconfig.touch()
    cluster.up(nodes=2, images=[], say=print)
