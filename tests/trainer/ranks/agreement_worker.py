"""Four ranks, of which the third fails at each vote. Each writes the errors it raised to FOLDER/RANK.json."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.ranks.agreement import agreed, together
from support.trainer.rank_server import joined_ranks

FAILING = 2


def main(folder: str) -> None:
    """Vote on each kind of error, by both functions."""
    with joined_ranks():
        vote_in(Path(folder))


def vote_in(folder: Path) -> None:
    """Fail at each vote, and write what was raised."""
    rank = dist.get_rank()
    found: dict[str, str] = {}

    def act(problem: Exception) -> None:
        if rank == FAILING:
            raise problem

    problems = (OSError("no such disk"), DocumentError("plan.json", ["no such field"]), InputError("no such table"))
    for problem in problems:
        for vote in (agreed, together):
            with pytest.raises(InputError) as raised:
                vote(partial(act, problem))
            message = str(raised.value)
            assert found.setdefault(type(problem).__name__, message) == message
    (folder / f"{rank}.json").write_text(json.dumps(found))
