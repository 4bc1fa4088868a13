"""The choice of a sweep: each variant priced on each part of the devices, and the division that takes least time.

A variant keeps the job's global batch, so that a part of fewer devices has more samples on each of them.
"""

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
from neuroshard_dlrm.variants import Variant

_DIVISIBLE = ("cpu", "memory", "ephemeral-storage")
"""Resources of a pod that a part has in proportion to its devices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PricedPart:
    """A variant on a part of the devices."""

    count: DeviceCount | None
    """Its plan, or the reason that there is none. None: the variant is not possible on that many devices."""
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

    division: Division | None
    """Times in milliseconds for a step of each variant. None: it is not possible."""
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
    prices: tuple[tuple[PricedPart, ...], ...]
    """By variant, then by ``room.sizes``."""
    ways: tuple[Way, ...]
    """By the size of the parts; the mixed one last, if it is chosen."""
    chosen: Way

    @property
    def one_after_other_ms(self) -> float | None:
        """A step of each variant on all devices. None: one does not fit."""
        division = next(way.division for way in self.ways if way.size == self.room.num_devices)
        return None if division is None else division.total

    @property
    def sizes(self) -> dict[int, int]:
        """Devices of each variant, by its place, as chosen."""
        assert self.chosen.division is not None, "it is possible"
        return self.chosen.division.sizes

    def gain(self, way: Way) -> float | None:
        """Return the speed of a way over that of one variant after the other on all devices. None: not possible."""
        whole_ms = self.one_after_other_ms
        return None if way.division is None or whole_ms is None else whole_ms / way.division.total

    def chosen_part(self, variant: int) -> PricedPart:
        """Return a variant on its chosen part."""
        return self.prices[variant][self.room.sizes.index(self.sizes[variant])]


def require_sweepable(file: JobFile) -> None:
    """Do nothing for a job whose variants can share devices. Raises CommandError."""
    spec = file.job.spec
    problems = (
        (spec.variants, "variants", "a sweep makes variants of one model by --set"),
        (spec.trainer.command, "trainer.command", "a trainer of your own is not known to take a variant's settings"),
        (spec.plan_ref, "planRef", "a plan is for one model on one number of devices, and each variant has its own"),
        (spec.checkpoint.folder, "checkpoint.folder", "all variants would keep their state in one folder"),
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
    of_all = spec.model.batch_size_per_device * trainer.world_size
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


def part_requests(
    variants: Sequence[Variant], options: RequestOptions, topology: Topology, room: Room
) -> list[list[PlanRequest | str]]:
    """Return the request of each variant on a part of each size, or the reason that there is none.

    Args:
        variants: of one job.
        options: those of the request but devices and fields of the job.
        topology: all devices.
        room: the same as they are divided.
    """

    def asked(variant: Variant, size: int) -> PlanRequest | str:
        nodes = max(1, size // room.devices_per_node)
        part = topology.model_copy(update={"num_nodes": nodes, "devices_per_node": size // nodes})
        try:
            file = on_part(variant.file, size, room)
            on = replace(options, devices=part, device_type=None)
            request = request_of(file, on, algorithm=None, with_dense_of_jobs=True)
        except (CommandError, DocumentError) as error:
            return str(error)
        # Variants of equal tables are planned once.
        return request.model_copy(update={"tables": request.tables.model_copy(update={"name": options.tables})})

    return [[asked(variant, size) for size in room.sizes] for variant in variants]


def chosen_division(
    variants: Sequence[Variant],
    requests: Sequence[Sequence[PlanRequest | str]],
    room: Room,
    *,
    device_type: str,
    planned: Callable[[list[PlanRequest]], Mapping[int, DeviceCount]],
) -> SweepChoice:
    """Price all variants on all parts, and return the division with the least time for a step of each.

    Args:
        variants: of one job.
        requests: of `part_requests`.
        room: the devices.
        device_type: of the devices.
        planned: returns the result of each of some requests, by its place.

    Raises:
        CommandError: a variant is not a job on any part, as without the file of a counted dense part.
        InfeasibleError: a variant has no plan on any part.
    """
    distinct: list[PlanRequest] = []
    for each in (request for row in requests for request in row if isinstance(request, PlanRequest)):
        if each not in distinct:
            distinct.append(each)
    counts = planned(distinct)

    def priced(request: PlanRequest | str) -> PricedPart:
        if isinstance(request, str):
            return PricedPart(count=None, problem=request)
        count = counts[distinct.index(request)]
        return PricedPart(count=count, problem=count.problem)

    prices = tuple(tuple(map(priced, row)) for row in requests)
    for variant, row in zip(variants, prices, strict=True):
        if all(part.count is None for part in row):
            raise CommandError(f"variant {variant.text}: {row[-1].problem}")
        if all(part.step_ms is None for part in row):
            raise InfeasibleError(f"variant {variant.text}: has no plan on {room.sizes[-1]} devices: {row[-1].problem}")
    times: list[PartTimes] = [[part.step_ms for part in row] for row in prices]
    ways = [_equal_way(prices, times, size, room) for size in room.sizes]
    best = best_division(times, room)
    assert best is not None, "each variant has a plan"
    chosen = next((way for way in ways if way.division is not None and way.division.total <= best.total), None)
    if chosen is None:
        memory = max(prices[variant][room.sizes.index(size)].memory_share or 0 for variant, size in best.sizes.items())
        chosen = Way(division=best, size=None, memory_share=memory, problem=None)
        ways.append(chosen)
    return SweepChoice(room=room, device_type=device_type, prices=prices, ways=tuple(ways), chosen=chosen)


def _equal_way(prices: Sequence[Sequence[PricedPart]], times: Sequence[PartTimes], size: int, room: Room) -> Way:
    place = room.sizes.index(size)
    division = equal_division(times, size, room)
    parts = [row[place] for row in prices]
    if division is None:
        absent = [part.problem for part in parts if part.problem is not None]
        fitting = len(parts) - len(absent)
        some = f"{fitting} of {len(parts)} variants fit; " if fitting else ""
        return Way(division=None, size=size, memory_share=None, problem=some + without_hint(absent[0]))
    shares = [part.memory_share or 0 for part in parts]
    return Way(division=division, size=size, memory_share=max(shares), problem=None)


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
