"""``neuroshard publish`` against a real API server, and against none."""

import base64
import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config
from neuroshard_cluster.bare_api import BareApi
from neuroshard_cluster.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.api_server]
ROLE_RULES = [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["result"], "verbs": ["patch"]}]
WITHIN_S = 100.0
"""Ends a hang."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """A namespace, the folder of its service account, and a client with every right there."""

    namespace: str
    folder: Path
    api: Any

    def create_result(self) -> None:
        """Make the ConfigMap that the service account may fill, as the operator makes it."""
        with contextlib.suppress(client.ApiException):
            self.api.delete_namespaced_config_map("result", self.namespace)
        made = {"metadata": {"name": "result", "labels": {"of": "operator"}}}
        self.api.create_namespaced_config_map(self.namespace, made)


@dataclass(frozen=True, kw_only=True)
class Done:
    """How the publisher ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True, kw_only=True)
class Pod:
    """What a container has of the cluster: its service account's folder and two variables, and a ConfigMap to fill."""

    account: Account
    service_account: Path
    environment: dict[str, str]
    neuroshard: Callable[..., Any]

    def words(self, *words: object) -> list[str]:
        """Return the command line of the publisher, without the program."""
        return ["publish", "--config-map", "result", "--service-account", str(self.service_account), *map(str, words)]

    def publish(self, *words: object) -> Done:
        """Run the publisher to its end, in this process."""
        with pytest.MonkeyPatch.context() as patched:
            for name, value in self.environment.items():
                patched.setenv(name, value)
            result = self.neuroshard(*self.words(*words))
        return Done(returncode=result.code, stdout=result.out, stderr=result.err)

    @contextmanager
    def started(self, *words: object) -> Iterator["subprocess.Popen[str]"]:
        """Run the publisher next to the block, and to its end after it."""
        argv = [str(Path(sys.executable).with_name("neuroshard")), *self.words(*words)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, env=os.environ | self.environment, stdout=pipe, stderr=pipe, text=True)
        try:
            yield process
            process.communicate(timeout=WITHIN_S)
        finally:
            process.kill()
            process.communicate()

    def result(self) -> dict[str, Any]:
        """Return the ConfigMap."""
        api = self.account.api
        read = api.read_namespaced_config_map("result", self.account.namespace)
        found: dict[str, Any] = api.api_client.sanitize_for_serialization(read)
        return found

    def wait_for(self, data: dict[str, str]) -> None:
        """Wait until the ConfigMap holds exactly this text."""
        eventually(
            "the result is there",
            lambda: self.result().get("data"),
            within_s=WITHIN_S,
            accept=lambda seen: seen == data,
        )


@pytest.fixture(scope="module")
def account(bare_api: BareApi, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Account]:
    """A namespace with a service account that may patch the one ConfigMap `result`, as the operator makes them."""
    name = f"publish-{uuid.uuid4().hex[:8]}"
    admin: Any = config.new_client_from_config(str(bare_api.kubectl.kubeconfig))  # type: ignore[no-untyped-call]
    core: Any = client.CoreV1Api(admin)
    rbac: Any = client.RbacAuthorizationV1Api(admin)
    writer = {"metadata": {"name": "writer"}}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "writer"}
    subject = {"kind": "ServiceAccount", "name": "writer", "namespace": name}
    with contextlib.closing(admin):
        core.create_namespace({"metadata": {"name": name}})
        core.create_namespaced_service_account(name, writer)
        rbac.create_namespaced_role(name, writer | {"rules": ROLE_RULES})
        rbac.create_namespaced_role_binding(name, writer | {"roleRef": role, "subjects": [subject]})
        folder = tmp_path_factory.mktemp("serviceaccount")
        (folder / "token").write_text(bare_api.token(name, "writer"))
        (folder / "namespace").write_text(name)
        (folder / "ca.crt").write_bytes(bare_api.authority.read_bytes())
        yield Account(namespace=name, folder=folder, api=core)
        core.delete_namespace(name)


