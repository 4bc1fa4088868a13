"""The same tables on several numbers and kinds of devices: a plan for each, its price, and where more pay no longer."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.request import PlanRequest
from neuroshard_planner.errors import InfeasibleError, RequestError
from neuroshard_planner.searches import Search

from neuroshard_report.explain.batch_sizes import SizedPlan, sized_plan

KNEE_SHARE = 0.8
"""The knee is the largest number of devices whose samples still cost at most the least cost over this share."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCount:
    """One number of devices of one type: its plan, or the reason that there is none."""

    device_type: str
    num_devices: int
    num_nodes: int
    samples_per_device: int
    plan: SizedPlan | None = None
    compute_ms: float | None = None
    """Look-ups and updates of the slowest device, in both passes. None: there is no plan."""
    exchange_ms: float | None = None
    """All exchanges that a step waits for. None: there is no plan."""
    source: str | None = None
    """Of the prices of its times. None: there is no plan."""
    price_per_hour: float | None = None
    """Of one device. None: not given."""
    problem: str | None = None
    """None where there is a plan."""
    warnings: tuple[str, ...] = ()
    """Of the plan."""

    @property
    def step_ms(self) -> float | None:
        """A whole step, as far as it has a price. None: there is no plan."""
        samples = 1000.0 * self.samples_per_device * self.num_devices
        return None if self.plan is None else samples / self.plan.samples_per_second

    @property
    def is_host_bound(self) -> bool:
        """Whether the host needs longer for a step than the devices."""
        return self.plan is not None and (self.plan.host_ms or 0.0) >= (self.step_ms or 0.0) * (1 - 1e-6)

    @property
    def device_seconds_per_million(self) -> float | None:
        """Seconds of a device that a million samples take. None: there is no plan."""
        return None if self.plan is None else self.num_devices * 1e6 / self.plan.samples_per_second

    @property
    def price_per_million(self) -> float | None:
        """Price of a million samples. None: no price is given, or there is no plan."""
        seconds = self.device_seconds_per_million
        return None if seconds is None or self.price_per_hour is None else seconds / 3600 * self.price_per_hour


@dataclass(frozen=True, kw_only=True, slots=True)
class Knee:
    """Where more devices of a type pay no longer."""

    device_type: str
    num_devices: int
    share: float
    """Of the least cost of a sample over the cost of a sample here: 1 is the best."""
    exchange_from: int | None
    """The least number of devices from which on the exchanges take longer than the devices compute. None: nowhere."""


def at_device_count(request: PlanRequest, *, search: Search, price_per_hour: float | None) -> DeviceCount:
    """Return the result of a request on its own devices.

    Args:
        request: what is planned.
        search: finds the plan of a request.
        price_per_hour: of one device. None: not known.

    Devices that the tables do not fit on, or that the request's settings do not go with, are not an error.
    """
    try:
        plan = search(request)
    except (InfeasibleError, RequestError) as error:
        return _counted(request, price_per_hour, problem=str(error))
    return _counted(request, price_per_hour, plan=plan)


def knees(counts: Iterable[DeviceCount]) -> tuple[Knee, ...]:
    """Return the knee of each device type with a plan, in the order of the types."""
    by_type: dict[str, list[DeviceCount]] = {}
    for each in counts:
        if each.plan is not None:
            by_type.setdefault(each.device_type, []).append(each)
    return tuple(_knee(sorted(each, key=lambda count: count.num_devices)) for each in by_type.values())


def least_count(counts: Iterable[DeviceCount], device_type: str) -> DeviceCount | None:
    """Return the smallest number of devices of a type that the tables fit on. None: they fit on none of them."""
    fitting = [each for each in counts if each.device_type == device_type and each.plan is not None]
    return min(fitting, key=lambda each: each.num_devices, default=None)


def _counted(
    request: PlanRequest, price_per_hour: float | None, *, plan: Plan | None = None, problem: str | None = None
) -> DeviceCount:
    topology = request.topology
    slowest = None if plan is None else max(plan.predicted.devices, key=lambda device: device.compute_ms)
    return DeviceCount(
        device_type=topology.device.name,
        num_devices=topology.num_devices,
        num_nodes=topology.num_nodes,
        samples_per_device=request.batch_size_per_device,
        plan=None if plan is None else sized_plan(plan),
        compute_ms=None if slowest is None else slowest.compute_ms,
        exchange_ms=None if slowest is None else slowest.communication_ms,
        source=None if plan is None else plan.predicted.source,
        price_per_hour=price_per_hour,
        problem=problem,
        warnings=() if plan is None else plan.warnings,
    )


def _knee(counts: Sequence[DeviceCount]) -> Knee:
    """Return the knee of counts of one type that have plans, in the order of their devices."""
    seconds = [each.device_seconds_per_million or 0.0 for each in counts]
    shares = [min(seconds) / each for each in seconds]
    last = max(number for number, share in enumerate(shares) if share >= KNEE_SHARE)
    computes_longer = [
        number for number, each in enumerate(counts) if (each.exchange_ms or 0) <= (each.compute_ms or 0)
    ]
    first = max(computes_longer, default=-1) + 1
    return Knee(
        device_type=counts[last].device_type,
        num_devices=counts[last].num_devices,
        share=shares[last],
        exchange_from=counts[first].num_devices if first < len(counts) else None,
    )
