"""The dense part's times, on a simulated GPU whose work is queued where a real one's would be."""

from collections import Counter
from typing import Any

import torch
from neuroshard_trainer.measure.dense_timers import DenseTimers
from neuroshard_trainer.measure.step_marks import StepMarks, TimedPart
from neuroshard_trainer.measure.step_reporter import _dense_times
from neuroshard_trainer.ranks.clocks import CudaClock
from support.profiler.cuda_events import SimulatedGpu
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def test_passes_last_from_the_input_to_the_last_gradient(group: Any) -> None:
    """What a pass waits for a sharded unit is in it, and apart as well."""
    assert group.size() == 1
    gpu, found = SimulatedGpu(), Counter[str]()
    clock = CudaClock(new_event=gpu.event)
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1), nn.Flatten(0))
    fully_shard(model[1], mesh=init_device_mesh("cpu", (1,)))
    (shards,) = fully_shard.state(model[1])._fsdp_param_groups  # type: ignore[attr-defined]
    wait_for_unshard = shards.wait_for_unshard

    def wait() -> None:
        gpu.queue(8.0)
        wait_for_unshard()

    shards.wait_for_unshard = wait
    marks = StepMarks(clock)
    DenseTimers(model, marks)
    model[0].register_forward_hook(lambda *_: gpu.queue(1.0))
    model[0].register_full_backward_hook(lambda *_: gpu.queue(2.0))

    marks.start()
    output = model(torch.ones(3, 2, requires_grad=True))
    gpu.queue(64.0)  # the loss is in neither pass
    torch.autograd.backward(output.sum())
    for each in marks.stop():
        found[each.part] += int(clock.read_ms([each.begin, each.end])[1])

    assert found == {
        TimedPart.DENSE_FORWARD: 1 + 8,
        TimedPart.DENSE_BACKWARD: 8 + 2,
        TimedPart.DENSE_COLLECTIVES: 8 + 8,
    }


def test_no_moment_counts_twice() -> None:
    """Lookups are in no part of the dense passes, and collectives in neither pass."""
    spans = {
        TimedPart.DENSE_FORWARD: [(0.0, 10.0)],
        TimedPart.DENSE_BACKWARD: [(12.0, 30.0)],
        TimedPart.DENSE_COLLECTIVES: [(2.0, 4.0), (25.0, 35.0)],
    }

    found = _dense_times(spans, without=[(5.0, 6.0), (14.0, 15.0), (34.0, 35.0)])

    assert found == {"dense_forward_ms": 7.0, "dense_backward_ms": 12.0, "dense_collectives_ms": 11.0}
    assert _dense_times({**spans, TimedPart.DENSE_BACKWARD: []}, without=[]) == {}, "an evaluation has no such passes"
