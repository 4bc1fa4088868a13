"""A vote of all ranks on what is planned, before one of them raises or searches."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch.distributed as dist
from torchrec.distributed.planner.types import PlannerError, PlannerErrorType

from neuroshard_torchrec.errors import DropInError, NoTablesError
from neuroshard_torchrec.question import Question, Shapes

Result = TypeVar("Result")


def attempt(work: Callable[[], Result]) -> tuple[Result | None, DropInError | None]:
    """Return a result, or the error that all ranks are to raise."""
    try:
        return work(), None
    except DropInError as error:
        return None, error
    except PlannerError as error:
        return None, DropInError(str(error), error.error_type)
    except Exception as error:  # noqa: BLE001 - the other ranks wait: they must hear of any
        return None, DropInError(f"{type(error).__name__}: {error}", PlannerErrorType.OTHER)


def together(work: Callable[[], Result], pg: dist.ProcessGroup) -> Result:
    """Return this rank's result once all ranks have theirs. All of them must call this.

    Raises:
        DropInError: the same on all ranks, if one of them has an error.
    """
    result, problem = attempt(work)
    _require_none(gathered(problem, pg))
    return result  # type: ignore[return-value] # without an error there is one


def gathered(own: Result, pg: dist.ProcessGroup) -> list[Result]:
    """Return the values of all ranks, by rank. All of them must call this."""
    found: list[Any] = [None] * pg.size()
    dist.all_gather_object(found, own, group=pg)
    return found


def _require_none(problems: Sequence[DropInError | None]) -> None:
    for rank, error in enumerate(problems):
        if error is not None:
            raise DropInError(f"rank {rank}: {error}", error.error_type)


def require_equal(value: object, *, what: str, pg: dist.ProcessGroup) -> None:
    """Do nothing if all ranks have the same value. All of them must call this. Raises DropInError on all."""
    values: list[object] = [None] * pg.size()
    dist.all_gather_object(values, value, group=pg)
    for rank, other in enumerate(values):
        if other != values[0]:
            raise DropInError(
                f"rank {rank} and rank 0 differ in {what}: {other!r} and {values[0]!r}; hint: give the same"
            )


def agreed_question(work: Callable[[], Question], pg: dist.ProcessGroup) -> Question | None:
    """Return this rank's question if all ranks have the same. None: no rank has tables. All of them must call this.

    Raises:
        DropInError: the same on all ranks, if one of them has an error or another question.
    """
    question, problem = attempt(work)
    own = ("", {}, {}) if question is None else (question.digest, question.shapes, question.settings)
    votes = gathered((problem, *own), pg)
    if all(isinstance(error, NoTablesError) for error, *_ in votes):
        return None
    _require_none([error for error, *_ in votes])
    _, digest, shapes, settings = votes[0]
    for rank, (_, other, theirs, set_there) in enumerate(votes):
        if other != digest:
            found = _difference(shapes, theirs) or _other_setting(settings, set_there)
            raise DropInError(f"rank {rank} and rank 0 differ in {found} on all ranks")
    assert question is not None
    return question


def _difference(first: Shapes, second: Shapes) -> str:
    """Return in what the tables of two questions differ, and what to make the same. Empty: in nothing."""
    for name in {**first, **second}:
        one, other = first.get(name), second.get(name)
        if one is None or other is None or one.declared != other.declared:
            return f"table {name!r}; hint: make the same module and planner"
        if one != other:
            return f"what sample_batches or pooling_factors say of table {name!r}; hint: give the same global batches"
    return ""


def _other_setting(first: Mapping[str, str], second: Mapping[str, str]) -> str:
    """Return the first setting in which two questions differ, with both values, and what to make the same."""
    for name in {**first, **second}:
        if first.get(name) != second.get(name):
            return (
                f"{name}, which is {second.get(name, 'unset')} there and {first.get(name, 'unset')} on rank 0"
                f"; hint: make the same planner"
            )
    return "the places of their tables; hint: make the same module and planner"


def from_rank_0(work: Callable[[], Result], pg: dist.ProcessGroup) -> Result:
    """Let rank 0 alone do something, and return what it got on all ranks. All of them must call this.

    Args:
        work: its result can be pickled.
        pg: of all ranks.

    Raises:
        DropInError: on all ranks, where rank 0 has an error.
    """
    found: list[Any] = [None, None]
    if pg.rank() == 0:
        found = list(attempt(work))
    dist.broadcast_object_list(found, group_src=0, group=pg)
    result, problem = found
    if problem is not None:
        raise problem
    return result  # type: ignore[no-any-return] # what rank 0 sent