@pytest.fixture
def pod(account: Account, bare_api: BareApi, neuroshard: Callable[..., Any]) -> Pod:
    """A pod of the service account, and an empty ConfigMap."""
    account.create_result()
    address = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(bare_api.port)}
    return Pod(account=account, service_account=account.folder, environment=address, neuroshard=neuroshard)


def shell(script: str) -> Sequence[str]:
    """Return the words that have a shell run a script."""
    return "--", "sh", "-c", script


def test_what_a_command_wrote_is_the_config_map(pod: Pod, tmp_path: Path) -> None:
    """Folders and files, text and binary; what the operator wrote on the object stays."""
    out = tmp_path / "out"
    write = f"mkdir -p {out}/bundle && printf '\\377\\000' > {out}/bundle/weights && echo {{}} > {out}/hardware.json"
    done = pod.publish("--from", out / "bundle", "--from", out / "hardware.json", *shell(write))
    result = pod.result()

    assert (done.returncode, done.stderr) == (0, "")
    assert result["data"] == {"hardware.json": "{}\n"}
    assert result["binaryData"] == {"weights": base64.b64encode(b"\xff\x00").decode()}
    assert result["metadata"]["labels"] == {"of": "operator"}


def test_a_later_publication_replaces_the_earlier_one(pod: Pod, tmp_path: Path) -> None:
    """A second attempt leaves nothing of the first behind."""
    folder = tmp_path / "out"
    pod.publish("--from", folder, *shell(f"mkdir {folder}; echo 1 > {folder}/first.txt"))
    pod.publish("--from", folder, *shell(f"rm {folder}/first.txt; echo '2 ☃ 🚀' > {folder}/second.txt"))

    assert pod.result()["data"] == {"second.txt": "2 ☃ 🚀\n"}


def test_a_large_result_is_compressed(pod: Pod, tmp_path: Path) -> None:
    """A plan of 3 MB fits."""
    plan = json.dumps({"shards": [{"device": 1}] * 200_000})
    (tmp_path / "plan.json").write_text(plan)
    done = pod.publish("--from", tmp_path / "plan.json", "--", "true")

    assert done.returncode == 0
    assert gzip.decompress(base64.b64decode(pod.result()["binaryData"]["plan.json.gz"])).decode() == plan


def test_a_result_beyond_the_limit_is_refused_with_a_sentence(pod: Pod, tmp_path: Path) -> None:
    """The exit code tells it from other failures."""
    (tmp_path / "noise").write_bytes(os.urandom(2 * 1024 * 1024))
    done = pod.publish("--from", tmp_path / "noise", "--", "true")

    assert done.returncode == 9
    assert "a ConfigMap holds 1,048,576; the largest is noise" in done.stderr
    assert "data" not in pod.result()


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -KILL $$", 137)], ids=["code", "signal"])
def test_a_command_that_fails_keeps_its_exit_code_and_publishes_nothing(
    pod: Pod, tmp_path: Path, script: str, code: int
) -> None:
    """Half a result must not look like one."""
    done = pod.publish(
        "--from", tmp_path / "out", *shell(f"mkdir {tmp_path}/out; echo half > {tmp_path}/out/a; {script}")
    )

    assert done.returncode == code
    assert "data" not in pod.result()


@pytest.mark.parametrize("folder", [False, True], ids=["missing", "empty"])
def test_a_command_that_writes_nothing_has_failed(pod: Pod, tmp_path: Path, folder: bool) -> None:  # noqa: FBT001
    """It ended with 0, so only we can tell."""
    done = pod.publish("--from", tmp_path / "out", *shell(f"mkdir {tmp_path}/out" if folder else "true"))

    assert done.returncode == 2
    assert str(tmp_path / "out") in done.stderr


def test_a_program_that_does_not_exist_is_named(pod: Pod, tmp_path: Path) -> None:
    """A wrong image, most often."""
    done = pod.publish("--from", tmp_path, "--", "no-such-program")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: no-such-program: cannot be run: ")


