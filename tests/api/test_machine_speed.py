"""How much slower a machine was in training than while it was profiled."""

from typing import Any

import pytest
from neuroshard_api.job.machine_speed import MachineSpeed, machine_speed, on_machine
from neuroshard_api.job.status import PredictedCost
from support import builders

SOURCE = "cpu:test"
PREDICTED = PredictedCost(
    total_microseconds=6000,
    compute_microseconds=3000,
    forward_communication_microseconds=2000,
    backward_communication_microseconds=1000,
    dense_microseconds=4000,
    source=SOURCE,
)


def speed_of(*, loop_ms: float | None = 0.3, source: str = SOURCE, **fields: Any) -> MachineSpeed | None:
    """Return the speed of a machine whose cores took so long for the loop while it was profiled."""
    given = {"core_loop_ms": 0.3, "compute_processor_ms": 2.0, "processor_wait_share": 0.0, **fields}
    report = builders.step_report(ranks=(builders.rank_times(0, **given),)).model_copy(update={"source": source})
    hardware = builders.hardware().model_copy(update={"core_loop_ms": loop_ms, "source": SOURCE})
    return machine_speed(report, hardware, source=SOURCE)


def test_slower_cores_and_waits_for_them_are_told_apart() -> None:
    """Lookups and updates took 2 ms, of which the rank had a processor for 1.5."""
    speed = speed_of(core_loop_ms=0.36, compute_processor_ms=1.5, processor_wait_share=0.2)

    assert speed is not None
    assert "1.20 times as long" in speed.text
    assert "had a processor for 80 % of the time" in speed.text
    assert "waited for one for 0.500 ms" in speed.text


def test_a_prediction_for_a_slow_machine_has_measured_waits_in_computation() -> None:
    """Exchanges take the inverse of the share of time in which a rank had a processor."""
    speed = MachineSpeed(rank=0, core_slowdown=1.2, processor_share=0.8, compute_wait_ms=0.5, dense_wait_ms=0.25)

    found = on_machine(PREDICTED, speed)

    assert found.compute_microseconds == 3600 + 500
    assert found.forward_communication_microseconds == 3000
    assert found.backward_communication_microseconds == 1500
    assert found.total_microseconds == 4100 + 3000 + 1500
    assert found.dense_microseconds == 4800 + 250


def test_no_exchange_is_predicted_on_processors_that_others_had() -> None:
    """With less than half of a processor, shares do not tell how long one takes; waits in computation are measured."""
    speed = MachineSpeed(rank=0, core_slowdown=1.0, processor_share=0.4, compute_wait_ms=0.5, dense_wait_ms=0.0)

    found = on_machine(PREDICTED, speed)

    assert found.compute_microseconds == 3500
    assert found.forward_communication_microseconds is None
    assert found.total_microseconds is None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"core_loop_ms": 0.32, "processor_wait_share": 0.05},
        {"loop_ms": None, "processor_wait_share": 0.5},
        {"compute_processor_ms": None, "processor_wait_share": 0.5},
        {"source": "cpu:other", "processor_wait_share": 0.5},
    ],
    ids=["as before", "nearly so", "corrected prices", "a GPU", "another machine"],
)
def test_a_machine_as_it_was_or_of_another_kind_is_not_compared(fields: dict[str, Any]) -> None:
    """Where prices were corrected by steps, their machine's speed is in them."""
    assert speed_of(**fields) is None
