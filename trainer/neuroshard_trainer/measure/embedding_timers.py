"""Marks when the parts of a step's embedding work begin and end, by hooks on TorchRec's sharded collections.

    forward of a collection
      |-- input dist: all-to-all of the indices         INPUT_COMMUNICATION
      |-- lookup kernels                                FORWARD_COMPUTE
      `-- output dist, to the end of its wait           FORWARD_COMMUNICATION   all-to-all of the pooled embeddings
    backward
      |-- gradient of the pooled embeddings there       BACKWARD_COMMUNICATION  all-to-all of the gradients
      `-- backward kernels with the fused optimizer     BACKWARD_COMPUTE

Row-wise and node-wise tables have other collectives in the same places. Data-parallel tables have none but this:

    backward
      |-- backward kernels without an optimizer         BACKWARD_COMPUTE
      `-- wait of DistributedDataParallel at its end    BACKWARD_COMMUNICATION  all-reduce of the gradients
    optimizer of these tables                           BACKWARD_COMPUTE

Between the forward pass's exchange and the dense part, and on the way back, batches without repeated lists have the
copies to the samples that repeat them: EXPANSION.

Waits for embedding servers, which have tables too, are SERVERS: to send ids, and for what is left of the servers' work
when the tables on devices are looked up.

Where groups of ranks hold copies of the tables, their average after the optimizers is BACKWARD_COMMUNICATION too.

An all-to-all lasts until the last rank has sent: the time of a rank includes its waiting for slower ones.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    DenseTableBatchedEmbeddingBagsCodegen,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from neuroshard_api.sharding.collectives import CollectiveKind
from neuroshard_api.sharding.kinds import Family, ShardingType
from torch import nn
from torch.autograd import Variable
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.optim.keyed import KeyedOptimizerWrapper

from neuroshard_trainer.measure.step_marks import StepMarks, TimedPart
from neuroshard_trainer.model.averaged_model import AveragedModel
from neuroshard_trainer.model.expansion import Expansion
from neuroshard_trainer.ranks.clocks import Mark
from neuroshard_trainer.servers.model import ServedModel
from neuroshard_trainer.sharding.live_sharding import sharded_collections


class EmbeddingTimers:
    """Marks the embedding work of each step that is timed in parts; averages of copies in every step.

    Args:
        model: with sharded collections.
        marks: of the steps.
        replicated_optimizer: of data_parallel tables. None: there are none.
    """

    def __init__(
        self, model: nn.Module, marks: StepMarks, replicated_optimizer: KeyedOptimizerWrapper | None = None
    ) -> None:
        self._marks = marks
        self._update_began: Mark = None
        self._sync_began: Mark = None
        self._wait_began: Mark = None
        served = next((module for module in model.modules() if isinstance(module, ServedModel)), None)
        far = None if served is None else served.far
        for collection in sharded_collections(model):
            if collection is not far:
                _CollectionHooks(collection, marks)
        if served is not None:
            served.wait_hooks = (self._begin_wait, self._end_wait)
        for module in model.modules():
            if isinstance(module, Expansion):
                _ExpansionHooks(module, marks)
        if isinstance(model, AveragedModel):
            model.sync_hooks = (self._begin_sync, self._end_sync)
        if replicated_optimizer is not None:
            inner = replicated_optimizer._optimizer  # noqa: SLF001 - the wrapper calls no hooks
            inner.register_step_pre_hook(self._begin_update)
            inner.register_step_post_hook(self._end_update)

    def _begin_wait(self) -> None:
        if self._marks.in_parts:
            self._wait_began = self._marks.mark()

    def _end_wait(self) -> None:
        if self._marks.in_parts:
            self._marks.end(TimedPart.SERVERS, None, self._wait_began)

    def _begin_update(self, *_: object) -> None:
        if self._marks.in_parts:
            self._update_began = self._marks.mark()

    def _end_update(self, *_: object) -> None:
        if self._marks.in_parts:
            self._marks.end(TimedPart.BACKWARD_COMPUTE, Family.REPLICATED, self._update_began)

    def _begin_sync(self) -> None:
        if self._marks.in_step:
            self._sync_began = self._marks.mark()

    def _end_sync(self) -> None:
        if self._marks.in_step:
            self._marks.end(TimedPart.BACKWARD_COMMUNICATION, CollectiveKind.SYNC, self._sync_began)


class _CollectionHooks:
    """The hooks on one collection. TorchRec makes its output dists in the first forward pass, so they come last."""

    def __init__(self, collection: ShardedEmbeddingBagCollection, marks: StepMarks) -> None:
        self._collection = collection
        self._marks = marks
        self._entered: Mark | None = None
        self._hooked_dists: Sequence[nn.Module] = ()
        collection.register_forward_pre_hook(self._enter)
        # TorchRec has no public way to its lookups and output dists.
        families = [Family.of(ShardingType(each)) for each in collection._sharding_types]  # noqa: SLF001
        self._lookups = [
            _LookupHooks(lookup, family, marks)
            for lookup, family in zip(collection._lookups, families, strict=True)  # noqa: SLF001
        ]
        for lookup in collection._lookups:  # noqa: SLF001
            lookup.register_forward_pre_hook(self._leave_input_dist)

    def _enter(self, *_: object) -> None:
        if self._marks.in_parts:
            self._entered = self._marks.mark()

    def _leave_input_dist(self, *_: object) -> None:
        if self._entered is not None:
            self._marks.end(TimedPart.INPUT_COMMUNICATION, None, self._entered)
            self._entered = None
        dists = self._collection._output_dists  # noqa: SLF001
        if dists is not self._hooked_dists:
            self._hooked_dists = dists
            for lookup, dist in zip(self._lookups, dists, strict=True):
                if lookup.family is not Family.REPLICATED:
                    dist.register_forward_hook(lookup.begin_dist)


class _LookupHooks:
    """The hooks on the tables of one sharding type, which are looked up together and sent by one collective."""

    def __init__(self, lookup: nn.Module, family: Family, marks: StepMarks) -> None:
        self.family = family
        self._marks = marks
        self._lookup_began: Mark = None
        self._lookup_ended: Mark = None
        self._gradient_there: Mark | None = None
        self._backward_began: Mark = None
        self._wait_began: Mark = None
        self._accumulators: list[torch.autograd.graph.Node] = []
        """What DistributedDataParallel has its hooks on; they last as long as somebody holds them."""
        lookup.register_forward_pre_hook(self._begin_lookup)
        lookup.register_forward_hook(self._end_lookup)
        for kernel in lookup.modules():
            if isinstance(kernel, SplitTableBatchedEmbeddingBagsCodegen):
                kernel.register_forward_hook(self._watch_backward)
                # FBGEMM's way into autograd has its turn as soon as the kernel is done. A hook behind the kernel itself
                # would be given the kernel's gradients, which autograd would have to keep for it.
                kernel.placeholder_autograd_tensor.register_hook(self._end_backward)
            elif isinstance(kernel, DenseTableBatchedEmbeddingBagsCodegen):
                kernel.register_forward_hook(self._watch_backward)
                self._watch_all_reduce(kernel.weights)

    def begin_dist(self, _module: nn.Module, _inputs: object, awaitable: Any) -> None:  # noqa: ANN401 - torchrec's, untyped
        """Have the end of the output dist's wait marked."""
        if self._marks.in_parts:
            awaitable.callbacks.append(self._end_dist)

    def _begin_lookup(self, *_: object) -> None:
        if self._marks.in_parts:
            self._lookup_began = self._marks.mark()

    def _end_lookup(self, *_: object) -> None:
        if self._marks.in_parts:
            self._lookup_ended = self._marks.end(TimedPart.FORWARD_COMPUTE, self.family, self._lookup_began)

    def _watch_backward(self, _module: nn.Module, _inputs: object, output: torch.Tensor) -> None:
        if self._marks.in_parts and output.grad_fn is not None:
            output.grad_fn.register_prehook(self._begin_backward)

    def _end_dist(self, pooled: torch.Tensor) -> torch.Tensor:
        self._marks.end(TimedPart.FORWARD_COMMUNICATION, self.family, self._lookup_ended)
        self._gradient_there = None
        if pooled.requires_grad:
            pooled.register_hook(self._take_gradient)  # type: ignore[no-untyped-call] # torch's
        return pooled

    def _take_gradient(self, _gradient: torch.Tensor) -> None:
        self._gradient_there = self._marks.mark()

    def _begin_backward(self, *_: object) -> None:
        if self._gradient_there is None:
            self._backward_began = self._marks.mark()
            return
        self._backward_began = self._marks.end(TimedPart.BACKWARD_COMMUNICATION, self.family, self._gradient_there)
        self._gradient_there = None

    def _end_backward(self, *_: object) -> None:
        if self._marks.in_parts:
            self._marks.end(TimedPart.BACKWARD_COMPUTE, self.family, self._backward_began)

    def _watch_all_reduce(self, weights: nn.Parameter) -> None:
        """Have DistributedDataParallel's wait at the end of the backward pass marked.

        It queues that wait as a callback of the pass, by a hook on the node that accumulates the gradient. A hook on
        the gradient itself runs before it, and one that the node gets later runs after it. So do the callbacks they
        queue.
        """
        weights.register_hook(self._queue_begin_of_wait)  # type: ignore[no-untyped-call] # torch's
        view = weights.view_as(weights).grad_fn
        assert view is not None, "the weights are trained"
        accumulator = view.next_functions[0][0]
        assert accumulator is not None, "the weights are a leaf"
        accumulator.register_hook(self._queue_end_of_wait)
        self._accumulators.append(accumulator)

    def _queue_begin_of_wait(self, *_: object) -> None:
        if not self._marks.in_parts:
            return
        self._end_backward()
        Variable._execution_engine.queue_callback(self._begin_wait)  # noqa: SLF001 - as torch's own FSDP does

    def _queue_end_of_wait(self, *_: object) -> None:
        if self._marks.in_parts:
            Variable._execution_engine.queue_callback(self._end_wait)  # noqa: SLF001

    def _begin_wait(self) -> None:
        self._wait_began = self._marks.mark()

    def _end_wait(self) -> None:
        self._marks.end(TimedPart.BACKWARD_COMMUNICATION, self.family, self._wait_began)


class _ExpansionHooks:
    """The hooks on the copies of pooled embeddings to samples that repeat a list."""

    def __init__(self, expansion: Expansion, marks: StepMarks) -> None:
        self._marks = marks
        self._forward_began: Mark = None
        self._backward_began: Mark = None
        expansion.register_forward_pre_hook(self._begin_forward)
        expansion.register_forward_hook(self._end_forward)

    def _begin_forward(self, *_: object) -> None:
        if self._marks.in_parts:
            self._forward_began = self._marks.mark()

    def _end_forward(self, module: Expansion, _inputs: object, pooled: Mapping[str, torch.Tensor]) -> None:
        if not self._marks.in_parts:
            return
        self._marks.end(TimedPart.EXPANSION, None, self._forward_began)
        for node in module.nodes(pooled):
            node.register_prehook(self._begin_backward)
            node.register_hook(self._end_backward)

    def _begin_backward(self, *_: object) -> None:
        self._backward_began = self._marks.mark()

    def _end_backward(self, *_: object) -> None:
        self._marks.end(TimedPart.EXPANSION, None, self._backward_began)
