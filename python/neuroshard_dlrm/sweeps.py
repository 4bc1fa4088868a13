"""The choice of a sweep: each job priced on each part of the devices, and the division that takes least time.

A job trains one variant, or a set of them together. It keeps the global batch, so that a part of fewer devices has more
samples on each of them.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from neuroshard_api.documents.document import DocumentError
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.topology import Topology
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.job.plan_request import dense_signature
from neuroshard_api.job.resource import quantity
from neuroshard_api.job.settings import with_settings
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.failures import CommandError
from neuroshard_api.process.hints import without_hint
from neuroshard_planner.errors import InfeasibleError
from neuroshard_report.explain.device_counts import DeviceCount
from neuroshard_report.explain.divisions import Division, PartTimes, Room, best_division, equal_division

from neuroshard_dlrm.options import RequestOptions
from neuroshard_dlrm.requests import request_of
from neuroshard_dlrm.variant_sets import SweepJob, single_jobs
from neuroshard_dlrm.variants import Variant

_DIVISIBLE = ("cpu", "memory", "ephemeral-storage")
"""Resources of a pod that a part has in proportion to its devices."""


_LEAST_GAIN = 0.02
"""Of sets over single variants: one trainer's failure is that of its whole set."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedPart:
    """A job on a part of the devices."""

    count: DeviceCount | None
    """Its plan, or the reason that there is none. None: the job is not possible on that many devices."""
    problem: str | None
    """None: there is a plan."""

    @property
    def step_ms(self) -> float | None:
        """A whole step, as far as it has a price. None: there is no plan."""
        return None if self.count is None else self.count.step_ms

    @property
    def memory_share(self) -> float | None:
        """Used share of the memory of the fullest device. None: there is no plan."""
        plan = None if self.count is None else self.count.plan
        return None if plan is None else plan.memory_bytes / plan.capacity_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One way to divide the devices among all variants."""

    jobs: tuple[SweepJob, ...]
    """Of one variant each, or of sets."""
    division: Division | None
    """Of the jobs; times in milliseconds for a step of each. None: it is not possible."""
    size: int | None
    """Devices of each part. None: parts differ."""
    memory_share: float | None
    """Of the fullest device. None: it is not possible."""
    problem: str | None
    """None: it is possible."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepChoice:
    """Ways to divide devices among the variants of a job, and the chosen one."""

    room: Room
    device_type: str
    ways: tuple[Way, ...]
    """Single variants by the size of the parts, the mixed one after them, if it is best; then the best way of sets of
    each size."""
    chosen: Way
    parts: tuple[PricedPart, ...]
    """The chosen way's jobs on their parts."""

    @property
    def one_after_other_ms(self) -> float | None:
        """A step of each variant on all devices. None: one does not fit."""
        division = next(way.division for way in self.ways if way.size == self.room.num_devices)  # singles come first
        return None if division is None else division.total

    @property
    def jobs(self) -> tuple[SweepJob, ...]:
        """The chosen jobs."""
        return self.chosen.jobs

    @property
    def sizes(self) -> dict[int, int]:
        """Devices of each chosen job, by its place."""
        assert self.chosen.division is not None, "it is possible"
        return self.chosen.division.sizes

    def gain(self, way: Way) -> float | None:
        """Return the speed of a way over that of one variant after the other on all devices. None: not possible."""
        whole_ms = self.one_after_other_ms
        return None if way.division is None or whole_ms is None else whole_ms / way.division.total


Asked = Callable[[SweepJob, int], PlanRequest | str]
"""The request of a job on a part of that many devices, or the reason that there is none."""
Planned = Callable[[list[PlanRequest]], Mapping[int, DeviceCount]]
"""The result of each of some requests, by its place."""


