"""Failed collective operations, by the types and words that torch gives them."""

import pytest
import torch
import torch.distributed as dist
from neuroshard_api.process.errors import ExpectedError, InputError, PeerLostError
from neuroshard_api.process.exit_codes import ExitCode
from neuroshard_trainer.errors import CommunicationError
from neuroshard_trainer.ranks.failures import lost_peers

SHARED_MEMORY = (
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\n"
    "Last error:\n"
    "Error while creating shared memory segment /dev/shm/nccl-Lf3Yyu (size 33030528)"
)
DUPLICATE = (
    "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, invalid usage\n"
    "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
    "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000"
)
REMOTE = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or there was a "
    "network error\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
    "prematurely.\nLast error:\nsocketProgress: Connection closed by remote peer node-2<37422>"
)


def raised(error: Exception, *, trains: bool) -> ExpectedError:
    """Return the trainer's error for a failure."""
    with pytest.raises(ExpectedError) as found, lost_peers(lambda: "after step 3", trains=lambda: trains):
        raise error
    return found.value


@pytest.mark.parametrize("text", [SHARED_MEMORY, DUPLICATE], ids=["shared memory too small", "two ranks on one GPU"])
def test_a_refusal_of_nccl_before_the_first_step_keeps_its_words(text: str) -> None:
    """It is not a lost peer, has a code of its own, and ends in NCCL's last error."""
    found = raised(dist.DistBackendError(text), trains=False)

    assert isinstance(found, CommunicationError)
    assert found.exit_code is ExitCode.COMMUNICATION
    assert text.splitlines()[-1] in str(found)
    assert "\n" not in str(found)


@pytest.mark.parametrize(
    ("error", "trains"),
    [
        (dist.DistBackendError(SHARED_MEMORY), True),
        (dist.DistBackendError(REMOTE), False),
        (dist.DistBackendError("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(...)"), False),
        (dist.DistNetworkError("The client socket has timed out after 60000ms"), False),
        (dist.DistStoreError("wait timeout after 60000ms, keys: /"), False),
        (RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:43513"), True),
        (RuntimeError("Application timeout caused pair closure"), True),
    ],
    ids=["NCCL worked before", "a remote process", "a timeout", "no network", "no store", "gloo", "gloo's other wait"],
)
def test_another_ranks_end_is_a_lost_peer(error: Exception, *, trains: bool) -> None:
    """By the exception's type, and by words where gloo gives a plain RuntimeError."""
    found = raised(error, trains=trains)

    assert isinstance(found, PeerLostError)
    assert "after step 3 another process was gone or did not answer" in str(found)


def test_a_gpu_without_memory_is_no_lost_peer() -> None:
    """Whatever words its message has."""
    found = raised(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB; timed out"), trains=True)

    assert isinstance(found, InputError)
    assert "lower spec.model.batchSizePerDevice" in str(found)


def test_a_bug_stays_a_bug() -> None:
    """An error that has nothing to do with other ranks is passed on as it is."""
    with pytest.raises(RuntimeError, match="shape"), lost_peers(lambda: "now", trains=lambda: True):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
