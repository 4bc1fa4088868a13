"""A vote of all ranks on what is planned, before one of them raises or searches."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.question import Question

Result = TypeVar("Result")


def attempt(work: Callable[[], Result]) -> tuple[Result | None, str]:
    """Return a result, or the sentence of the error that all ranks are to raise."""
    try:
        return work(), ""
    except DropInError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - the other ranks wait: they must hear of any
        return None, f"{type(error).__name__}: {error}"


def agreed_question(work: Callable[[], Question], pg: dist.ProcessGroup) -> Question:
    """Return this rank's question if all ranks have the same. All of them must call this.

    Raises:
        DropInError: the same on all ranks, if one of them has an error or another question.
    """
    question, problem = attempt(work)
    votes: list[tuple[str, str, Any]] = [("", "", None)] * pg.size()
    own = (problem, "", None) if question is None else ("", question.digest, question.shapes)
    dist.all_gather_object(votes, own, group=pg)
    for rank, (error, _, _) in enumerate(votes):
        if error:
            raise DropInError(f"rank {rank}: {error}")
    _, digest, shapes = votes[0]
    for rank, (_, other, theirs) in enumerate(votes):
        if other != digest:
            different = next((name for name in {**shapes, **theirs} if shapes.get(name) != theirs.get(name)), None)
            what = "settings" if different is None else f"table {different!r}"
            raise DropInError(f"rank {rank} and rank 0 differ in {what}; make the same module and planner on all ranks")
    assert question is not None
    return question


def from_rank_0(work: Callable[[], Result], pg: dist.ProcessGroup) -> Result:
    """Let rank 0 alone do something, and return what it got on all ranks. All of them must call this.

    Args:
        work: its result can be pickled.
        pg: of all ranks.

    Raises:
        DropInError: on all ranks, where rank 0 has an error.
    """
    found: list[Any] = [None, ""]
    if pg.rank() == 0:
        found = list(attempt(work))
    dist.broadcast_object_list(found, group_src=0, group=pg)
    result, problem = found
    if problem:
        raise DropInError(problem)
    return result  # type: ignore[no-any-return] # what rank 0 sent
