"""Numbers and kinds of devices in the words that text, HTML, and JSON share. Plans nothing."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property

from neuroshard_report.explain.device_counts import DeviceCount, Knee, knees, least_count
from neuroshard_report.quantities import format_count, format_ms, format_percent

_NUMBER = re.compile(r"[\d.,]+|\b(?:[\w]+-)+simulated\b")
COLUMNS = ("devices", "batch", "step ms", "samples/s", "memory")
"""Devices; samples of one of them; a step; samples a second of all; share of the fullest device's memory."""


@dataclass(frozen=True, kw_only=True)
class DeviceCounts:
    """One model on several numbers and kinds of devices.

    Args:
        name: of its tables.
        counts: in the order of the rows, those of a type together.
        per_device: samples per device that stay. None: those of all devices stay.
        of_all: samples of all devices that stay. None: those of each device stay.
    """

    name: str
    counts: tuple[DeviceCount, ...]
    per_device: int | None
    of_all: int | None

    @property
    def device_types(self) -> tuple[str, ...]:
        """The kinds in the order of their first rows."""
        return tuple(dict.fromkeys(each.device_type for each in self.counts))

    @property
    def has_prices(self) -> bool:
        """Whether each kind has a price."""
        return self.counts[0].price_per_hour is not None

    @property
    def sources(self) -> tuple[str, ...]:
        """Of the prices of times, each once."""
        return tuple(dict.fromkeys(each.source for each in self.counts if each.source is not None))

    @property
    def is_simulated(self) -> bool:
        """Whether a time comes from a simulated device."""
        return any(source.startswith("simulated:") for source in self.sources)

    @cached_property
    def knees(self) -> tuple[Knee, ...]:
        """Where more devices pay no longer, for each kind that the tables fit on."""
        return knees(self.counts)

    @property
    def columns(self) -> tuple[str, ...]:
        """Titles of `row`: `COLUMNS`, then what a million samples cost in money or in seconds of a device."""
        return (*COLUMNS, "price/1M" if self.has_prices else "dev s/1M", "")

    def row(self, count: DeviceCount) -> tuple[str, ...]:
        """Return the cells of a number of devices."""
        first = (format_count(count.num_devices), format_count(count.samples_per_device))
        cost = cost_of(count)
        if count.plan is None or count.step_ms is None or cost is None:
            return (*first, "no plan", "", "", "", "")
        is_knee = any(
            (each.device_type, each.num_devices) == (count.device_type, count.num_devices) for each in self.knees
        )
        return (
            *first,
            format_ms(count.step_ms),
            format_count(count.plan.samples_per_second),
            format_percent(count.plan.memory_bytes / count.plan.capacity_bytes),
            f"{cost:.3g}",
            "knee" if is_knee else "",
        )

    def facts(self) -> list[tuple[str, str]]:
        """Return the conclusions from the rows, each with its name: by kind, of all kinds, batch, and times."""
        found = [fact for name in self.device_types for fact in self._of_type(name)]
        priced = [(each.price_per_million, each) for each in self.counts]
        fitting = [(price, each) for price, each in priced if price is not None]
        if len(self.device_types) > 1 and fitting:
            price, least = min(fitting, key=lambda each: each[0])
            found.append(("least price", f"{least.num_devices} {least.device_type}: {price:.3g} for a million samples"))
        return [*found, ("batch", self._batch()), *self._times(), *self._warnings()]

    def described(self) -> dict[str, object]:
        """Return everything as plain data."""
        return {
            "name": self.name,
            "batch_size_per_device": self.per_device,
            "global_batch_size": self.of_all,
            "points": [
                {
                    **asdict(each),
                    "step_ms": each.step_ms,
                    "device_seconds_per_million": each.device_seconds_per_million,
                    "price_per_million": each.price_per_million,
                }
                for each in self.counts
            ],
            "least_devices": {name: _least(self.counts, name) for name in self.device_types},
            "knees": [asdict(each) for each in self.knees],
        }

    def _of_type(self, name: str) -> list[tuple[str, str]]:
        counts = [each for each in self.counts if each.device_type == name]
        least = least_count(counts, name)
        if least is None:
            return [(name, f"fits on none of these numbers; on {counts[-1].num_devices}: {counts[-1].problem}")]
        knee = next(each for each in self.knees if each.device_type == name)
        what = "price" if self.has_prices else "device time"
        found = []
        missing = [each for each in counts if each.problem is not None]
        if missing:
            where = ", ".join(str(each.num_devices) for each in missing)
            found.append(f"no plan on {_devices(where)}; on {missing[-1].num_devices}: {missing[-1].problem}")
            if least.num_devices > missing[-1].num_devices:
                found.append(f"fits from {least.num_devices} devices on")
        have = "1 device has" if knee.num_devices == 1 else f"{knee.num_devices} devices have"
        found.append(f"{have} {100 * knee.share:.0f} % of the best {what} of a sample (the knee)")
        if knee.exchange_from is not None:
            found.append(f"from {knee.exchange_from} devices on the exchanges take longer than the lookups")
        waits = [str(each.num_devices) for each in counts if each.is_host_bound]
        if waits:
            found.append(f"on {_devices(', '.join(waits))} the host takes longest; larger batches would help")
        return [(name, found[0]), *(("", each) for each in found[1:])]

    def _batch(self) -> str:
        if self.of_all is not None:
            kept = f"{self.of_all:,} samples a step on all devices: as many steps, at the same learning rate, as before"
            on = {each.num_devices: each.num_devices * each.samples_per_device for each in self.counts}
            more = [f"{samples:,} on {_devices(str(count))}" for count, samples in on.items() if samples != self.of_all]
            return f"{kept}; rounded up to {', '.join(more)}" if more else kept
        return (
            f"{self.per_device:,} samples a step on each device: more devices make larger and fewer steps, for which "
            "the learning rate has to be chosen again"
        )

    def _times(self) -> list[tuple[str, str]]:
        plans = [each.plan for each in self.counts if each.plan is not None]
        if not plans:
            return []
        is_counted = all(plan.dense_ms is not None for plan in plans)
        what = "of whole steps" if is_counted else "of the embedding part and the host, without a dense part (--dense)"
        return [("times", f"{what}, predicted ({', '.join(self.sources)})")]

    def _warnings(self) -> list[tuple[str, str]]:
        """Return the warnings of the plans: those that differ in a number alone as one, with its first number."""
        found: dict[str, tuple[str, list[str]]] = {}
        for each in self.counts:
            for warning in each.warnings:
                _, where = found.setdefault(_NUMBER.sub("", warning), (warning, []))
                where.append(f"{each.num_devices} {each.device_type}")
        return [("warning", f"{', '.join(where)}: {text}") for text, where in found.values()]


def cost_of(count: DeviceCount) -> float | None:
    """Return the price of a million samples, or without prices their device seconds. None: there is no plan."""
    return count.device_seconds_per_million if count.price_per_hour is None else count.price_per_million


def _devices(numbers: str) -> str:
    return "1 device" if numbers == "1" else f"{numbers} devices"


def _least(counts: Sequence[DeviceCount], device_type: str) -> int | None:
    found = least_count(counts, device_type)
    return None if found is None else found.num_devices
