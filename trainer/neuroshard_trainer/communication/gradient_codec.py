"""How gradients of the replicated dense part travel: a hook of DistributedDataParallel that is switched between steps.

    gradient + carried  ->  encoded  ->  collective  ->  decoded: the mean of what all ranks sent
                        ->  what was not sent is carried into the next step (Threshold)

Switched off, and in the first steps of a process, gradients travel whole, with all that is carried: nothing of a
gradient is lost. DistributedDataParallel changes its buckets after the first step, so that what is carried is kept by
parameter.

A measured step holds the mean that was received against an exact one of

FP16, BF16  the gradients
Threshold   what each rank does not carry on: the entries that it sends, bit by bit

Collectives that a hook starts have a group of their own with gloo, whose threads would mix up their order
with that of others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.job.training import DenseOptimizer
from neuroshard_api.process.errors import InputError
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook, fp16_compress_hook
from torch.distributed.tensor import DTensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed import DistributedModelParallel

from neuroshard_trainer.communication.sparse_gradients import SparseGradients
from neuroshard_trainer.communication.streams import used_on_this_stream

WHOLE_STEPS = 2
"""Steps of a process before anything is encoded by bucket: buckets change after the first one."""
_CASTS: Mapping[GradientType, tuple[Callable[..., Future[torch.Tensor]], int]] = {
    GradientType.FP16: (fp16_compress_hook, 2),
    GradientType.BF16: (bf16_compress_hook, 2),
}
"""torch's hook of each type, and bytes of a value."""
_Squares = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankGradients:
    """What the codec of one rank did since the report before."""

    type: GradientType
    is_encoded: bool
    step_bytes: float
    kept_share: float | None


