"""The pytest plug-in of every suite that needs a cluster: fixtures, marks, and failures that explain themselves.

Tests that need a cluster are deselected unless `--cluster NAME` names one that was made for tests, and those that wait
for minutes unless `--long` asks for them. Each worker of pytest-xdist has its own cluster (`--cluster NAME,NAME`), so a
test may break its cluster while another one runs.
"""

import contextlib
import dataclasses
import re
import sys
import time
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from neuroshard_cluster import diagnosis
from neuroshard_cluster.bare_api import BareApi
from neuroshard_cluster.bare_api import bare_api as run_bare_api
from neuroshard_cluster.cluster import Cluster
from neuroshard_cluster.errors import ClusterError, HostError, UnknownError
from neuroshard_cluster.folders import Home, default_home
from neuroshard_cluster.held import Row, readable, report
from neuroshard_cluster.kubectl import Kubectl
from neuroshard_cluster.providers import PROVIDERS, open_cluster, require_test_context
from neuroshard_cluster.waiting import eventually

MARKS = {
    "e2e": "needs a running test cluster",
    "scale": "needs a running test cluster, and minutes",
    "chaos": "needs a running test cluster, and breaks parts of it for a while: nothing else may run there",
    "long": "waits for minutes; runs with --long only",
}
API_SERVER = "api_server"
"""The mark of a test that starts an API server."""
API_SERVERS = {"bare_api", "control_plane"}
"""Fixtures that are an API server or come from one."""
NAMESPACE_CHARACTERS = 40
ENDS_WITHIN_S = 1800
"""Limit of a test that needs a cluster, unless it has a longer one; it only ends a hang."""
CLUSTER = pytest.StashKey[Cluster]()
TABLE = pytest.StashKey[list[Row]]()
BEGAN_S = pytest.StashKey[float]()
WHERE = pytest.StashKey["Namespace"]()
ROW = "held"
"""Name of a report's attribute: the row of its test."""
RERUN = "rerun"
"""Outcome that pytest-rerunfailures gives the report of a failure after which the test runs again."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Namespace:
    """A namespace of one test, a client for it, and the folder that keeps what is left of the test."""

    name: str
    kubectl: Kubectl
    artifacts: Path


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, all of them optional."""
    group = parser.getgroup("cluster", "tests that need a Kubernetes cluster")
    group.addoption(
        "--cluster",
        default="",
        help="the test cluster, or one for each worker (-n 2 --cluster a,b); without it such tests are left out",
    )
    group.addoption("--cluster-provider", default="auto", choices=PROVIDERS)
    group.addoption("--artifacts", type=Path, default=Path("build/artifacts"), help="where failed tests leave a folder")
    group.addoption("--chaos-seconds", type=float, default=60.0, help="how long processes are killed at random")
    group.addoption("--long", action="store_true", help="run the tests with the mark `long` as well")
    group.addoption("--table", action="store_true", help="print what holds as a table, a line for each test")
    group.addoption("--table-file", type=Path, help="and write it into this file, with machine, versions, disk, memory")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marks, and find the cluster once, so that a wrong one stops everything."""
    for mark, meaning in MARKS.items():
        config.addinivalue_line("markers", f"{mark}: {meaning}")
    config.addinivalue_line("markers", "pod_security(level): the namespace's Pod Security, restricted if not said")
    config.stash[TABLE] = []
    config.stash[BEGAN_S] = time.monotonic()
    config.pluginmanager.register(Table(rows=config.stash[TABLE]))
    if config.getoption("--cluster"):
        names = config.getoption("--cluster").split(",")
        try:
            name = cluster_of(names, workers=len(config.getoption("tx", []) or []), worker=_worker(config))
            config.stash[CLUSTER] = _running_cluster(name, config.getoption("--cluster-provider"), default_home())
        except ClusterError as error:
            raise pytest.UsageError(str(error)) from error


def cluster_of(names: Sequence[str], *, workers: int, worker: int) -> str:
    """Return the cluster of a worker of pytest-xdist; the first one for the process that hands out the tests.

    Raises:
        UnknownError: There are fewer clusters than workers.
    """
    if workers > len(names):
        raise UnknownError(
            f"{workers} workers would share {len(names)} clusters (found --cluster {','.join(names)})"
            "\nhint: name a cluster for each worker, as in -n 2 --cluster a,b"
        )
    return names[worker]


def _worker(config: pytest.Config) -> int:
    """Return the number of this worker, which pytest-xdist calls gw0, gw1, ..."""
    workerinput: Mapping[str, str] = getattr(config, "workerinput", {"workerid": "gw0"})
    return int(workerinput["workerid"].removeprefix("gw"))


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Collects the rows of all workers where the tests are handed out."""

    rows: list[Row]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the row that came with a report; that of a failure after which the test runs again says so."""
        row: Mapping[str, Any] = getattr(report, ROW, {})
        if row:
            outcome = RERUN if str(report.outcome) == RERUN else row["outcome"]
            self.rows.append(Row(**{**row, "outcome": outcome}))


def _running_cluster(name: str, provider: str, home: Home) -> Cluster:
    cluster = open_cluster(name, provider=provider, home=home)
    require_test_context(cluster.kubectl.kubeconfig, home)
    cluster.kubectl("get", "--raw=/readyz")
    return cluster


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the marked tests out when there is no cluster for them, and those that take minutes unless asked for.

    The others get a limit that fits a busy machine.

    Raises:
        UsageError: A test that starts an API server has not the mark by which `make test` leaves it out.
    """
    left_out = set() if CLUSTER in config.stash else MARKS.keys() - {"long"}
    if not config.getoption("--long"):
        left_out |= {"long"}
    unable = [item for item in items if any(item.get_closest_marker(mark) for mark in left_out)]
    for item in items:
        if API_SERVERS.intersection(getattr(item, "fixturenames", ())) and not item.get_closest_marker(API_SERVER):
            raise pytest.UsageError(f"{item.nodeid} starts an API server\nhint: mark it {API_SERVER}")
        if any(item.get_closest_marker(mark) for mark in MARKS) and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(ENDS_WITHIN_S))
    if unable:
        config.hook.pytest_deselected(items=unable)
        items[:] = [item for item in items if item not in unable]


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Cluster:
    """The cluster that `--cluster` names."""
    return pytestconfig.stash[CLUSTER]


