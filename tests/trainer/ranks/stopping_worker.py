"""Ranks whose steps take different times, by clocks of their own, and of which one is asked to stop."""

import json
import os
import signal
from pathlib import Path

import torch.distributed as dist
from neuroshard_trainer.ranks.stopping import StepVote, Wish
from support.trainer.rank_server import joined_ranks


def main(folder: str, step_ms: list[float], asked_rank: int, asked_step: int) -> None:
    """Vote until all stop; write the numbers of the steps with a vote, and the last step."""
    rank = int(os.environ["RANK"])
    with joined_ranks():
        group = dist.new_group(backend="gloo")
        assert isinstance(group, dist.ProcessGroup)
        step, voted = 0, []

        def clock() -> float:
            voted.append(step)
            return step * step_ms[rank] / 1000

        vote = StepVote(group, clock=clock)
        undo = vote.listen()
        answer = Wish.GO_ON
        while answer is not Wish.STOP:
            step += 1
            if (rank, step) == (asked_rank, asked_step):
                os.kill(os.getpid(), signal.SIGTERM)
            answer = vote.wish(save_is_due=False)
        vote.close()
        undo()
    Path(folder, f"{rank}.json").write_text(json.dumps({"voted": voted, "stopped": step}))
