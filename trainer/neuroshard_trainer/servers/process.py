"""The process of a server: its limit of memory, and its steps, which nothing measures."""

import resource
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.process.errors import InputError
from neuroshard_api.process.sizes import format_bytes

T = TypeVar("T")
R = TypeVar("R")


def limit_memory(plan: GivenPlan) -> None:
    """Let this process have no more memory than the plan's servers give it.

    It is a limit of the system on private memory (RLIMIT_DATA): an allocation beyond it fails here, and no other
    process is asked for its memory.
    """
    pool = plan.request.servers
    assert pool is not None, "this process is a server's"
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = pool.bytes_per_process
    limit = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def full_server(plan: GivenPlan, error: BaseException) -> InputError:
    """Return the error of a server whose memory is used up."""
    pool = plan.request.servers
    assert pool is not None, "this process is a server's"
    name = pool.process_name(dist.get_rank() - plan.num_devices)
    return InputError(
        f"{name} has used up its {format_bytes(pool.bytes_per_process)} of memory "
        f"({str(error).strip().splitlines()[0]}); hint: raise the limit of memory in "
        "spec.experimental.embeddingServers.resources, or give more replicas"
    )


def is_full(error: BaseException) -> bool:
    """Whether an error is that of memory used up."""
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


class ServerReporter:
    """In place of a trainer's StepReporter."""

    drift = None

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches."""
        yield from batches

    def pipelined(self, batches: Iterable[T], progress: Callable[[Iterator[T]], R]) -> Iterator[R]:
        """Yield the result of each call of ``progress``, until it raises StopIteration."""
        iterator = iter(batches)
        while True:
            try:
                result = progress(iterator)
            except StopIteration:
                return
            yield result

    def count_distinct(self, num_samples: int, num_distinct: Sequence[int]) -> None:
        """Count nothing: a server's batches have no samples."""

    def end_step(self) -> None:
        """Measure nothing."""

    def forget_steps(self) -> None:
        """Forget nothing: nothing was measured."""

    def report(self) -> None:
        """Report nothing."""
