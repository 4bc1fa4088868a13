"""What the host does in a step: a sum over parts, scaled where a call was measured."""

from dataclasses import replace

import pytest
from neuroshard_api.documents.bundle import Launch
from neuroshard_costs.host import HostWork, host_times
from support.builders import device_type

GPU, CPU = device_type(), device_type(name="cpu-test")
WORK = HostWork(columns=1, calls=1, features=26)
ASSUMED = Launch(host_ms=(0.3, 0.45))


@pytest.mark.parametrize(
    "part", ["collections", "columns", "rows", "copies", "calls", "cached_calls", "encoded", "column_tables"]
)
def test_more_of_a_part_takes_the_host_longer(part: str) -> None:
    """The same for each that is added, whatever else there is."""
    times = [
        host_times(replace(WORK, **{part: getattr(WORK, part) + further}), device=GPU, launch=ASSUMED).tables_ms
        for further in range(3)
    ]

    assert times[0] < times[1] < times[2]
    assert times[2] - times[1] == pytest.approx(times[1] - times[0])


def test_a_dense_part_that_was_not_counted_has_no_time() -> None:
    """One without operations has 0 ms, which is another thing."""
    assert host_times(WORK, device=GPU, launch=ASSUMED).dense_ms is None
    assert host_times(replace(WORK, operations=0), device=GPU, launch=ASSUMED).dense_ms == 0
    assert (host_times(replace(WORK, operations=60, tensors=14), device=GPU, launch=ASSUMED).dense_ms or 0) > 0


@pytest.mark.parametrize("part", ["gathers", "scatters"])
def test_collectives_of_sharded_modules_take_the_host_longer(part: str) -> None:
    """They are the dense part's, and launch kernels on a GPU."""
    none, one, two = (
        host_times(replace(WORK, operations=60, **{part: count}), device=GPU, launch=Launch()) for count in range(3)
    )

    assert (none.dense_ms or 0) < (one.dense_ms or 0) < (two.dense_ms or 0)
    assert none.launches < one.launches < two.launches
    assert none.tables_ms == two.tables_ms


def test_a_cpu_launches_no_kernels() -> None:
    """A GPU's host does the same and launches on top."""
    counted = replace(WORK, operations=60, tensors=14)
    gpu, cpu = (host_times(counted, device=device, launch=Launch()) for device in (GPU, CPU))

    assert cpu.launches == 0 < gpu.launches
    assert cpu.tables_ms < gpu.tables_ms
    assert (cpu.dense_ms or 0) < (gpu.dense_ms or 0)


def test_a_measured_call_prices_all_launches_and_is_named() -> None:
    """What exceeds its processor time is the price of its 16 launches; an assumed time of a call says nothing."""
    fast, one, two = (
        host_times(WORK, device=GPU, launch=Launch(host_ms=host_ms, host_source="measured:A100"))
        for host_ms in ((0.063, 0.1), (0.1, 0.2), (0.2, 0.4))
    )

    assert two.tables_ms - one.tables_ms == pytest.approx(0.3 / 16 * one.launches)
    assert one.tables_ms - fast.tables_ms == pytest.approx(0.137 / 16 * one.launches)
    assert one.source == "measured:A100"
    assumed = host_times(WORK, device=GPU, launch=ASSUMED)
    assert assumed.tables_ms == host_times(WORK, device=GPU, launch=Launch()).tables_ms
    assert assumed.source.startswith("assumed:")


def test_a_host_that_is_faster_than_the_counted_one_does_all_parts_faster() -> None:
    """On a CPU, and where a call takes less than the processor time that was counted for it."""
    half = Launch(host_ms=(0.03, 0.0515), host_source="measured:A100")

    for device in (GPU, CPU):
        own, counted = (host_times(WORK, device=device, launch=each) for each in (half, Launch()))
        assert own.tables_ms < counted.tables_ms
    assert host_times(WORK, device=CPU, launch=half).tables_ms == pytest.approx(
        host_times(WORK, device=CPU, launch=Launch()).tables_ms / 2
    )
