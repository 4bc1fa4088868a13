"""One of four ranks: measures small collectives of weights and gradients. Argument: folder of the records."""

import json
from pathlib import Path
from typing import get_args

from neuroshard_api.documents.bundle import ReductionKind
from neuroshard_api.documents.records import ReductionSample
from neuroshard_api.documents.topology import Link
from neuroshard_profiler.benches.comm import Ranks
from neuroshard_profiler.benches.reduction import REDUCTIONS_FILE, SIZES, TimedCollective, collect_reductions
from neuroshard_profiler.devices.cpu import CpuDevice
from neuroshard_profiler.devices.exchange_timers import ExchangeRepeats, HostExchangeTimer

LINK = Link(bandwidth_bytes_per_second=1e9, latency_seconds=1e-5)


def main(folder: str) -> None:
    """Measure seven collectives, and then the others; write what each collective returned."""
    device = CpuDevice(core=0)
    repeats = ExchangeRepeats(warm_up=1, timed=3, link_bytes=8, max_bytes=SIZES[3] // 2)
    ranks = Ranks(device, timer=HostExchangeTimer(), repeats=repeats)
    for most in (7, None):
        collect_reductions(
            ranks,
            Path(folder) / REDUCTIONS_FILE,
            links=(LINK, LINK),
            budget_seconds=60.0,
            environment={},
            max_records=most,
        )
    results = {kind: TimedCollective(_sample(kind), ranks) for kind in get_args(ReductionKind)}
    results["all_gather"].shard.fill_(1.0 + ranks.rank)
    found = {kind: collective.run().tolist() for kind, collective in results.items()}
    if ranks.rank == 0:
        (Path(folder) / "results.json").write_text(json.dumps(found))
    ranks.leave()


def _sample(kind: ReductionKind) -> ReductionSample:
    return ReductionSample(
        kind=kind, num_nodes=2, devices_per_node=2, intra_node=LINK, inter_node=LINK, num_bytes=4 * 8
    )
