"""What a rank of torchrun does: measures all-to-alls with the others until rank 0 says that the budget is spent.

Then it measures the collectives of weights and gradients.
"""

from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import torch.distributed as dist
from neuroshard_api.documents.records import ProfileRecord
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.documents.topology import Link
from neuroshard_costs.fitting.fit import MIN_RECORDS

from neuroshard_profiler.benches.comm import Ranks
from neuroshard_profiler.benches.comm_sampling import CommunicationSpace, communication_sample
from neuroshard_profiler.benches.expansion import has_repeats
from neuroshard_profiler.benches.reduction import REDUCTIONS_FILE, collect_reductions
from neuroshard_profiler.budget import Budget
from neuroshard_profiler.devices.base import TimedDevice
from neuroshard_profiler.devices.exchange_timers import ExchangeRepeats, ExchangeTimer
from neuroshard_profiler.records import RecordsFile

COLLECTIONS_FILE = "collections.jsonl"
_REDUCTIONS_SHARE = 0.25
"""Of the time, for collectives of weights and gradients."""


def collect_communication(
    path: Path,
    job: TableSet | None,
    device: TimedDevice,
    *,
    timer: ExchangeTimer,
    repeats: ExchangeRepeats,
    job_batch_size_per_device: int,
    budget_seconds: float,
    max_records: int | None = None,
    seed: int = 0,
    on_record: Callable[[int, Budget], None] = lambda _number, _budget: None,
) -> None:
    """Measure with the other ranks that torchrun started; rank 0 appends the records.

    The collectives of weights and gradients have a file next to it, and a part of the time. For a job whose lists
    repeat, what a further collection of tables adds is measured too, into another file.

    Args:
        path: the records file; it may hold records already, whose links then stay.
        job: the job's tables, whose columns half of the samples have. None: samples that are spread widely, only.
        device: what each rank drives.
        timer: of exchanges.
        repeats: how often an exchange is timed, and how large it is at most.
        job_batch_size_per_device: of these samples.
        budget_seconds: from when all ranks have met; what earlier runs spent on the file's records counts.
        max_records: of each file. None: time ends it, once there are enough for a fit of both directions.
        seed: of the samples.
        on_record: called on rank 0.

    Raises:
        RecordsError: on rank 0: the file is broken or holds another machine's records.
    """
    ranks = Ranks(device, timer=timer, repeats=repeats)
    with ExitStack() as stack:
        stack.callback(ranks.leave)
        file = stack.enter_context(RecordsFile(path, source=device.source)) if ranks.rank == 0 else None
        earlier = file.records if file else ()
        known = earlier[0].communication if earlier else None
        first, links = _agreed(len(earlier), (known.intra_node, known.inter_node) if known else None)
        intra, inter = links or ranks.links()
        environment = device.environment(("fbgemm-gpu", "fbgemm-gpu-cpu"))
        budget = Budget(
            seconds=(1 - _REDUCTIONS_SHARE) * budget_seconds,
            max_records=max_records,
            min_records=2 * MIN_RECORDS,
            earlier_seconds=file.elapsed_seconds if file else 0.0,  # rank 0 alone decides when it is spent
        )
        space = CommunicationSpace(
            num_nodes=ranks.num_nodes,
            devices_per_node=ranks.devices_per_node,
            intra_node=intra,
            inter_node=inter,
            max_bytes=ranks.repeats.max_bytes,
            job=job,
            job_batch_size_per_device=job_batch_size_per_device,
        )
        index = first
        while not ranks.agree(budget.is_spent(index)):
            sample = communication_sample(space, seed=seed, index=index)
            times = ranks.measure(sample)
            index += 1
            if file is not None:
                file.append(
                    ProfileRecord(
                        source=device.source,
                        communication=sample,
                        device_ms=times.device_ms,
                        spread=times.spread,
                        num_repeats=times.num_repeats,
                        disturbance=times.disturbance,
                        elapsed_seconds=budget.elapsed_seconds,
                        environment=environment,
                    )
                )
                on_record(index, budget)
        collect_reductions(
            ranks,
            path.with_name(REDUCTIONS_FILE),
            links=(intra, inter),
            budget_seconds=_REDUCTIONS_SHARE * budget_seconds,
            environment=environment,
            max_records=max_records,
        )
        if has_repeats(job) and find_spec("torchrec") is not None:
            from neuroshard_profiler.benches.collection import collect_collections  # noqa: PLC0415 - TorchRec

            collect_collections(device, path.with_name(COLLECTIONS_FILE))


def _agreed(
    number: int, links: tuple[Link | None, Link | None] | None
) -> tuple[int, tuple[Link | None, Link | None] | None]:
    """Return rank 0's values on every rank."""
    values = [(number, links)]
    dist.broadcast_object_list(values, src=0)
    return values[0]