def require_sweepable(file: JobFile) -> None:
    """Do nothing for a job whose variants can share devices. Raises CommandError."""
    spec = file.job.spec
    problems = (
        (spec.variants, "variants", "a sweep makes variants of one model by --set"),
        (spec.trainer.command, "trainer.command", "a trainer of your own is not known to take a variant's settings"),
        (spec.plan_ref, "planRef", "a plan is for one model on one number of devices, and each variant has its own"),
        (spec.checkpoint.folder, "checkpoint.folder", "all variants would keep their state in one folder"),
        (spec.model.chooses_batch_size, "model.batchSizePerDevice", "is Auto, and all variants keep one global batch"),
    )
    for value, field, why in problems:
        if value:
            raise CommandError(f"{file.path}: spec.{field}: {why}; hint: leave it out")
    if not file.has_tables:
        raise CommandError(
            f"{file.path}: spec.model.embeddingTablesFrom: the tables are in a ConfigMap of the cluster"
            "; hint: add the ConfigMap to the file after a line `---`"
        )


def require_one_dense_part(variants: Sequence[Variant]) -> None:
    """Do nothing if a count of the dense part holds for all variants. Raises CommandError."""
    first, *others = (dense_signature(variant.file.job) for variant in variants)
    field = next((name for other in others for name in other if other[name] != first.get(name)), None)
    if field is not None:
        raise CommandError(
            f"--dense: was counted for one dense part, and variants differ in {field}"
            "; hint: leave it out, so that each is counted"
        )


