"""Four ranks, of which the third fails at each vote. Each writes the errors it raised to FOLDER/RANK.json."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist
from four_ranks import fork_ranks
from neuroshard_api.document import DocumentError
from neuroshard_trainer.agreement import agreed, together
from neuroshard_trainer.errors import InputError

FAILING = 2


def main(folder: Path) -> None:
    """Vote on each kind of error, by both functions."""
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


if __name__ == "__main__":
    place = Path(sys.argv[1])
    fork_ranks(place, lambda: main(place))
