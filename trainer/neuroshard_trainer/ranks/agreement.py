"""A vote of all ranks before one of them raises: an error on some ranks alone leaves the others in a collective."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import torch.distributed as dist
from neuroshard_api.documents.document import DocumentError
from neuroshard_api.process.errors import InputError

T = TypeVar("T")


def agreed(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> list[T]:
    """Let every rank do something without collectives, and return what each got, by rank. All ranks must call this.

    Args:
        action: of this rank.
        group: of all ranks, for CPU tensors; None is the default group.

    Raises:
        InputError: the action raised it, a DocumentError, or an OSError on one rank or several; the message names the
            first.
    """
    outcomes = gathered(_outcome(action), group)
    _raise_first([problem for _, problem in outcomes], group)
    return [cast("T", result) for result, _ in outcomes]


def together(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Let every rank do something without collectives, and return what this one got; raises as `agreed` does."""
    result, problem = _outcome(action)
    _raise_first(gathered(problem, group), group)
    return cast("T", result)


def gathered(own: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Return the values of all ranks, by rank. All ranks must call this.

    Args:
        own: of this rank; it is pickled.
        group: of all ranks, for CPU tensors; None is the default group.
    """
    values: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(values, own, group=group)
    return values


def _outcome(action: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return action(), None
    except (InputError, DocumentError, OSError) as error:
        return None, str(error)


def _raise_first(problems: Sequence[str | None], group: dist.ProcessGroup | None) -> None:
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise InputError(problem if rank == dist.get_rank(group) else f"rank {rank}: {problem}")
