"""One of several ranks, trainers first: trains, and writes the rows that each step has and what it makes of them.

Arguments: the job, the plan, and the run directory. A trainer writes for each step the far look-ups, pooled embeddings,
and their gradients; a server its shards before the first step and after each.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.job_file import read_job
from neuroshard_trainer.ranks.process import Launched, start_process
from neuroshard_trainer.run import RunPaths, set_up
from neuroshard_trainer.servers.lookahead import Lookahead
from neuroshard_trainer.servers.model import RowsAhead
from neuroshard_trainer.sharding.plan_adapter import read_plan
from torch.distributed._shard.sharded_tensor.api import ShardedTensor


def main(job_file: str, plan_file: str, run_dir: str) -> None:
    """Train, and write what was recorded."""
    job, launched = read_job(Path(job_file)), Launched.from_environment()
    plan = read_plan(Path(plan_file), world_size=launched.world_size, has_servers=True)
    process = start_process(job, plan, launched, "cpu", nccl_log_folder=Path(run_dir))
    places = RunPaths(plan_file=Path(plan_file), run_dir=Path(run_dir), data_dir=Path(run_dir))
    loop = set_up(job, plan, places, process)
    steps = _recorded_shards(loop._pipeline) if process.is_server else _recorded_rows()
    loop.run()
    torch.save(steps, Path(run_dir, f"rows-{process.rank}.pt"))


def _recorded_rows() -> list[dict[str, torch.Tensor]]:
    """Record the far rows of each step, in the list that is returned."""
    steps: list[dict[str, torch.Tensor]] = []
    batches: list[Batch] = []
    look_up, give_back = Lookahead._look_up, RowsAhead.give_back

    def looked_up(self: Lookahead, batch: Batch, step: int) -> Any:
        if not any(each is batch for each in batches):  # after a checkpoint it is looked up again
            batches.append(batch)
        return look_up(self, batch, step)

    def given_back(self: RowsAhead) -> None:
        (lookups,) = batches.pop(0).group_lookups
        gradient = self.values().grad
        assert gradient is not None
        steps.append(
            {
                "ids": lookups.values(),
                "lengths": lookups.lengths(),
                "pooled": self.values().detach().clone(),
                "gradient": gradient.clone(),
            }
        )
        give_back(self)

    Lookahead._look_up, RowsAhead.give_back = looked_up, given_back  # type: ignore[method-assign]
    return steps


def _recorded_shards(lookahead: Any) -> list[dict[int, torch.Tensor]]:
    """Record the columns of the table on this server, by the first, after each step, in the list that is returned."""
    steps: list[dict[int, torch.Tensor]] = []

    def add() -> None:
        (found,) = (each for each in lookahead._model.state_dict().values() if isinstance(each, ShardedTensor))
        steps.append({each.metadata.shard_offsets[1]: each.tensor.detach().clone() for each in found.local_shards()})

    progress = lookahead.progress

    def recorded(batches: Iterator[Batch]) -> torch.Tensor:
        loss: torch.Tensor = progress(batches)
        add()
        return loss

    add()
    lookahead.progress = recorded
    return steps
