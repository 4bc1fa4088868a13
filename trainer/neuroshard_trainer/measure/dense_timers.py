"""Marks when the dense part's share of a step begins and ends, by hooks on the whole model and on its shards.

    forward of the model                             DENSE_FORWARD
    backward, from the gradient of what it returned  DENSE_BACKWARD
    collectives of dense weights and gradients       DENSE_COLLECTIVES

Lookups and their exchange are within forward and backward; who adds up takes them out. Collectives are what a step
waits for: units that `fully_shard` gathers and reduces, copies included, and at the end of the backward pass the
all-reduce of DistributedDataParallel. What compute hides is in neither.
"""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule, fully_shard

from neuroshard_trainer.measure.step_marks import StepMarks, TimedPart
from neuroshard_trainer.ranks.clocks import Mark

_COLLECTIVE_CALLS = ("unshard", "wait_for_unshard", "post_backward")
"""Of torch's groups of sharded parameters: gather, wait for it and copy, reduce."""


class DenseTimers:
    """Marks the intervals of each step that is timed in parts.

    Args:
        model: that the training calls. Where it returns anything but one tensor, its backward pass is not timed.
        marks: of the steps.
    """

    def __init__(self, model: nn.Module, marks: StepMarks) -> None:
        self._marks = marks
        self._forward_began: Mark = None
        self._backward_began: Mark = None
        self._computed: Mark = None
        model.register_forward_pre_hook(self._begin_forward)
        model.register_forward_hook(self._end_forward)
        for group in _shard_groups(model):
            for name in _COLLECTIVE_CALLS:
                setattr(group, name, self._timed(getattr(group, name)))

    def _begin_forward(self, *_: object) -> None:
        if self._marks.in_parts:
            self._forward_began = self._marks.mark()

    def _end_forward(self, _module: nn.Module, _inputs: object, output: object) -> None:
        if not self._marks.in_parts:
            return
        self._marks.end(TimedPart.DENSE_FORWARD, None, self._forward_began)
        if isinstance(output, torch.Tensor) and output.requires_grad:
            output.register_hook(self._begin_backward)  # type: ignore[no-untyped-call] # torch's

    def _begin_backward(self, *_: object) -> None:
        self._backward_began = self._marks.mark()
        # The first callback of the pass, so that it runs before those in which torch waits for collectives.
        Variable._execution_engine.queue_callback(self._end_compute)  # noqa: SLF001 - as torch's own FSDP does

    def _end_compute(self) -> None:
        self._computed = self._marks.end(TimedPart.DENSE_BACKWARD, None, self._backward_began)
        Variable._execution_engine.queue_callback(self._end_wait)  # noqa: SLF001 - behind those that wait

    def _end_wait(self) -> None:
        self._marks.end(TimedPart.DENSE_COLLECTIVES, None, self._computed)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def timed(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - torch's own
            if not self._marks.in_parts:
                return call(*arguments, **named)
            begun = self._marks.mark()
            try:
                return call(*arguments, **named)
            finally:
                self._marks.end(TimedPart.DENSE_COLLECTIVES, None, begun)

        return timed


def _shard_groups(model: nn.Module) -> Iterator[Any]:
    """Yield the groups of parameters that ranks share."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            yield from fully_shard.state(module)._fsdp_param_groups  # type: ignore[attr-defined] # noqa: SLF001
