"""Which steps are timed in parts, and the parts in which a device waits for its host."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from neuroshard_api.documents.step_report import StepReport
from neuroshard_api.sharding.kinds import Family
from neuroshard_trainer.measure.step_marks import StepMarks, TimedPart, is_timed
from neuroshard_trainer.measure.step_reporter import MarkedStep, StepReporter, host_bound_parts, step_times
from neuroshard_trainer.ranks.clocks import CudaClock, Mark
from neuroshard_trainer.sharding.live_sharding import sharded_collections
from support.profiler.cuda_events import SimulatedGpu
from support.trainer.timed_steps import MEMORY, batch, trained
from support.trainer.trainer_builders import plan_of, write_plan
from support.trainer.trainer_models import sharded_model


def test_one_step_in_ten_is_timed_whatever_the_period_of_a_training() -> None:
    """Each window of 100 steps has its 10, and steps that come every so often have their share of them."""
    timed = [step for step in range(10, 1000) if is_timed(step, every=10)]

    assert all(is_timed(step, every=10) for step in range(10)), "a short training has times as well"
    assert {sum(first <= step < first + 100 for step in timed) for first in range(10, 900, 10)} == {10}
    for period in range(2, 51):
        shares = [sum(step % period == phase for step in timed) / len(timed) for phase in range(period)]
        assert max(abs(share - 1 / period) for share in shares) < 0.07


def test_a_step_that_is_not_timed_in_parts_has_two_marks(tmp_path: Path, group: Any) -> None:
    """Its begin and its end, by events that earlier steps used; the report has medians of the timed ones."""
    reports: list[StepReport] = []
    model = sharded_model(group)
    gpu = SimulatedGpu(work_before_event_ms=1.0)
    reporter = StepReporter(
        model, write_plan(tmp_path, plan_of()), write=reports.append, drift=False, clock=CudaClock(new_event=gpu.event)
    )
    marks = [0]

    for dense, lookups in reporter.steps([batch()] * 300):
        torch.autograd.backward(model(dense, lookups).sum())
        reporter.end_step()
        marks.append(gpu.num_records)

    per_step = [after - before for before, after in pairwise(marks)]
    in_parts = [count > 2 for count in per_step]
    assert in_parts == [is_timed(step, every=10) for step in range(300)]
    assert max(per_step) < 20
    assert sum(per_step[100:]) / len(per_step[100:]) < 4
    assert gpu.num_events <= 10 * max(per_step) + 9 * max(per_step) + 2 * 100
    assert [(each.num_steps, each.num_timed_steps) for each in reports] == [(100, 10)] * 3
    first, last = (reports[index].ranks[0] for index in (0, -1))
    assert last.step_ms == 1.0, "that of most steps, whose end alone is work"
    of_its_moment = {"step_ms", "processor_wait_share", *MEMORY}
    assert first.model_dump(exclude=of_its_moment) == last.model_dump(exclude=of_its_moment)


@pytest.mark.parametrize(
    ("queued_ms", "launch_ms", "is_bound"),
    [(0.0, 4.0, True), (0.0, 0.2, False), (500.0, 4.0, False)],
    ids=["late", "in time", "ahead"],
)
def test_a_part_says_whether_the_device_waited_for_the_host(
    tmp_path: Path,
    group: Any,
    queued_ms: float,
    launch_ms: float,
    is_bound: bool,  # noqa: FBT001 - a case's own
) -> None:
    """By what can be waiting: nothing where the device has not come to the part, else what the launches take."""
    reports: list[StepReport] = []
    model = sharded_model(group)
    gpu = SimulatedGpu()
    (collection,) = sharded_collections(model)

    def launch(*_: object) -> None:
        gpu.host_ms += launch_ms
        gpu.queue(5.0)

    reporter = StepReporter(
        model,
        write_plan(tmp_path, plan_of()),
        write=reports.append,
        clock=CudaClock(new_event=gpu.event, host_ns=lambda: int(gpu.host_ms * 1e6)),
    )
    for lookup in collection._lookups:
        lookup.register_forward_pre_hook(launch)

    for dense, lookups in reporter.steps([batch()] * 4):
        gpu.queue(queued_ms)
        torch.autograd.backward(model(dense, lookups).sum())
        for _ in range(2):
            gpu.event().synchronize()
        gpu.host_ms = max(gpu.host_ms, gpu.busy_until_ms)

    shares = reports[0].ranks[0].host_bound
    assert shares is not None
    assert shares.forward_compute == float(is_bound)
    assert shares.binds("forward_compute", "backward_compute") == is_bound
    measured_ms = reports[0].ranks[0].forward_compute_ms
    assert measured_ms == pytest.approx(5.0 if queued_ms else 5.0 + launch_ms)


def test_a_moment_of_two_collections_is_of_one_part() -> None:
    """The first one's exchanges are under way during the second one's index exchange, lookups, and copies."""
    gpu = SimulatedGpu()
    clock = CudaClock(new_event=gpu.event)
    marks = StepMarks(clock)
    marks.start()
    begin = marks.mark()

    def ended(part: TimedPart, begun: Mark, ms: float) -> Mark:
        gpu.queue(ms)
        of_all = part in {TimedPart.INPUT_COMMUNICATION, TimedPart.EXPANSION}
        return marks.end(part, None if of_all else Family.COLUMNS, begun)

    first = ended(TimedPart.FORWARD_COMPUTE, ended(TimedPart.INPUT_COMMUNICATION, begin, 1.0), 2.0)
    second = ended(TimedPart.FORWARD_COMPUTE, ended(TimedPart.INPUT_COMMUNICATION, first, 4.0), 8.0)
    ended(TimedPart.FORWARD_COMMUNICATION, first, 16.0)
    ended(TimedPart.FORWARD_COMMUNICATION, second, 32.0)
    gradient = marks.mark()
    ended(TimedPart.EXPANSION, gradient, 64.0)
    ended(TimedPart.BACKWARD_COMMUNICATION, gradient, 128.0)
    step = MarkedStep(begin=begin, end=marks.mark(), waits=(), intervals=tuple(marks.stop()))

    times = step_times(clock, step)

    assert times["input_communication_ms"] == 1.0 + 4.0
    assert times["forward_communication_ms"] == 16.0 + 32.0
    assert (times["expansion_ms"], times["backward_communication_ms"]) == (64.0, 128.0)
    assert times["dense_ms"] == 0.0


def test_a_wait_for_servers_is_none_for_the_host() -> None:
    """The host waits itself: nothing is launched too late."""
    gpu = SimulatedGpu()
    marks = StepMarks(CudaClock(new_event=gpu.event, host_ns=lambda: int(gpu.host_ms * 1e6)))
    marks.start()
    for part in (TimedPart.SERVERS, TimedPart.FORWARD_COMPUTE):
        begin = marks.mark()
        gpu.host_ms += 5.0
        marks.end(part, None, begin)
    step = MarkedStep(begin=None, end=None, waits=(), intervals=tuple(marks.stop()))

    assert host_bound_parts(step, dict.fromkeys(TimedPart, 5.0)) == frozenset({TimedPart.FORWARD_COMPUTE})


def test_a_cpu_waits_for_no_host(tmp_path: Path, group: Any) -> None:
    """The host is what computes: the report says nothing of it."""
    reports: list[StepReport] = []
    model = sharded_model(group)
    trained(model, StepReporter(model, write_plan(tmp_path, plan_of()), write=reports.append), 2)

    assert reports[0].ranks[0].host_bound is None
