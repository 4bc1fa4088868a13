"""Plans of the same tables on several numbers and kinds of devices, as many at a time as there are cores."""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path

from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import TableSet
from neuroshard_api.documents.topology import DeviceType
from neuroshard_api.job.job_file import JobFile
from neuroshard_api.process.failures import CommandError
from neuroshard_costs.bundle import CostBundle, bundle_at, bundled_bundle, bundled_names
from neuroshard_costs.errors import BundleNotFoundError
from neuroshard_planner.pipeline import plan
from neuroshard_report.explain.device_counts import DeviceCount, at_device_count

from neuroshard_dlrm.devices import find_preset
from neuroshard_dlrm.options import MOST_DEVICES, RequestOptions
from neuroshard_dlrm.requests import Source, request_of

MOST_POINTS = 64
THREADS_VARIABLE = "OMP_NUM_THREADS"
"""Read by the BLAS libraries of NumPy when they are loaded."""
START_S = 5.0
"""Processor time of plans that are made in this process if they take less together: the start of others takes half."""
DEFAULT_SAMPLES_PER_DEVICE = 8192
MOST_SAMPLES = 2**24
_BATCH_SIZE = "spec.model.batchSizePerDevice"
_RANGE = re.compile(r"([0-9]{1,6})\.\.([0-9]{1,6})")
_PRICE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(?:/h)?")
"""At most nine digits, so that the price of a sample is a number that JSON has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What stays when the number of devices changes: the samples of a step of one device, or of all."""

    per_device: int | None = None
    of_all: int | None = None
    """Exactly one of the two is set."""

    def on(self, num_devices: int) -> int:
        """Return the samples per device on that many: those of all over the devices, rounded up."""
        return self.per_device or -(-(self.of_all or 0) // num_devices)


def parse_counts(text: str) -> tuple[int, ...]:
    """Return ascending numbers of devices, of ``4..128``, which doubles, and single ones. Raises CommandError."""
    hint = "hint: write numbers, or a range that doubles, such as 8..128 or 8,12,16"
    counts: set[int] = set()
    for word in text.split(","):
        ends = _RANGE.fullmatch(word.strip())
        if ends is not None:
            first, last = int(ends[1]), int(ends[2])
            if not 1 <= first <= last:
                raise CommandError(f"--devices: {word.strip()} has no numbers; {hint}")
            counts.update(first << power for power in range(last.bit_length()) if first << power <= last)
        elif word.strip().isascii() and word.strip().isdigit():
            counts.add(int(word))
        else:
            raise CommandError(f"--devices: is not a list of numbers (found {word.strip()!r}); {hint}")
    wrong = next((count for count in sorted(counts) if not 1 <= count <= MOST_DEVICES), None)
    if wrong is not None:
        raise CommandError(f"--devices: must be from 1 to {MOST_DEVICES:,} (found {wrong:,}); {hint}")
    return tuple(sorted(counts))


def parse_kinds(text: str | None) -> tuple[tuple[str, ...], dict[str, float]]:
    """Return kinds of devices, and their prices for an hour, of ``h100-80gb=2.99/h,l40s-48gb=1.1/h``.

    None: all that have bundled cost models, without prices. Raises CommandError.
    """
    if text is None:
        return bundled_names(), {}
    names: list[str] = []
    prices: dict[str, float] = {}
    for word in text.split(","):
        name, is_priced, price = (part.strip() for part in word.partition("="))
        find_preset(name)
        if name in names:
            raise CommandError(f"--device-type: {name} is given twice; hint: leave one out")
        names.append(name)
        if is_priced:
            found = _PRICE.fullmatch(price)
            if found is None or float(found[1]) == 0:
                raise CommandError(
                    f"--device-type: {name} has no such price of an hour (found {price!r}); hint: write {name}=2.99/h"
                )
            prices[name] = float(found[1])
    absent = next((name for name in names if name not in prices), None) if prices else None
    if absent is not None:
        raise CommandError(
            f"--device-type: {absent} has no price, so that kinds could not be compared; hint: write {absent}=PRICE/h, "
            "or leave the kind out"
        )
    return tuple(names), prices


def kept_batch(source: Source, options: RequestOptions, *, of_all: int | None) -> Batch:
    """Return the samples that stay: the option that is given, else the samples of all devices that the source names.

    Raises:
        CommandError: both are given; or the source names devices, as a request does.
    """
    if isinstance(source, PlanRequest):
        raise CommandError(
            f"{options.tables}: is a request for given devices; hint: give the job or the table set that it is made of"
        )
    per_device = options.set.get(_BATCH_SIZE, options.batch_size)
    if of_all is not None and per_device is not None:
        raise CommandError("--global-batch-size: excludes a batch size per device; hint: give one of them")
    if of_all is not None:
        return Batch(of_all=of_all)
    if per_device is not None:
        if type(per_device) is not int or not 1 <= per_device <= MOST_SAMPLES:
            raise CommandError(
                f"--set {_BATCH_SIZE}: is not a number from 1 to {MOST_SAMPLES:,} (found {per_device!r})"
                "; hint: give one"
            )
        return Batch(per_device=per_device)
    if isinstance(source, JobFile):
        spec = source.job.spec
        if spec.model.chooses_batch_size:
            raise CommandError(
                f"{_BATCH_SIZE}: is Auto, and devices are compared at one batch"
                f"; hint: give --global-batch-size, or --set {_BATCH_SIZE}={spec.model.samples_per_device}"
            )
        return Batch(of_all=spec.model.samples_per_device * spec.trainer.world_size)
    if isinstance(source, TableSet) and source.global_batch_size is not None:
        return Batch(of_all=source.global_batch_size)
    return Batch(per_device=DEFAULT_SAMPLES_PER_DEVICE)


def requests_on(
    source: Source, options: RequestOptions, *, device_types: Sequence[str], counts: Sequence[int], batch: Batch
) -> list[PlanRequest]:
    """Return the request on each number of each kind of devices, in nodes that the type usually fills.

    Raises as `request_of`, and CommandError for more than `MOST_POINTS`, or for numbers that do not fill equal nodes.
    """
    if len(device_types) * len(counts) > MOST_POINTS:
        raise CommandError(
            f"--devices: plans at most {MOST_POINTS} numbers and kinds (found {len(device_types) * len(counts)})"
            "; hint: give fewer"
        )
    for name, count in product(device_types, counts):
        nodes = -(-count // find_preset(name).devices_per_node)
        if count % nodes:
            raise CommandError(
                f"--devices: {count} do not fill {nodes} equal nodes of {name}; hint: give "
                f"{nodes * (count // nodes + 1)}, or leave {count} out"
            )
    is_set = _BATCH_SIZE in options.set
    return [
        request_of(
            source,
            replace(
                options,
                devices=count,
                device_type=name,
                batch_size=options.batch_size if is_set else batch.on(count),
            ),
            algorithm=None,
            with_dense_of_jobs=True,
            other_sizes=[] if is_set else [batch.on(each) for each in counts],
        )
        for name, count in product(device_types, counts)
    ]


def planned_counts(
    requests: Sequence[PlanRequest], *, bundle: Path | None, prices: Mapping[str, float]
) -> Iterator[tuple[int, DeviceCount]]:
    """Yield the place and the result of each request, as they are ready.

    Args:
        requests: in any order.
        bundle: folder of cost models, for the requests of its device, and for all where none is of it: their plans
            have a warning. None: the bundled ones.
        prices: of one device for an hour, by type.

    Raises:
        BundleError: the bundle cannot be read.
        CommandError: a device has no cost models.
    """
    devices = {request.topology.device.name: request.topology.device for request in requests}
    given = None if bundle is None else bundle_at(bundle)
    is_for_all = given is not None and all(given.device_problem(device) is not None for device in devices.values())
    for device in devices.values():
        _costs(bundle, device, is_for_all=is_for_all)  # what lacks cost models is named before anything is planned
    planned = partial(_planned, bundle=bundle, is_for_all=is_for_all)
    places = sorted(range(len(requests)), key=lambda place: -requests[place].topology.num_devices)
    taken_s = 0.0
    while places and (len(places) == 1 or taken_s * len(places) < START_S):  # here the quick ones first
        place, began_s = places.pop(), time.process_time()
        found = planned(requests[place], prices.get(requests[place].topology.device.name))
        taken_s = time.process_time() - began_s
        yield place, found
    if not places:
        return
    workers = min(len(os.sched_getaffinity(0)), len(places))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        with one_thread_each():
            futures = {
                pool.submit(planned, requests[place], prices.get(requests[place].topology.device.name)): place
                for place in places
            }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Have processes that start here compute with one thread each, unless the user has chosen a number.

    There are as many processes as cores, and NumPy's threads would wait for each other: 40 % of the processor time.
    """
    before = os.environ.get(THREADS_VARIABLE)
    os.environ.setdefault(THREADS_VARIABLE, "1")
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS_VARIABLE]


def _planned(
    request: PlanRequest, price_per_hour: float | None, *, bundle: Path | None, is_for_all: bool
) -> DeviceCount:
    costs = _costs(bundle, request.topology.device, is_for_all=is_for_all)
    return at_device_count(request, search=partial(plan, bundle=costs), price_per_hour=price_per_hour)


@lru_cache(maxsize=8)
def _costs(bundle: Path | None, device: DeviceType, *, is_for_all: bool) -> CostBundle:
    """Return the cost models of a device: the given ones where they are of it or for all, else the bundled ones."""
    given = None if bundle is None else bundle_at(bundle)
    if given is not None and (is_for_all or given.device_problem(device) is None):
        return given
    try:
        return bundled_bundle(device.name)
    except BundleNotFoundError as error:
        raise CommandError(
            f"--device-type: {device.name} has no bundled cost models; hint: leave it out, or give its own by --bundle"
            f"; bundled are {', '.join(bundled_names())}"
        ) from error
