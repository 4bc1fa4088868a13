"""Ranks of which one fails at a chosen moment.

The failing rank sends the signal to itself, at its own call of the function that is the moment, so that no scenario
depends on how fast the machine is.
"""

import importlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from neuroshard_trainer.__main__ import main as train
from support.trainer.rank_server import shorten_heartbeat


def main(arguments: Sequence[str], lost: int, moment: str, call: int, failure: Mapping[str, Any]) -> int:
    """Train, and return the trainer's exit code.

    Args:
        arguments: of the trainer.
        lost: the rank that fails.
        moment: ``module:Class.function``; it fails when it calls this.
        call: at which of its calls, from 1.
        failure: ``signal`` that it sends to itself, or None, with which the tensors of the call become NaN; ``file``,
            where the time of the loss is written; and, unless 5 s, ``heartbeat_seconds`` that a rank may be silent.
    """
    shorten_heartbeat(failure.get("heartbeat_seconds", 5.0))
    if int(os.environ["RANK"]) == lost:
        _lose_at_moment(moment, call, failure["signal"], Path(failure["file"]))
    return train(arguments)


def _lose_at_moment(moment: str, call: int, number: int | None, lost_file: Path) -> None:
    module, path = moment.split(":")
    owner: Any = importlib.import_module(module)
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    function, calls = getattr(owner, name), 0

    def at_moment(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            lost_file.write_text(str(time.time()))
            if number is not None:
                os.kill(os.getpid(), number)
            arguments = tuple(each * math.nan if isinstance(each, torch.Tensor) else each for each in arguments)
        return function(*arguments, **named)

    setattr(owner, name, at_moment)
