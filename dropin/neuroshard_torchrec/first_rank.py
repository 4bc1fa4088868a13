"""Messages on the first rank alone, for ranks that all have the same to report."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch.distributed as dist

_tells: ContextVar[bool | None] = ContextVar("tells", default=None)
"""Whether this rank tells. None: the first rank of the world does."""


def logger_of(name: str) -> logging.Logger:
    """Return a module's logger, which is silent on all ranks but the first of those that plan together."""
    logger = logging.getLogger(name)
    logger.addFilter(_is_told)
    return logger


@contextmanager
def first_of(group: dist.ProcessGroup) -> Iterator[None]:
    """Let the first rank of a group tell, which need not be the first of the world."""
    token = _tells.set(group.rank() == 0)
    try:
        yield
    finally:
        _tells.reset(token)


def _is_told(_: logging.LogRecord) -> bool:
    own = _tells.get()
    if own is not None:
        return own
    if dist.is_initialized():
        return dist.get_rank() == 0
    return os.environ.get("RANK", "0") == "0"  # of a launcher, before the script has a group
