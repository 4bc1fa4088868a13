"""An API server with the controllers that matter to Jobs, the operator as a process, and hands in place of kubelets."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from neuroshard_cluster.bare_api import bare_api
from neuroshard_cluster.commands import BOUND_TO_CALLER
from neuroshard_cluster.components import KUBERNETES
from neuroshard_cluster.errors import HostError, TimedOutError
from neuroshard_cluster.folders import default_home
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.plugin import without_api_server
from neuroshard_cluster.waiting import eventually

CRD = Path(__file__).parents[3] / "crds" / "dlrmtrainingjobs.yaml"
CONTROLLERS = "job-controller,garbage-collector-controller"
WITHIN_S = 300.0
"""Ends a hang with the log of what hangs."""


@dataclass(kw_only=True)
class Operator:
    """The operator's process, which a test may kill and start again."""

    kubeconfig: Path
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        """Start the process."""
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.kubeconfig),
            "NEUROSHARD_PROFILER_IMAGE": "profiler:test",
            "NEUROSHARD_PLANNER_IMAGE": "planner:test",
            "NEUROSHARD_TRAINER_IMAGE": "trainer:test",
            "NEUROSHARD_HTTP_PORT": "0",
            "NEUROSHARD_LOG_FORMAT": "json",
            "NEUROSHARD_RESYNC_SECONDS": "3600",  # a wake-up that is lost must show
            **self.environment,
        }
        argv = [*BOUND_TO_CALLER, sys.executable, "-m", "neuroshard_operator"]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(argv, env=environment, stdout=output, stderr=output)

    def kill(self) -> None:
        """End the process as a lost node would: without a word."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Ask the process to end; return its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=WITHIN_S)

    def end(self) -> None:
        """Stop the process if it runs."""
        assert self.process is not None
        if self.process.poll() is None:
            self.stop()

    def wait_until_ready(self) -> None:
        """Wait until it has reached the API server."""
        try:
            eventually("the operator is ready", self._is_ready, within_s=WITHIN_S)
        except TimedOutError as error:
            raise AssertionError(self.log.read_text()) from error

    def lines(self) -> list[dict[str, Any]]:
        """Return its log."""
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def page(self, path: str) -> str:
        """Return a page of its HTTP server."""
        ports = [line["message"].rsplit(" ", 1)[-1] for line in self.lines() if "metrics on port" in line["message"]]
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[-1]}{path}", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def _is_ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.page("/readyz") == "ok\n"
        except (OSError, IndexError):
            return False


@pytest.fixture(scope="session")
def control_plane(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """A new control plane without nodes: what a kubelet would say of pods, tests say."""
    home = default_home()
    folder = tmp_path_factory.mktemp("control-plane")
    programs = KUBERNETES.target(home)
    with contextlib.ExitStack() as stack:
        try:
            api = stack.enter_context(bare_api(folder, home))
        except HostError as error:
            without_api_server(pytestconfig, error)
        argv = [
            *BOUND_TO_CALLER,
            str(programs / "kube-controller-manager"),
            f"--kubeconfig={api.kubectl.kubeconfig}",
            f"--controllers={CONTROLLERS}",
            "--leader-elect=false",
            "--secure-port=0",
        ]
        with (folder / "controllers.log").open("wb") as log:
            controllers = subprocess.Popen(argv, stdout=log, stderr=log)
        stack.callback(controllers.wait)
        stack.callback(controllers.kill)
        kubectl = api.kubectl
        kubectl.define(f"{CRD.stem}.training.neuroshard.dev", CRD.read_text())
        yield kubectl


@pytest.fixture
def cluster(control_plane: Kubectl, request: pytest.FixtureRequest) -> Iterator[Kubectl]:
    """A namespace of that control plane for one test."""
    name = request.node.name.removeprefix("test_").replace("_", "-")[:50].strip("-")
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    yield control_plane.in_namespace(name)
    control_plane.in_namespace(name)("delete", "dlrmjob", "--all", "--wait=false")


@pytest.fixture
def operator(cluster: Kubectl, tmp_path: Path) -> Iterator[Operator]:
    """The operator, running, for the test's namespace alone."""
    running = Operator(
        kubeconfig=cluster.kubeconfig,
        log=tmp_path / "operator.log",
        environment={"NEUROSHARD_NAMESPACES": cluster.namespace},
    )
    with contextlib.ExitStack() as stack:
        running.start()
        stack.callback(running.end)
        running.wait_until_ready()
        yield running
        sys.stdout.write(running.log.read_text())  # what pytest shows of a test that failed
