"""Ranks of which one fails at a chosen moment: forks them from one process, which has imported everything once.

Reads lines of JSON from stdin, each a `Scenario`, and answers each with a line: the exit codes by rank, and how long
the survivor took to end after the failure. The failing rank sends the signal to itself, at its own call of the function
that is the moment, so that no scenario depends on how fast the machine is.
"""

import importlib
import json
import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import neuroshard_trainer.run
import torch
import torchmetrics
import torchrec.metrics.ne
from neuroshard_trainer.__main__ import main
from torch._C._distributed_c10d import TCPStore

imported = (neuroshard_trainer.run, torchmetrics, torchrec.metrics.ne)
NUM_RANKS = 2
LIMIT_SECONDS = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One training and its failure."""

    arguments: list[str]
    """Of the trainer."""
    moment: str
    """``module:Class.function``; the rank fails when it calls it."""
    call: int
    """At which of its calls, from 1."""
    lost: int
    """Its rank."""
    signal: int | None
    """What it sends to itself. None: the tensors of the call become NaN instead."""
    folder: str
    """Where each rank's output goes, and the time of the loss."""


def run_scenario(scenario: Scenario) -> dict[str, Any]:
    """Train until the survivor ends; nothing outlives the call."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LIMIT_SECONDS))
    ranks = [_fork(scenario, rank, store.port) for rank in range(NUM_RANKS)]
    survivor = 1 - scenario.lost
    codes: dict[int, int | None] = {survivor: _wait(ranks[survivor])}
    ended_at = time.time()
    codes[scenario.lost] = _wait(ranks[scenario.lost], 0 if scenario.signal else LIMIT_SECONDS)
    for rank, pid in enumerate(ranks):
        if codes[rank] is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    lost_at = Path(scenario.folder, "lost")
    return {
        "codes": [codes[rank] for rank in range(NUM_RANKS)],
        "seconds": ended_at - float(lost_at.read_text()) if lost_at.exists() else None,
    }


def _fork(scenario: Scenario, rank: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    output = os.open(Path(scenario.folder, f"rank-{rank}.log"), os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": NUM_RANKS, "LOCAL_WORLD_SIZE": NUM_RANKS}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ.update({name: str(value) for name, value in (place | meeting).items()})
    if rank == scenario.lost:
        _lose_at_moment(scenario)
    code = main(scenario.arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _lose_at_moment(scenario: Scenario) -> None:
    module, path = scenario.moment.split(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    function, calls = getattr(owner, name), 0

    def at_moment(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == scenario.call:
            Path(scenario.folder, "lost").write_text(str(time.time()))
            if scenario.signal is not None:
                os.kill(os.getpid(), scenario.signal)
            arguments = tuple(each * math.nan if isinstance(each, torch.Tensor) else each for each in arguments)
        return function(*arguments, **named)

    setattr(owner, name, at_moment)


def _wait(pid: int, seconds: float = LIMIT_SECONDS) -> int | None:
    """Return the exit code of a process. None: it did not end in time."""
    until = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return None
        time.sleep(0.02)


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run_scenario(Scenario(**json.loads(line)))), flush=True)  # noqa: T201 - the test reads it