def test_signals_reach_the_command_and_its_last_words_are_published(pod: Pod, tmp_path: Path) -> None:
    """A trainer that is asked to stop writes its checkpoint and its report, and both count."""
    out = tmp_path / "report.json"
    trap = f"trap 'echo stopped > {out}; kill $!; exit 5' TERM; echo running > {out}; sleep 60 & wait"
    with pod.started("--from", out, "--watch", "--every", "0.1", *shell(trap)) as process:
        pod.wait_for({"report.json": "running\n"})
        process.terminate()

    assert process.returncode == 5
    assert pod.result()["data"] == {"report.json": "stopped\n"}


def test_an_unchanged_result_is_not_published_again(pod: Pod, tmp_path: Path) -> None:
    """Nobody is woken for nothing; a file that is being written is not looked at."""
    out = tmp_path / "out"
    write = f"mkdir {out}; echo 1 > {out}/a; exec sleep 60"
    with pod.started("--from", out, "--watch", "--every", "0.1", *shell(write)) as process:
        pod.wait_for({"a": "1\n"})
        version = pod.result()["metadata"]["resourceVersion"]
        (out / ".b-scratch").write_text("half")
        (out / "a").write_text("1\n")
        process.terminate()

    assert process.returncode == 143
    assert pod.result()["metadata"]["resourceVersion"] == version


def test_without_a_command_it_watches_until_it_is_asked_to_stop(pod: Pod, tmp_path: Path) -> None:
    """A sidecar, for images that have no neuroshard in them."""
    with pod.started("--from", tmp_path / "report.json", "--watch", "--every", "0.1") as process:
        (tmp_path / "report.json").write_text("1")
        pod.wait_for({"report.json": "1"})
        (tmp_path / "report.json").write_text("2")
        process.terminate()

    assert process.returncode == 0
    assert pod.result()["data"] == {"report.json": "2"}


def test_watched_workers_without_a_report_publish_nothing(pod: Pod, tmp_path: Path) -> None:
    """All pods of a Job are alike, and rank 0 alone reports."""
    done = pod.publish("--from", tmp_path / "report.json", "--watch", "--", "true")

    assert (done.returncode, done.stderr) == (0, "")
    assert "data" not in pod.result()


@pytest.mark.parametrize(
    ("place", "published"),
    [
        ({"JOB_COMPLETION_INDEX": "0"}, True),
        ({"JOB_COMPLETION_INDEX": "1"}, False),
        ({"JOB_COMPLETION_INDEX": "0", "NEUROSHARD_NODES_BEFORE": "2"}, False),
    ],
    ids=["first", "second", "first embedding server"],
)
def test_of_the_pods_of_workers_only_the_first_publishes(
    pod: Pod, tmp_path: Path, place: dict[str, str], *, published: bool
) -> None:
    """On a shared volume all pods see the same report, and each would patch the ConfigMap; exit codes stay."""
    report = tmp_path / "report.json"
    command = shell(f"echo '{{}}' > {report}; exit 3")
    with_index = replace(pod, environment={**pod.environment, **place})
    done = with_index.publish("--from", report, "--watch", *command)

    assert done.returncode == 3
    assert ("data" in pod.result()) is published


def test_the_second_of_two_profilers_writes_no_result_and_ends_well(pod: Pod, tmp_path: Path) -> None:
    """It took part in the measurement of the first pod, which alone publishes."""
    second = replace(pod, environment={**pod.environment, "JOB_COMPLETION_INDEX": "1"})
    done = second.publish("--from", tmp_path / "bundle", "--", "true")
    write = shell(f"mkdir {tmp_path}/bundle; echo '{{}}' > {tmp_path}/bundle/manifest.json")
    not_its_own = second.publish("--from", tmp_path / "bundle", *write)

    assert (done.returncode, done.stderr, not_its_own.returncode) == (0, "", 0)
    assert "data" not in pod.result()


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:"))
    return bool(mask >> (number - 1) & 1)