@pytest.fixture(scope="session")
def bare_api(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory, home: Home) -> Iterator[BareApi]:
    """An API server without nodes or controllers, for tests without a cluster; skips where it has not been built."""
    with contextlib.ExitStack() as stack:
        try:
            running = stack.enter_context(run_bare_api(tmp_path_factory.mktemp("bare-api"), home))
        except HostError as error:
            without_api_server(pytestconfig, error)
        yield running


def without_api_server(config: pytest.Config, error: HostError) -> NoReturn:
    """Skip a test that needs an API server; fail it where `make test-api` asked for nothing else."""
    outcome = pytest.fail if config.getoption("-m") == API_SERVER else pytest.skip
    outcome(f"no API server: {error}")


@pytest.fixture(scope="session")
def home() -> Home:
    """The folder of all clusters."""
    return default_home()


@pytest.fixture
def namespace(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Namespace]:
    """A new namespace for this test alone, with restricted Pod Security unless the test is marked otherwise."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.removeprefix("test_").lower())
    name = f"{words[:NAMESPACE_CHARACTERS].strip('-')}-{uuid.uuid4().hex[:6]}"
    mark = request.node.get_closest_marker("pod_security")
    level = mark.args[0] if mark else "restricted"
    labels = {"pod-security.kubernetes.io/enforce": level, "neuroshard.dev/test": "true"}
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    artifacts = request.config.getoption("--artifacts") / name
    made = Namespace(name=name, kubectl=cluster.kubectl.in_namespace(name), artifacts=artifacts)
    # A pod that no controller makes is refused before its account is there, which a busy controller manager makes late.
    eventually("the namespace has its account", lambda: made.kubectl.get("serviceaccount", "default"))
    request.node.stash[WHERE] = made
    yield made
    # Jobs first: one with backoffLimitPerIndex whose namespace goes while it runs keeps its pods, and they keep that.
    made.kubectl("delete", "jobs", "--all", "--wait=false")
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget the namespace of a first try, so that a second one writes nothing into its artifacts."""
    if WHERE in item.stash:
        del item.stash[WHERE]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add objects, events and logs to a failed test's report, and keep all of them in its artifacts folder."""
    made = yield
    if call.when == "call" or made.outcome != "passed":
        sentence = (getattr(getattr(item, "obj", None), "__doc__", None) or item.name).splitlines()[0]
        reason = made.longrepr[2].removeprefix("Skipped: ") if isinstance(made.longrepr, tuple) else ""
        test = readable(item.nodeid)
        row = Row(test=test, sentence=sentence, outcome=made.outcome, seconds=made.duration, reason=reason)
        setattr(made, ROW, dataclasses.asdict(row))  # pytest-xdist carries a report's plain attributes
    if made.failed and WHERE in item.stash:
        where = item.stash[WHERE]
        diagnosis.collect(where.kubectl, item.config.stash[CLUSTER].audit_log, where.artifacts)
        made.sections.extend(diagnosis.sections(where.artifacts))
    return made


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the failures after which tests ran again, and the table of what holds, if it was asked for."""
    for first in terminalreporter.stats.get(RERUN, []):
        terminalreporter.section(f"{first.nodeid} failed, and ran again")
        terminalreporter.write_line(first.longreprtext)
        for title, text in first.sections:
            terminalreporter.section(title, sep="-")
            terminalreporter.write_line(text)
    if not config.getoption("--table"):
        return
    terminalreporter.section("what holds on this cluster")
    config.stash[TABLE].sort(key=lambda row: row.test)
    for row in config.stash[TABLE]:
        terminalreporter.write_line(row.line)
    file: Path | None = config.getoption("--table-file")
    if file is not None and CLUSTER in config.stash:
        seconds = time.monotonic() - config.stash[BEGAN_S]
        title = f"What holds on a cluster made by CLUSTER={config.getoption('--cluster-provider')}"
        command = " ".join(["pytest", *sys.argv[1:]])
        rows = config.stash[TABLE]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(
            report(config.stash[CLUSTER], default_home(), rows, title=title, command=command, seconds=seconds)
        )
