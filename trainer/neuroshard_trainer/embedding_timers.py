"""Marks when the parts of a step's embedding work begin and end, by hooks on TorchRec's sharded collections.

    forward of a collection
      |-- input dist: all-to-all of the indices         INPUT_COMMUNICATION
      |-- lookup kernels                                FORWARD_COMPUTE
      `-- output dist, to the end of its wait           FORWARD_COMMUNICATION   all-to-all of the pooled embeddings
    backward
      |-- gradient of the pooled embeddings there       BACKWARD_COMMUNICATION  all-to-all of the gradients
      `-- backward kernels with the fused optimizer     BACKWARD_COMPUTE

An all-to-all lasts until the last rank has sent: the time of a rank includes its waiting for slower ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection

from neuroshard_trainer.clocks import Clock, Mark
from neuroshard_trainer.live_sharding import sharded_collections


class Part(Enum):
    """A part of a step's embedding work."""

    INPUT_COMMUNICATION = "input_communication_ms"
    FORWARD_COMPUTE = "forward_compute_ms"
    FORWARD_COMMUNICATION = "forward_communication_ms"
    BACKWARD_COMMUNICATION = "backward_communication_ms"
    BACKWARD_COMPUTE = "backward_compute_ms"


COMPUTE = (Part.FORWARD_COMPUTE, Part.BACKWARD_COMPUTE)


@dataclass(frozen=True, slots=True)
class Interval:
    """One part's begin and end."""

    part: Part
    begin: Mark
    end: Mark


class EmbeddingTimers:
    """Collects the intervals of one step after another; between ``start`` and ``stop`` only."""

    def __init__(self, model: nn.Module, clock: Clock) -> None:
        self._clock = clock
        self._intervals: list[Interval] | None = None
        for collection in sharded_collections(model):
            _CollectionHooks(collection, clock, self._add)

    def start(self) -> None:
        """Begin to collect."""
        self._intervals = []

    def stop(self) -> Sequence[Interval]:
        """Return what was collected since ``start``, and collect no more."""
        collected, self._intervals = self._intervals or [], None
        return collected

    def _add(self, part: Part, begin: Mark, end: Mark) -> None:
        if self._intervals is not None:
            self._intervals.append(Interval(part, begin, end))


Add = Callable[[Part, Mark, Mark], None]


class _CollectionHooks:
    """The hooks on one collection. TorchRec makes its output dists in the first forward pass, so they come last."""

    def __init__(self, collection: ShardedEmbeddingBagCollection, clock: Clock, add: Add) -> None:
        self._collection = collection
        self._clock = clock
        self._add = add
        self._entered: Mark | None = None
        self._hooked_dists: Sequence[nn.Module] = ()
        collection.register_forward_pre_hook(self._enter)
        # TorchRec has no public way to its lookups and output dists.
        self._lookups = [_LookupHooks(lookup, clock, add) for lookup in collection._lookups]  # noqa: SLF001
        for lookup in collection._lookups:  # noqa: SLF001
            lookup.register_forward_pre_hook(self._leave_input_dist)

    def _enter(self, *_: object) -> None:
        self._entered = self._clock.mark()

    def _leave_input_dist(self, *_: object) -> None:
        if self._entered is not None:
            self._add(Part.INPUT_COMMUNICATION, self._entered, self._clock.mark())
            self._entered = None
        dists = self._collection._output_dists  # noqa: SLF001
        if dists is not self._hooked_dists:
            self._hooked_dists = dists
            for lookup, dist in zip(self._lookups, dists, strict=True):
                dist.register_forward_hook(lookup.begin_dist)


class _LookupHooks:
    """The hooks on one group of tables that are looked up by one kernel and sent by one all-to-all."""

    def __init__(self, lookup: nn.Module, clock: Clock, add: Add) -> None:
        self._clock = clock
        self._add = add
        self._lookup_began: Mark = None
        self._lookup_ended: Mark = None
        self._gradient_there: Mark | None = None
        self._backward_began: Mark = None
        lookup.register_forward_pre_hook(self._begin_lookup)
        lookup.register_forward_hook(self._end_lookup)
        for kernel in lookup.modules():
            if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen):
                kernel.register_forward_hook(self._watch_backward)
                # FBGEMM's way into autograd has its turn as soon as the kernel is done. A hook behind the kernel itself
                # would be given the kernel's gradients, which autograd would have to keep for it.
                kernel.placeholder_autograd_tensor.register_hook(self._end_backward)

    def begin_dist(self, _module: nn.Module, _inputs: object, awaitable: Any) -> None:  # noqa: ANN401 - torchrec's, untyped
        """Have the end of the output dist's wait marked."""
        awaitable.callbacks.append(self._end_dist)

    def _begin_lookup(self, *_: object) -> None:
        self._lookup_began = self._clock.mark()

    def _end_lookup(self, *_: object) -> None:
        self._lookup_ended = self._clock.mark()
        self._add(Part.FORWARD_COMPUTE, self._lookup_began, self._lookup_ended)

    def _watch_backward(self, _module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        if output.grad_fn is not None:
            output.grad_fn.register_prehook(self._begin_backward)

    def _end_dist(self, pooled: torch.Tensor) -> torch.Tensor:
        self._add(Part.FORWARD_COMMUNICATION, self._lookup_ended, self._clock.mark())
        self._gradient_there = None
        if pooled.requires_grad:
            pooled.register_hook(self._take_gradient)  # type: ignore[no-untyped-call] # torch's
        return pooled

    def _take_gradient(self, _gradient: torch.Tensor) -> None:
        self._gradient_there = self._clock.mark()

    def _begin_backward(self, *_: object) -> None:
        self._backward_began = self._clock.mark()
        if self._gradient_there is not None:
            self._add(Part.BACKWARD_COMMUNICATION, self._gradient_there, self._backward_began)
            self._gradient_there = None

    def _end_backward(self, *_: object) -> None:
        self._add(Part.BACKWARD_COMPUTE, self._backward_began, self._clock.mark())