def on_part(file: JobFile, size: int, room: Room) -> JobFile:
    """Return a job on that many of the devices, with its global batch, and its share of each node's resources.

    Raises:
        CommandError: the devices do not divide the global batch.
    """
    spec = file.job.spec
    trainer = spec.trainer
    of_all = spec.model.samples_per_device * trainer.world_size
    if of_all % size:
        raise CommandError(f"{size} devices do not divide the {of_all:,} samples of a step")
    nodes = max(1, size // room.devices_per_node)
    per_node = size // nodes
    settings: dict[str, Any] = {
        "spec.model.batchSizePerDevice": of_all // size,
        "spec.trainer.numNodes": nodes,
    }
    share = (per_node, trainer.devices_per_node)
    document = file.document
    resources = (document["spec"].get("trainer") or {}).get("resourcesPerNode") or {}
    if resources:
        settings["spec.trainer.resourcesPerNode"] = {
            kind: {name: _of_part(name, amount, trainer.gpus, share) for name, amount in (amounts or {}).items()}
            for kind, amounts in resources.items()
        }
    if not (trainer.num_gpus_per_node and trainer.num_proc_per_node in {"auto", "gpu"}):
        settings["spec.trainer.numProcPerNode"] = per_node
    host = (document["spec"].get("planner") or {}).get("hostMemoryPerNode")
    if host is not None and share[0] != share[1]:
        settings["spec.planner.hostMemoryPerNode"] = int(quantity(host) * share[0] / share[1])
    changed = with_settings(document, settings)
    job = DLRMTrainingJob.from_data(changed, where=str(file.path))
    return replace(file, job=job, document=changed)


def part_requests(options: RequestOptions, topology: Topology, room: Room) -> Asked:
    """Return a function to the request of a job on a part.

    Args:
        options: those of the request but devices and fields of the job.
        topology: all devices.
        room: the same as they are divided.
    """

    def asked(job: SweepJob, size: int) -> PlanRequest | str:
        nodes = max(1, size // room.devices_per_node)
        part = topology.model_copy(update={"num_nodes": nodes, "devices_per_node": size // nodes})
        try:
            found = on_part(job.priced, size, room)
            on = replace(options, devices=part, device_type=None)
            spec = found.job.spec
            of_all = spec.model.samples_per_device * spec.trainer.world_size
            sizes = [of_all // each for each in room.sizes if of_all % each == 0]
            request = request_of(found, on, algorithm=None, with_dense_of_jobs=True, other_sizes=sizes)
        except (CommandError, DocumentError) as error:
            return str(error)
        # Jobs of equal tables are planned once.
        return request.model_copy(update={"tables": request.tables.model_copy(update={"name": options.tables})})

    return asked


def chosen_division(
    variants: Sequence[Variant],
    sets: Sequence[tuple[SweepJob, ...]],
    room: Room,
    *,
    device_type: str,
    asked: Asked,
    planned: Planned,
) -> SweepChoice:
    """Price all jobs on all parts, and return the division with the least time for a step of each variant.

    Args:
        variants: of one job.
        sets: of `sets_in`.
        room: the devices.
        device_type: of the devices.
        asked: of `part_requests`.
        planned: plans requests.

    Raises:
        CommandError: a variant is not a job on any part, as without the file of a counted dense part.
        InfeasibleError: a variant has no plan on any part.
    """
    singles = single_jobs(variants)
    counts: dict[str, DeviceCount] = {}
    prices = _priced([{size: asked(job, size) for size in room.sizes} for job in singles], room, planned, counts)
    for variant, row in zip(variants, prices, strict=True):
        if all(part.count is None for part in row):
            raise CommandError(f"variant {variant.text}: {row[-1].problem}")
        if all(part.step_ms is None for part in row):
            raise InfeasibleError(f"variant {variant.text}: has no plan on {room.sizes[-1]} devices: {row[-1].problem}")
    ways = _ways(singles, prices, room)
    best = _best(ways)
    priced_jobs = [(singles, prices)]
    of_largest: dict[int, list[Way]] = {}
    for jobs in () if _fills_all(best, room) else sets:
        at_most_ms = _total(best) * (1 - _LEAST_GAIN)
        sizes = [size for size in room.sizes if _least_ms(jobs, prices, size, room) < at_most_ms]
        if not sizes:
            continue
        together = [job for job in jobs if len(job.variants) > 1]
        requests = [{size: asked(job, size) for size in sizes} for job in together]
        priced = iter(_priced(requests, room, planned, counts))
        of_sets = [next(priced) if len(job.variants) > 1 else prices[job.variants[0]] for job in jobs]
        priced_jobs.append((jobs, of_sets))
        of_largest.setdefault(max(len(job.variants) for job in jobs), []).append(_best(_ways(jobs, of_sets, room)))
    ways += map(_best, of_largest.values())
    single_ms = _total(best)
    faster = [way for way in ways if len(way.jobs) < len(variants) and _total(way) < single_ms * (1 - _LEAST_GAIN)]
    chosen = _best(faster or [best])
    assert chosen.division is not None, "each variant has a plan"
    parts = next(parts for jobs, parts in priced_jobs if jobs == chosen.jobs)
    return SweepChoice(
        room=room,
        device_type=device_type,
        ways=tuple(ways),
        chosen=chosen,
        parts=tuple(parts[place][room.sizes.index(size)] for place, size in sorted(chosen.division.sizes.items())),
    )


def _priced(
    requests: Sequence[Mapping[int, PlanRequest | str]], room: Room, planned: Planned, counts: dict[str, DeviceCount]
) -> list[tuple[PricedPart, ...]]:
    """Return the price of each job on each part, those that were not asked for without a plan and without a problem.

    Args:
        requests: by job, then by the size of the part.
        room: the devices.
        planned: plans requests.
        counts: results so far, by the request as JSON; each request is planned once, and is added.
    """
    keyed = [
        {size: (each.to_json(), each) if isinstance(each, PlanRequest) else each for size, each in row.items()}
        for row in requests
    ]
    new = dict(each for row in keyed for each in row.values() if isinstance(each, tuple) and each[0] not in counts)
    found = planned(list(new.values()))
    counts |= {key: found[place] for place, key in enumerate(new)}

    def priced(each: tuple[str, PlanRequest] | str | None) -> PricedPart:
        if not isinstance(each, tuple):
            return PricedPart(count=None, problem=each)
        count = counts[each[0]]
        return PricedPart(count=count, problem=count.problem)

    return [tuple(priced(row.get(size)) for size in room.sizes) for row in keyed]


def _fills_all(way: Way, room: Room) -> bool:
    """Return whether all jobs train at once, on all devices.

    Then sets on larger parts would add exchanges, and share nothing else.
    """
    turns = () if way.division is None else way.division.turns
    at_once = sum(len(turn.devices) for turn in turns if turn.begin == 0)
    return at_once == room.num_devices and all(turn.begin == 0 for turn in turns)


def _least_ms(jobs: Sequence[SweepJob], singles: Sequence[Sequence[PricedPart]], size: int, room: Room) -> float:
    """Return a lower bound for a step of all variants: no set is faster than its slowest variant alone.

    Args:
        jobs: sets.
        singles: prices of the variants alone.
        size: of the parts.
        room: the devices.
    """
    parts = room.num_devices // size
    if parts > len(jobs):
        return math.inf  # some parts would have no job
    place = room.sizes.index(size)
    alone = [singles[number][place].step_ms for job in jobs for number in job.variants]
    if None in alone:
        return math.inf  # with others it has no more room
    slowest = [max(singles[number][place].step_ms or 0 for number in job.variants) for job in jobs]
    return math.ceil(len(jobs) / parts) * min(slowest)


def _ways(jobs: tuple[SweepJob, ...], prices: Sequence[Sequence[PricedPart]], room: Room) -> list[Way]:
    """Return the ways of jobs on parts of one size, by that size, and the mixed one last, if it is better."""
    times: list[PartTimes] = [[part.step_ms for part in row] for row in prices]
    sizes = [size for place, size in enumerate(room.sizes) if all(_is_priced(row[place]) for row in prices)]
    ways = [_equal_way(jobs, prices, times, size, room) for size in sizes]
    best = best_division(times, room)
    if best is None or any(way.division is not None and way.division.total <= best.total for way in ways):
        return ways
    memory = max(prices[job][room.sizes.index(size)].memory_share or 0 for job, size in best.sizes.items())
    return [*ways, Way(jobs=jobs, division=best, size=None, memory_share=memory, problem=None)]


def _is_priced(part: PricedPart) -> bool:
    return part.count is not None or part.problem is not None


def _best(ways: Sequence[Way]) -> Way:
    """Return the way with the least time; of equal ones the first; without any, the one on the largest parts."""
    possible = [way for way in ways if way.division is not None]
    return min(possible, key=_total) if possible else ways[-1]


def _total(way: Way) -> float:
    return math.inf if way.division is None else way.division.total


def _equal_way(
    jobs: tuple[SweepJob, ...],
    prices: Sequence[Sequence[PricedPart]],
    times: Sequence[PartTimes],
    size: int,
    room: Room,
) -> Way:
    place = room.sizes.index(size)
    division = equal_division(times, size, room)
    parts = [row[place] for row in prices]
    if division is None:
        absent = [part.problem for part in parts if part.problem is not None]
        fitting = sum(len(job.variants) for job, part in zip(jobs, parts, strict=True) if part.problem is None)
        some = f"{fitting} of {sum(len(job.variants) for job in jobs)} variants fit; " if fitting else ""
        return Way(jobs=jobs, division=None, size=size, memory_share=None, problem=some + without_hint(absent[0]))
    shares = [part.memory_share or 0 for part in parts]
    return Way(jobs=jobs, division=division, size=size, memory_share=max(shares), problem=None)


def _of_part(name: str, amount: int | str, gpus: str, share: tuple[int, int]) -> int | str:
    """Return an amount of a resource for a part of a node's devices."""
    devices, of = share
    if name == gpus:
        return devices
    if name not in _DIVISIBLE or devices == of:
        return amount
    exact = quantity(amount) * devices / of
    return f"{int(exact * 1000)}m" if name == "cpu" else int(exact)


def moved_to(file: JobFile, folder: Path) -> JobFile:
    """Return a job whose file is in another folder; a file of tables that it names is found from there."""
    source = file.job.spec.model.embedding_tables_from
    if source is None or source.file is None or Path(source.file).is_absolute():
        return file
    path = Path(file.path).absolute().parent / source.file
    settings = {"spec.model.embeddingTablesFrom": {"file": os.path.relpath(path, folder.absolute())}}
    document = with_settings(file.document, settings)
    return replace(file, job=DLRMTrainingJob.from_data(document, where=str(file.path)), document=document)
