"""torchrun with exit codes."""

import signal
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.launch import exit_code_of, main
from torch.distributed import run
from torch.distributed.elastic.metrics.api import prof
from torch.distributed.elastic.multiprocessing.api import SignalException


class Failure:
    """What torchrun tells of a failed process."""

    def __init__(self, exitcode: int, timestamp: int = 0) -> None:
        self.exitcode = exitcode
        self.timestamp = timestamp


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ([Failure(7), Failure(-9, 1)], 137),
        ([Failure(7), Failure(-9, 30)], 7),
        ([Failure(7), Failure(1, 30)], 1),
        ([Failure(2, 5), Failure(6, 4)], 6),
        ([Failure(7), Failure(7)], 7),
        ([Failure(-15), Failure(143)], 143),
        ([Failure(-15), Failure(1)], 1),
    ],
    ids=[
        "one killed",
        "one killed by torchrun",
        "one late",
        "first by time",
        "all lost a peer elsewhere",
        "all stopped",
        "one has a bug",
    ],
)
def test_the_exit_code_is_that_of_the_cause(failures: list[Any], expected: int) -> None:
    """Processes that end because another one did say nothing of the cause."""
    assert exit_code_of(dict(enumerate(failures))) == expected


def test_a_signal_before_a_timer_of_torchrun_has_begun_is_a_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's timer then raises an error of its own, in which the signal is hidden."""

    def stopped() -> None:
        raise SignalException("stopped", sigval=signal.SIGTERM)

    monkeypatch.setattr("torch.distributed.elastic.metrics.api.time", SimpleNamespace(time=stopped))
    monkeypatch.setattr(run, "run", prof(lambda _: None))

    assert main(["--standalone", "--no-python", "true"]) == ExitCode.STOPPED


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_a_port_in_use_is_wrong_input(backend: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A second attempt would find it in use as well; the message names the field."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        endpoint = f"localhost:{taken.getsockname()[1]}"
        settings = ["--rdzv-backend", backend, "--rdzv-endpoint", endpoint, "--rdzv-conf", "is_host=true,timeout=3"]

        assert main(["--nnodes", "1", "--nproc-per-node", "1", *settings, "--no-python", "true"]) == (
            ExitCode.INVALID_INPUT
        )

    message = capsys.readouterr().err
    assert f"error: the workers did not meet at {endpoint}" in message
    assert "in use" in message
    assert "; hint: choose another port in spec.experimental.rendezvous.port" in message


def test_an_old_torch_that_ignores_the_grace_period_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its processes are killed 30 s after SIGTERM, in the middle of a long checkpoint."""
    monkeypatch.setenv("PET_SHUTDOWN_TIMEOUT", "285")
    known: Any = run.parse_args

    def old_parse_args(arguments: list[str]) -> object:
        options = known(arguments)
        del options.shutdown_timeout
        return options

    monkeypatch.setattr(run, "parse_args", old_parse_args)
    monkeypatch.setattr(run, "run", lambda _options: None)

    assert main(["--no-python", "true"]) == ExitCode.OK
    assert "warning: PET_SHUTDOWN_TIMEOUT=285 has no effect" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "rank"), [(None, 1), ("0", 1), ("3", 4)])
def test_nodes_of_servers_are_numbered_after_those_of_trainers(
    monkeypatch: pytest.MonkeyPatch, before: str | None, rank: int
) -> None:
    """A pod knows its index among the servers, and how many nodes come first."""
    seen: list[int] = []
    monkeypatch.setattr(run, "run", lambda options: seen.append(options.node_rank))
    monkeypatch.setenv("PET_NODE_RANK", "1")
    if before is not None:
        monkeypatch.setenv("NEUROSHARD_NODES_BEFORE", before)

    assert main(["--nnodes", "5", "--no-python", "true"]) == ExitCode.OK
    assert seen == [rank]
