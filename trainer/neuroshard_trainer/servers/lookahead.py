"""Look-ups of tables on servers one batch ahead, next to the step that computes.

    step t        trainers    look-ups on devices, dense part, backward passes of batch t
                  servers     look up batch t + 1    |    update rows by the gradients of batch t

A thread of each trainer exchanges with servers, so that a step takes the longer of both and not their sum. All ranks
exchange in one order: the rows of a batch lack the update of the step before, and no other. They lack none in the first
step of a start, in the step after a checkpoint, since a start from there has no rows ahead, and in the last step of an
epoch. Evaluations look up for themselves.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import nn
from torchrec.sparse.jagged_tensor import KeyedTensor

from neuroshard_trainer.data.batches import Batch
from neuroshard_trainer.ranks.tracing import traced
from neuroshard_trainer.servers.model import RowsAhead, ServedModel, ServerModel
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer

MS_PER_SECOND = 1000.0


@dataclass(frozen=True, slots=True)
class _NextBatch:
    """The batch of the next step."""

    batch: Batch
    rows: "Future[KeyedTensor] | None"
    """Its rows on servers. None: they are looked up when the step begins."""


class Lookahead:
    """Trains on batches whose rows on servers it looks up a step early; trainers and servers alike.

    Args:
        model: with tables on servers.
        optimizer: is called as in a plain loop.
        loss: of one batch.
        step: steps done.
        is_exact: whether the rows of a step, numbered from 1, lack no update.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: StepOptimizer,
        loss: Callable[[Batch], torch.Tensor],
        *,
        step: int,
        is_exact: Callable[[int], bool],
    ) -> None:
        self._model = next(each for each in model.modules() if isinstance(each, ServedModel | ServerModel))
        self._optimizer = optimizer
        self._loss = loss
        self._step = step
        self._is_exact = is_exact
        self._ahead: _NextBatch | None = None
        self._exchanges = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lookahead")
        self._returned: Future[None] | None = None
        """Of the last gradients, which every earlier exchange comes before."""

    def progress(self, batches: Iterator[Batch]) -> torch.Tensor:
        """Take a step and return its loss. Raises StopIteration once all batches are used."""
        ahead, self._ahead = self._ahead or _NextBatch(next(batches), None), None
        self._optimizer.zero_grad()
        self._step += 1
        found = ahead.rows or self._exchanges.submit(self._look_up, ahead.batch, self._step)
        following = None if self._is_exact(self._step + 1) else next(batches, None)
        if following is not None:
            self._ahead = _NextBatch(following, self._exchanges.submit(self._look_up, following, self._step + 1))
        rows = self._model.ahead.rows = RowsAhead(found)
        loss = self._loss(ahead.batch)
        self._model.ahead.rows = None
        with traced("backward"):
            torch.autograd.backward(loss)
        self._returned = self._exchanges.submit(self._give_back, rows)
        if isinstance(self._model, ServerModel):  # its tables are those of the thread
            self._returned.result()
        self._optimizer.step()
        return loss.detach()

    def detach(self) -> None:
        """Wait for all updates of the steps so far; the model then looks up for itself until the next step."""
        if self._returned is not None:
            self._returned.result()

    def look_up_again(self) -> None:
        """Let the rows of the next step lack no update. All ranks must call this."""
        self.detach()
        if self._ahead is not None:
            self._ahead = _NextBatch(self._ahead.batch, None)

    def _look_up(self, batch: Batch, step: int) -> KeyedTensor:
        begin = time.perf_counter()
        if isinstance(self._model, ServerModel):
            self._optimizer.set_rates(step)
        (far_lookups,) = batch.group_lookups
        found: KeyedTensor = self._model.far(far_lookups).wait()
        self._model.ahead.lookups_ms.append(MS_PER_SECOND * (time.perf_counter() - begin))
        return found

    def _give_back(self, rows: RowsAhead) -> None:
        begin = time.perf_counter()
        rows.give_back()
        self._model.ahead.updates_ms.append(MS_PER_SECOND * (time.perf_counter() - begin))
