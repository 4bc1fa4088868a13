"""How devices are divided among variants: the choice next to all divisions.

    python -m benchmarks.sweep_choice

Prices five public sets on 1 to 16 H100 (simulated) for 2 to 8 equal variants, and compares the chosen division with
every choice of sizes, of single variants and of sets that train together.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations_with_replacement, product
from pathlib import Path

from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.topology import Topology
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_dlrm.device_counts import planned_counts
from neuroshard_dlrm.devices import build_topology
from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.sweeps import chosen_division, part_requests
from neuroshard_dlrm.variant_sets import SweepJob, sets_in, sets_of
from neuroshard_dlrm.variants import expanded
from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.workload_store import read_workload
from neuroshard_report.explain.device_counts import DeviceCount
from neuroshard_report.explain.divisions import Room, in_turns

from benchmarks.results_file import cpu_model, hardware_slug, write_result

WORKLOADS = ("criteo-kaggle", "mlperf-dlrm-v1", "mlperf-dlrm-dcnv2", "nvidia-synthetic-tiny", "nvidia-synthetic-small")
DEVICES = (1, 4, 8, 16)
VARIANTS = (2, 4, 6, 8, 9)
SAMPLES_PER_DEVICE = 8192
"""On all devices; on a part more."""


def main() -> None:
    """Price, and write the result."""
    choices = [row for workload in WORKLOADS for row in choice_rows(workload)]
    lines = [
        "# How devices are divided among variants",
        "",
        f"Machine: {cpu_model()}, {os.cpu_count()} cores.",
        "",
        f"Equal variants, {SAMPLES_PER_DEVICE:,} samples per device where a variant has all of them; steps of the",
        "embedding part and the host, without a dense part, simulated H100. Gain: over one variant after the other on",
        "all devices. The last column is the time of the chosen division over the least of all: of every choice of",
        "sizes for 1, 2, 3, .. jobs that train as many variants each together as nearly equal numbers allow.",
        "",
        "| tables | devices | variants | together | chosen: devices of each job | ms for a step | gain | over best |",
        "|---|---|---|---|---|---|---|---|",
        *choices,
    ]
    print(write_result("sweep-choice", lines, hardware=hardware_slug(), packages=("numpy",)))


def choice_rows(workload: str) -> Iterator[str]:
    """Yield a row for each number of devices and of variants."""
    for devices in DEVICES:
        topology = build_topology(RequestOptions(tables=workload, devices=devices, device_type="h100-80gb"))
        room = Room(num_nodes=topology.num_nodes, devices_per_node=topology.devices_per_node)
        prices = Prices(workload, topology, room)
        for count in VARIANTS:
            file = job_of(workload, devices)
            variants = expanded(file, {"spec.training.seed": list(range(count))})
            sets, _ = sets_in(file, variants)
            try:
                choice = chosen_division(
                    variants, sets, room, device_type="h100-80gb", asked=prices.asked, planned=prices.planned
                )
            except InfeasibleError:
                yield f"| {workload} | {devices} | {count} | | no room | | | |"
                continue
            every = (sets_of(file, variants, num_jobs) for num_jobs in range(1, count + 1))
            best = min(total for jobs in every for total in prices.totals(jobs))
            division = choice.chosen.division
            assert division is not None, "it is possible"
            gain = choice.gain(choice.chosen)
            together = max(len(job.variants) for job in choice.jobs)
            sizes = ", ".join(map(str, sorted(division.sizes.values())))
            numbers = f"{division.total:.3f} | {'-' if gain is None else f'{gain:.2f}'} | {division.total / best:.3f}"
            yield f"| {workload} | {devices} | {count} | {together} | {sizes} | {numbers} |"


class Prices:
    """Plans of one workload's jobs on parts of some devices, each made once.

    Args:
        workload: name of the tables.
        topology: all devices.
        room: the same as they are divided.
    """

    def __init__(self, workload: str, topology: Topology, room: Room) -> None:
        options = RequestOptions(tables=workload, device_type="h100-80gb")
        self.asked = part_requests(options, topology, room)
        self._room = room
        self._made: dict[str, DeviceCount] = {}

    def planned(self, requests: list[PlanRequest]) -> Mapping[int, DeviceCount]:
        """Return the result of each request, by its place."""
        keys = [request.to_json() for request in requests]
        new = {key: request for key, request in zip(keys, requests, strict=True) if key not in self._made}
        found = dict(planned_counts(list(new.values()), bundle=None, prices={}))
        self._made |= {key: found[place] for place, key in enumerate(new)}
        return {place: self._made[key] for place, key in enumerate(keys)}

    def totals(self, jobs: Sequence[SweepJob]) -> Iterator[float]:
        """Yield the milliseconds of every choice of the jobs' sizes, infinity where one has no plan.

        Jobs of as many variants are equal.
        """
        numbers = Counter(len(job.variants) for job in jobs)
        choices = []
        for number, count in numbers.items():
            times = self._times(next(job for job in jobs if len(job.variants) == number))
            fitting = [(size, time_ms) for size, time_ms in times.items() if time_ms is not None]
            choices.append(combinations_with_replacement(fitting, count))
        yield math.inf
        for chosen in product(*choices):
            sizes, taken_ms = zip(*(part for parts in chosen for part in parts), strict=True)
            yield in_turns(sizes, taken_ms, self._room).total

    def _times(self, job: SweepJob) -> dict[int, float | None]:
        """Return the milliseconds of a job's step, by the devices of its part. None: it has no plan there."""
        asked = {size: self.asked(job, size) for size in self._room.sizes}
        possible = {size: request for size, request in asked.items() if isinstance(request, PlanRequest)}
        counts = self.planned(list(possible.values()))
        found = {size: counts[place].step_ms for place, size in enumerate(possible)}
        return {size: found.get(size) for size in asked}


def job_of(workload: str, devices: int) -> JobFile:
    """Return a job of the workload on that many devices."""
    tables = [
        {
            "name": table.name,
            "numEmbeddings": table.num_embeddings,
            "embeddingDim": table.embedding_dim,
            "poolingFactor": str(table.pooling_factor),
            **({} if table.zipf_exponent is None else {"zipfExponent": str(table.zipf_exponent)}),
        }
        for table in read_workload(workload).tables
    ]
    document = {
        "apiVersion": "training.neuroshard.dev/v1alpha1",
        "kind": "DLRMTrainingJob",
        "metadata": {"name": workload},
        "spec": {
            "model": {"embeddingTables": tables, "batchSizePerDevice": SAMPLES_PER_DEVICE},
            "trainer": {"numProcPerNode": devices},
            "experimental": {"planner": {"denseMemoryPerDevice": "1Mi"}},
        },
    }
    return JobFile(path=Path("job.yaml"), job=DLRMTrainingJob.from_data(document), document=document)


if __name__ == "__main__":
    main()
