"""torchrun with exit codes."""

import socket
from typing import Any

import pytest
from neuroshard_api.exit_codes import ExitCode
from neuroshard_trainer.launch import exit_code_of, main


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


def test_a_taken_port_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    """With what to do."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        endpoint = f"localhost:{taken.getsockname()[1]}"
        settings = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-conf", "is_host=true,timeout=3"]

        assert main(["--nnodes", "1", "--nproc-per-node", "1", *settings, "--no-python", "true"]) == (
            ExitCode.INVALID_INPUT
        )

    message = capsys.readouterr().err
    assert f"error: the processes cannot meet at {endpoint}" in message
    assert "is the port taken?" in message