def test_of_the_sidecars_of_an_indexed_job_only_the_first_one_publishes(pod: Pod, tmp_path: Path) -> None:
    """The others wait until they are asked to stop, since a sidecar that ends is started again."""
    for index in ("0", "1"):
        (tmp_path / index).mkdir()
        (tmp_path / index / "report.json").write_text(index)
    words = ("--watch", "--every", "0.1")
    first, second = (
        replace(pod, environment={**pod.environment, "JOB_COMPLETION_INDEX": index}) for index in ("0", "1")
    )
    with second.started("--from", tmp_path / "1" / "report.json", *words) as other:
        with first.started("--from", tmp_path / "0" / "report.json", *words) as process:
            pod.wait_for({"report.json": "0"})
            process.terminate()
        eventually("the other one can be asked to stop", lambda: catches(other.pid, signal.SIGTERM), within_s=WITHIN_S)
        other.terminate()

    assert other.returncode == 0
    assert pod.result()["data"] == {"report.json": "0"}


def test_a_restart_of_the_api_server_loses_nothing(pod: Pod, bare_api: BareApi, tmp_path: Path) -> None:
    """A measurement took minutes; publishing it again takes none."""
    (tmp_path / "out").write_text("measured")
    ready = tmp_path / "ready"
    bare_api.stop_api()
    with pod.started("--from", tmp_path / "out", *shell(f"touch {ready}")) as process:
        eventually("the command has ended", ready.exists, within_s=WITHIN_S)
        bare_api.start_api()

    assert process.returncode == 0
    assert pod.result()["data"] == {"out": "measured"}


def test_an_api_server_that_stays_away_is_told(pod: Pod, tmp_path: Path) -> None:
    """After the time that was asked for; while watched, the command's own exit code survives."""
    (tmp_path / "out").write_text("measured")
    away = replace(pod, environment=pod.environment | {"KUBERNETES_SERVICE_PORT": "1"})
    done = away.publish("--from", tmp_path / "out", "--retry", "0", "--", "true")
    watched = away.publish(
        "--from", tmp_path / "out", "--retry", "0", "--watch", "--every", "0.1", "--", "sleep", "0.5"
    )

    assert done.returncode == 8
    assert "127.0.0.1:1 does not answer: [Errno 111] Connection refused; gave up after 0 s" in done.stderr
    assert watched.returncode == 0
    assert watched.stderr.count("warning: result is not up to date") == 1


def test_another_config_map_is_refused(pod: Pod, tmp_path: Path) -> None:
    """A pod may write its own result and nothing else."""
    (tmp_path / "out").write_text("x")
    done = pod.publish("--config-map", "other", "--from", tmp_path / "out", "--retry", "0", "--", "true")

    assert done.returncode == 8
    assert "configmaps/other: the API server answers 403" in done.stderr


def test_an_api_server_that_is_not_the_clusters_gets_no_token(pod: Pod, tmp_path: Path) -> None:
    """Its certificate must be of the authority that the kubelet mounted."""
    (tmp_path / "out").write_text("x")
    account = tmp_path / "account"
    shutil.copytree(pod.service_account, account)
    other = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    files = ["-keyout", "/dev/null", "-out", str(account / "ca.crt"), "-subj", "/CN=other"]
    subprocess.run([*other, *files], check=True, capture_output=True)
    away = replace(pod, service_account=account)
    done = away.publish("--from", tmp_path / "out", "--retry", "0", "--", "true")

    assert done.returncode == 8
    assert "certificate verify failed" in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ((), "there is nothing to run"),
        (("--", "true"), "not running in a pod: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"),
    ],
    ids=["no command", "no pod"],
)
def test_a_call_that_cannot_work_runs_nothing(
    neuroshard: Any, tmp_path: Path, words: Sequence[str], problem: str
) -> None:
    """Reported before the command has cost anything."""
    result = neuroshard("publish", "--config-map", "result", "--from", tmp_path, *words)

    assert (result.code, result.out) == (2, "")
    assert problem in result.err


def test_two_files_of_one_name_are_refused(pod: Pod, tmp_path: Path) -> None:
    """One would hide the other."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "plan.json").write_text("{}")
    done = pod.publish("--from", tmp_path / "a", "--from", tmp_path / "b", "--", "true")

    assert done.returncode == 2
    assert "another --from has a file of this name" in done.stderr
