"""The trainer's command of a job: NeuroShard's trainer on ranks that are forked from one process.

torchrun starts an interpreter for each rank, and each imports torch; here one import serves all. Arguments: the job's
file, the folder of the ranks' output, and optionally the call of a step at which rank 1 kills the program that started
this one, and waits. With a fourth argument, the name of a file that is not there yet, it makes the file and kills
itself.
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from neuroshard_api.process.collector import uncollected_imports
from support.trainer.rank_server import Group, output, run_group

CALLER_VARIABLE = "FORKED_TRAINER_CALLER"


def train(arguments: Sequence[str], kills_at: int, marker: str = "") -> int:
    """Train on this rank, and return the trainer's exit code. Rank 1 ends the caller, or itself, at a step; 0: none."""
    from neuroshard_trainer.__main__ import main
    from neuroshard_trainer.training import TrainingLoop

    if kills_at and os.environ["RANK"] == "1" and not (marker and Path(marker).exists()):
        loop: Any = TrainingLoop
        step, calls = loop._loss, 0

        def killing_step(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == kills_at:
                if marker:
                    Path(marker).touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                os.kill(int(os.environ[CALLER_VARIABLE]), signal.SIGKILL)
                signal.pause()
            return step(*given)

        loop._loss = killing_step
    return main(list(arguments))


def main(job: str, folder: str, kills_at: str = "0", marker: str = "") -> int:
    """Train on as many ranks as torchrun's settings say, and return the first failure's exit code."""
    with uncollected_imports():
        importlib.import_module("neuroshard_trainer.run")
    count = int(os.environ["PET_NPROC_PER_NODE"])
    places = {"--plan": "NEUROSHARD_PLAN", "--run-dir": "NEUROSHARD_RUN_DIR"}
    arguments = [job, *(word for option, name in places.items() for word in (option, os.environ[name]))]
    ended = run_group(
        Group(
            target=f"{__file__}:train",
            arguments=[arguments, int(kills_at), marker],
            folder=folder,
            count=count,
            per_node=count,
            environment={CALLER_VARIABLE: str(os.getppid())},
        )
    )
    sys.stdout.write("".join(output(Path(folder), rank) for rank in range(count)))
    return next((code for code in ended.codes if code), 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
