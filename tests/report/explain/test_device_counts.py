"""Where more devices of a kind pay no longer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_report.device_counts import DeviceCounts
from neuroshard_report.explain.batch_sizes import SizedPlan
from neuroshard_report.explain.device_counts import KNEE_SHARE, DeviceCount, knees, least_count


def counted(
    num_devices: int, samples_per_second: float | None, *, exchange_ms: float = 0.0, device_type: str = "a"
) -> DeviceCount:
    """Return a number of devices with this speed; None: the tables do not fit."""
    speed = samples_per_second
    sized = None if speed is None else SizedPlan(
        embedding_ms=1.0, dense_ms=None, host_ms=None, samples_per_second=speed, memory_bytes=1, capacity_bytes=2
    )  # fmt: skip
    return DeviceCount(
        device_type=device_type,
        num_devices=num_devices,
        num_nodes=1,
        samples_per_device=8,
        plan=sized,
        compute_ms=None if speed is None else 1.0,
        exchange_ms=None if speed is None else exchange_ms,
        price_per_hour=3.6,
        problem="no room" if speed is None else None,
    )


def test_the_knee_is_the_last_number_near_the_best_price() -> None:
    """Whatever the order of the rows; the exchanges decide from where they stay longer than the lookups."""
    found = [
        counted(32, 1.1e6, exchange_ms=3.0),
        counted(4, None),
        counted(16, 0.9e6, exchange_ms=0.5),
        counted(8, 0.5e6, exchange_ms=2.0),
    ]

    (knee,) = knees(found)

    assert (knee.num_devices, knee.exchange_from) == (16, 32)
    assert knee.share == pytest.approx(0.9)
    least = least_count(found, "a")
    assert least is not None
    assert least.num_devices == 8
    assert least.price_per_million == pytest.approx(8 * 2 * 3.6 / 3600)


@given(st.lists(st.floats(1e3, 1e9), min_size=1, max_size=8))
def test_each_kind_has_a_knee_with_its_share_and_none_beyond(speeds: list[float]) -> None:
    """One of its numbers; each further one costs more than the best price over `KNEE_SHARE`."""
    found = [counted(2**power, speed) for power, speed in enumerate(speeds)]

    knee, other = knees([*found, counted(3, 5.0, device_type="b")])

    seconds = {each.num_devices: each.device_seconds_per_million or 0 for each in found}
    assert knee.share == pytest.approx(min(seconds.values()) / seconds[knee.num_devices])
    assert knee.share >= KNEE_SHARE
    assert all(KNEE_SHARE * each > min(seconds.values()) for count, each in seconds.items() if count > knee.num_devices)
    assert (other.device_type, other.num_devices, other.share) == ("b", 3, 1.0)


def test_a_kind_without_room_has_no_knee() -> None:
    """Nor a price."""
    found = [counted(2, None)]

    assert knees(found) == ()
    assert least_count(found, "a") is None
    assert found[0].price_per_million is None


def facts_of(*speeds: float | None, of_all: int | None = None) -> list[str]:
    """Return the sentences on 1, 2, 4, ... devices with these speeds; None: there is no plan."""
    counts = tuple(counted(2**power, speed) for power, speed in enumerate(speeds))
    found = DeviceCounts(name="six", counts=counts, per_device=None if of_all else 8, of_all=of_all)
    return [fact for _, fact in found.facts()]


def test_numbers_without_a_plan_are_named_with_the_reason() -> None:
    """Also where other numbers of the kind have one; a gap in between leaves no number from which on they fit."""
    ascending, gap = facts_of(None, None, 5e5), facts_of(1e6, None, 5e5)

    assert ascending[:2] == ["no plan on 1, 2 devices; on 2: no room", "fits from 4 devices on"]
    assert gap[0] == "no plan on 2 devices; on 2: no room"
    assert not any("fits from" in fact for fact in gap)


def test_samples_that_devices_do_not_divide_are_said_as_they_are_planned() -> None:
    """Each device has a whole number of them."""
    (batch,) = (fact for fact in facts_of(1e6, 2e6, of_all=8) if "samples a step" in fact)

    assert batch.startswith("8 samples a step on all devices")
    assert batch.endswith("; rounded up to 16 on 2 devices")