class GradientCodec:
    """The codec of one model's replicated dense part on this rank.

    Args:
        exchange: how gradients travel.
        group: of all ranks, for the hook's collectives.
    """

    def __init__(self, exchange: GradientExchange, *, group: dist.ProcessGroup) -> None:
        self.exchange = exchange
        self.first_step = 0
        """Steps of the training before those of this process."""
        self.is_on = True
        """Whether gradients of the next step are encoded. All ranks must switch it between the same two steps."""
        self.measures_error = False
        """Whether the next step that is encoded computes `error`."""
        self.sent_bytes = 0
        """Handed to collectives by this rank since `take_work`."""
        self._group = group
        self._num_ranks = group.size()
        self._num_steps = 0
        self._num_taken = 0
        self._carried: dict[torch.Tensor, torch.Tensor] = {}
        self._squares: list[_Squares] = []
        self.sparse = SparseGradients(
            kept_share=exchange.keep_percent / 100, refresh_steps=exchange.refresh_steps, group=group
        )

    @property
    def encodes(self) -> bool:
        """Whether the next step's gradients are encoded."""
        return self.is_on and not (self.exchange.type.carries and self._num_steps < WHOLE_STEPS)

    def exchanged(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Return the future mean of all ranks' gradients in a bucket. All ranks must call this for equal buckets."""
        values = bucket.buffer()
        parameters, kind = bucket.parameters(), self.exchange.type
        if kind.carries:
            self._add_carried(parameters, bucket.gradients())
        if not self.encodes:
            found = self._whole(values)
        elif kind in _CASTS:
            found = self._cast(bucket)
        else:
            found = self._largest(bucket)
        if bucket.is_last():
            self.measures_error = self.measures_error and not self.encodes
            self._num_steps += 1
        return found

    def _whole(self, values: torch.Tensor) -> Future[torch.Tensor]:
        self.sent_bytes += values.nbytes
        values.div_(self._num_ranks)
        work = dist.all_reduce(values, group=self._group, async_op=True)
        return work.get_future().then(lambda found: found.value()[0])

    def _cast(self, bucket: GradBucket) -> Future[torch.Tensor]:
        hook, num_bytes = _CASTS[self.exchange.type]
        values = bucket.buffer()
        self.sent_bytes += num_bytes * values.numel()
        if not self.measures_error:
            return hook(self._group, bucket)
        exact = self._exact_mean(values)
        return hook(self._group, bucket).then(lambda found: self._compared(found.value(), exact()))

    def _largest(self, bucket: GradBucket) -> Future[torch.Tensor]:
        wanted = bucket.buffer().clone() if self.measures_error else None
        late, found, num_bytes = self.sparse.exchanged(bucket.index(), bucket.buffer(), step=self._num_steps)
        self.sent_bytes += num_bytes
        self._carry(bucket.parameters(), late)
        if wanted is None:
            return found
        exact = self._exact_mean(wanted - late)
        return found.then(lambda mean: self._compared(mean.value(), exact()))

    def _exact_mean(self, values: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Start an exact all-reduce of a copy, and return what waits for the mean."""
        mean = values / self._num_ranks
        work = dist.all_reduce(mean, group=self._group, async_op=True)

        def waited() -> torch.Tensor:
            work.wait()
            return mean

        return waited

    def _compared(self, mean: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        """Return the mean that was received, and note how far it is from the exact one."""
        used_on_this_stream(mean, exact)
        self._squares.append((torch.sub(mean, exact).square().sum(), exact.square().sum()))
        return mean

    def _add_carried(self, parameters: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            carried = self._carried.pop(parameter, None)
            if carried is not None:
                used_on_this_stream(carried)  # which a callback made
                gradient.add_(carried)

    def _carry(self, parameters: Sequence[torch.Tensor], late: torch.Tensor) -> None:
        parts = torch.split(late, [parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            self._carried[parameter] = part.view_as(parameter)

    def take_error(self) -> float | None:
        """Return the error of the last measured step, and forget it. None: none was measured.

        The norm of the difference between received and exact mean, over the norm of the exact one.
        """
        squares, self._squares = self._squares, []
        if not squares:
            return None
        used_on_this_stream(*(square for pair in squares for square in pair))
        lost, whole = (torch.stack([each[index] for each in squares]).sum().sqrt() for index in (0, 1))
        return float(lost / whole) if float(lost) else 0.0

    def take_work(self) -> RankGradients:
        """Return this rank's part of a report, and begin to count again."""
        num_steps, self._num_taken = self._num_steps - self._num_taken, self._num_steps
        sent, self.sent_bytes = self.sent_bytes, 0
        return RankGradients(
            type=self.exchange.type,
            is_encoded=self.encodes,
            step_bytes=sent / max(num_steps, 1),
            kept_share=self.sparse.take_kept_share(),
        )

    def mean_carried(self, names: Mapping[torch.Tensor, str]) -> dict[str, torch.Tensor]:
        """Return the mean carried error of all ranks, by the names of the parameters. All ranks must call this.

        Gradients are means over ranks: so each rank of a later run, however many they are, may begin with these.
        """
        found = {}
        for parameter, name in names.items():
            if isinstance(parameter, DTensor):  # of a sharded unit, which reduces its gradients itself
                continue
            carried = self._carried.get(parameter)
            mean = torch.zeros_like(parameter) if carried is None else carried / self._num_ranks
            dist.all_reduce(mean, group=self._group)
            found[name] = mean
        return found

    def begin_with(self, carried: Mapping[str, torch.Tensor], names: Mapping[torch.Tensor, str]) -> None:
        """Take over what an earlier run carried: the first step sends it."""
        self._carried = {parameter: carried[name] for parameter, name in names.items() if name in carried}


def exchange_gradients(codec: GradientCodec, bucket: GradBucket) -> Future[torch.Tensor]:
    """Exchange a bucket: the hook that DistributedDataParallel calls."""
    return codec.exchanged(bucket)


def with_gradient_codec(model: nn.Module, plan: GivenPlan, *, device: torch.device) -> GradientCodec | None:
    """Register the hook of a plan's gradients on the replicated dense part. All ranks must call this before training.

    Args:
        model: wrapped in DistributedModelParallel.
        plan: says how gradients travel.
        device: of this rank.

    Returns:
        The codec. None: gradients travel as they are.

    Raises:
        InputError: no part of the model is replicated.
    """
    exchange = plan.resolved.gradients
    if exchange is None or exchange.type is GradientType.FP32:
        return None
    wrapped = _replicated(model)
    if wrapped is None:
        raise InputError(
            f"the plan sends gradients of the dense part by {exchange.type}, and no unit of it is replicated; "
            "hint: set spec.experimental.communication.dense: [FP32], or replicate some unit by denseParallelism"
        )
    world = dist.group.WORLD
    assert world is not None, "the process has met the others"
    codec = GradientCodec(exchange, group=own_group() if device.type == "cpu" else world)
    wrapped.register_comm_hook(codec, exchange_gradients)
    return codec


def slowed_optimizer(plan: GivenPlan, optimizer: DenseOptimizer) -> str | None:
    """Return the warning that what a plan carries slows a dense optimizer. None: it does not."""
    exchange = plan.resolved.gradients
    if exchange is None or not exchange.type.carries or optimizer is DenseOptimizer.SGD:
        return None
    return (
        f"entries of gradients that {exchange.type} does not send arrive as sums of many steps, by whose squares "
        f"{optimizer} divides: weights move more slowly; hint: spec.training.denseOptimizer: SGD"
    )


def own_group() -> dist.ProcessGroup:
    """Return a group of all ranks with separate queues. All ranks must call this."""
    group = dist.new_group()
    assert isinstance(group, dist.ProcessGroup), "every rank is in it"
    return group


def live_exchange(model: nn.Module) -> GradientExchange | None:
    """Return the gradient exchange of a model's live hook. None: there is none of ours."""
    wrapped = _replicated(model)
    hooks: Sequence[tuple[Any, Any]] = () if wrapped is None else wrapped._comm_hooks  # noqa: SLF001 - no public way
    return next((state.exchange for _, state in hooks if isinstance(state, GradientCodec)), None)


def _replicated(model: nn.Module) -> DistributedDataParallel | None:
    """Return the wrapper of the replicated dense part; tables with a copy on each device have wrappers of their own."""
    wrapped = model._dmp_wrapped_module if isinstance(model, DistributedModelParallel) else model  # noqa: SLF001 - no public way
    return wrapped if isinstance(wrapped, DistributedDataParallel) else None
