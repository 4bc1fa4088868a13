"""A vote of all ranks on what is planned, before one of them raises or searches."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.question import Question, Shapes

Result = TypeVar("Result")


def attempt(work: Callable[[], Result]) -> tuple[Result | None, str]:
    """Return a result, or the sentence of the error that all ranks are to raise."""
    try:
        return work(), ""
    except DropInError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - the other ranks wait: they must hear of any
        return None, f"{type(error).__name__}: {error}"


def together(work: Callable[[], Result], pg: dist.ProcessGroup) -> Result:
    """Return this rank's result once all ranks have theirs. All of them must call this.

    Raises:
        DropInError: the same on all ranks, if one of them has an error.
    """
    result, problem = attempt(work)
    problems = [""] * pg.size()
    dist.all_gather_object(problems, problem, group=pg)
    for rank, error in enumerate(problems):
        if error:
            raise DropInError(f"rank {rank}: {error}")
    return result  # type: ignore[return-value] # without an error there is one


def require_equal(value: object, *, what: str, pg: dist.ProcessGroup) -> None:
    """Do nothing if all ranks have the same value. All of them must call this. Raises DropInError on all."""
    values: list[object] = [None] * pg.size()
    dist.all_gather_object(values, value, group=pg)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise DropInError(
                f"rank {rank} and rank 0 differ in {what}: {other!r} and {values[0]!r}; hint: give the same"
            )


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
            raise DropInError(f"rank {rank} and rank 0 differ in {_difference(shapes, theirs)} on all ranks")
    assert question is not None
    return question


def _difference(first: Shapes, second: Shapes) -> str:
    """Return in what two questions differ, and what to make the same."""
    for name in {**first, **second}:
        one, other = first.get(name), second.get(name)
        if one is None or other is None or one.declared != other.declared:
            return f"table {name!r}; hint: make the same module and planner"
        if one != other:
            return f"what sample_batches or pooling_factors say of table {name!r}; hint: give the same global batches"
    return "settings; hint: make the same module and planner"


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
