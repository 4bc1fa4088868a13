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
    result, problem = _outcome(action)
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, (result, problem), group=group)
    _raise_first([problem for _, problem in gathered], group)
    return [result for result, _ in gathered]


def together(action: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Let every rank do something without collectives, and return what this one got; raises as `agreed` does."""
    result, problem = _outcome(action)
    problems: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(problems, problem, group=group)
    _raise_first(problems, group)
    return cast("T", result)


def _outcome(action: Callable[[], T]) -> tuple[T | None, str | None]:
    try:
        return action(), None
    except (InputError, DocumentError, OSError) as error:
        return None, str(error)


def _raise_first(problems: Sequence[str | None], group: dist.ProcessGroup | None) -> None:
    for rank, problem in enumerate(problems):
        if problem is not None:
            raise InputError(problem if rank == dist.get_rank(group) else f"rank {rank}: {problem}")
