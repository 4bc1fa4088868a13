"""Failed collective operations as errors that say what to do: classified by exception types, by words only for gloo."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from neuroshard_api.process.errors import ANOTHER_PROCESS, InputError, PeerLostError

from neuroshard_trainer.errors import CommunicationError
from neuroshard_trainer.ranks.peers import Peers

_GLOO = re.compile(
    r"gloo|connection (closed|reset)|broken pipe|timed out|socket|timeout caused pair closure", re.IGNORECASE
)
"""How gloo's errors read, which are plain RuntimeErrors; the last comes to a group's other waits after a timeout."""
_NCCL_PEER = re.compile(r"ncclRemoteError|timed out|timeout|connection (closed|reset)|watchdog", re.IGNORECASE)
"""How NCCL's errors read where another rank is the cause; nccl.h says so of ncclRemoteError."""


@contextmanager
def lost_peers(when: Callable[[], str], *, trains: Callable[[], bool], peers: Peers | None = None) -> Iterator[None]:
    """Turn the failure of a collective operation into the error that says what to do.

    Args:
        when: what was going on, for the message.
        trains: whether a step has been taken since the start; NCCL worked then, and a failure is another rank's.
        peers: all ranks. If unset: a lost one has no name.

    Raises:
        PeerLostError: another process was gone or did not answer.
        CommunicationError: NCCL refused before the first step.
        InputError: the GPU's memory is full.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise full_memory(when(), error) from error
    except dist.DistBackendError as error:
        if trains() or _NCCL_PEER.search(str(error)):
            raise _peer_lost(when(), error, peers) from error
        raise CommunicationError(
            f"{when()} NCCL refused: {_one_line(error)}; hint: NCCL_DEBUG=INFO in spec.trainer.env logs its "
            "choices, docs/guides/fast-network.md lists the usual causes"
        ) from error
    except dist.DistError as error:
        raise _peer_lost(when(), error, peers) from error
    except RuntimeError as error:
        if not _GLOO.search(str(error)):
            raise
        raise _peer_lost(when(), error, peers) from error


def full_memory(when: str, error: torch.OutOfMemoryError) -> InputError:
    """Return the error of a GPU whose memory is full."""
    return InputError(
        f"{when} the GPU's memory was full ({_one_line(error)}); hint: lower spec.model.batchSizePerDevice, or plan "
        "again with a smaller spec.planner.maxMemoryPerDevice"
    )


def is_of_communication(error: Exception) -> bool:
    """Return whether a collective operation failed, which other ranks are the cause of or will see too."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and bool(_GLOO.search(str(error))))


def _peer_lost(when: str, error: RuntimeError, peers: Peers | None) -> PeerLostError:
    reason = re.sub(r"^\[\S+\] |\. This is typically.*", "", str(error).strip().splitlines()[0])
    return PeerLostError.of(when, reason, ANOTHER_PROCESS if peers is None else peers.lost(reason))


def _one_line(error: RuntimeError) -> str:
    return " ".join(str(error).split())
