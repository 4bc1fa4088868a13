"""The command `neuroshard` against a real cluster: what a user types next to kubectl."""

import json
import sys
from pathlib import Path

import pytest
from e2e import jobs
from neuroshard_cluster.commands import run
from neuroshard_cluster.errors import CommandError
from neuroshard_cluster.plugin import Namespace

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.usefixtures("operator")]
SAYS_ITS_NUMBER = 'echo "worker $JOB_COMPLETION_INDEX has $NEUROSHARD_PLAN"'


def neuroshard(namespace: Namespace, *words: str) -> str:
    """Run the command as a user of the test's namespace does; return what it prints."""
    program = str(Path(sys.executable).with_name("neuroshard"))
    argv = [program, *words, "--namespace", namespace.name]
    return run(argv, env=namespace.kubectl.environment, timeout_s=300)


def test_a_job_is_submitted_watched_and_read(namespace: Namespace, tmp_path: Path) -> None:
    """From the file to the last line of a worker's log, without kubectl."""
    file = tmp_path / "job.json"
    job = jobs.script_job("shop", SAYS_ITS_NUMBER, nodes=2, profiler=jobs.SIMULATED)
    file.write_text(json.dumps(job))
    told = neuroshard(namespace, "submit", str(file), "--watch")
    seen = neuroshard(namespace, "status", "shop")
    workers = neuroshard(namespace, "logs", "shop")
    second = neuroshard(namespace, "logs", "shop", "--stage", "running", "--worker", "1")
    profiler = neuroshard(namespace, "logs", "shop", "--stage", "profiling")

    assert f"shop created in namespace {namespace.name}" in told
    assert "Succeeded" in told
    assert "Succeeded" in seen
    assert "worker 0 has /" in workers
    assert "worker 1 has /" in workers
    assert second.startswith("worker 1 has /")
    assert profiler.strip()


def test_a_job_that_is_not_there_is_said_in_a_sentence(namespace: Namespace) -> None:
    """No traceback, and the exit code of bad input."""
    with pytest.raises(CommandError, match=r"exited with 2: error: .*\"gone\" not found"):
        neuroshard(namespace, "status", "gone")
