"""One of two ranks: exchanges gradients of a small dense part in every type, and holds them against exact ones.

Argument: folder, to which rank 0 writes what was found, by types.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_api.job.communication import CommunicationGuard, GuardAction
from neuroshard_trainer.communication import gradient_codec
from neuroshard_trainer.communication.gradient_codec import GradientCodec, exchange_gradients, own_group
from neuroshard_trainer.communication.gradient_guard import GradientGuard
from neuroshard_trainer.communication.sparse_gradients import SparseGradients
from support.trainer.rank_server import joined_ranks
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 8
FEATURES = 24
TYPES = [GradientType.FP16, GradientType.BF16, GradientType.THRESHOLD]


def main(folder: str) -> None:
    """Train with each type, and show what became of the gradients."""
    with joined_ranks():
        group = own_group()
        found: dict[str, Any] = {kind.value: trained(kind, group) for kind in TYPES}
        found["resumed"] = resumed(group)
        found["guard"] = {kind.value: guarded(kind, GuardAction.EXACT, group) for kind in TYPES}
        found["reported"] = guarded(GradientType.FP16, GuardAction.REPORT, group)
        found["kept"] = kept_shares(group)
        found["broken"] = broken_values(group)
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, found)
        if dist.get_rank() == 0:
            Path(folder, "found.json").write_text(json.dumps(everyone))


def wrapped(kind: GradientType, group: dist.ProcessGroup) -> tuple[DistributedDataParallel, GradientCodec]:
    """Return a model of several buckets with a codec."""
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    model = DistributedDataParallel(layers, gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=0.005)
    exchange = GradientExchange(type=kind, keep_percent=5.0, refresh_steps=4)
    codec = GradientCodec(exchange, group=group)
    model.register_comm_hook(codec, exchange_gradients)
    return model, codec


def backward(model: nn.Module, step: int) -> torch.Tensor:
    """Compute this rank's part of a step, and return the gradients as one tensor."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    model.zero_grad()
    inputs = torch.randn(16, FEATURES, generator=generator)
    torch.autograd.backward(model(inputs).sigmoid().sub(inputs[:, :1]).square().mean())
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def exact(step: int) -> torch.Tensor:
    """Return the mean of all ranks' gradients of a step, in FP64."""
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
    mean = backward(layers, step).double()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def carried(model: DistributedDataParallel, codec: GradientCodec) -> torch.Tensor:
    """Return the mean of what all ranks carry, in FP64."""
    names = {weight: name for name, weight in model.module.named_parameters()}
    return torch.cat([each.flatten() for each in codec.mean_carried(names).values()]).double()


def trained(kind: GradientType, group: dist.ProcessGroup) -> dict[str, Any]:
    """Return errors of each step, and of the sums of what was sent and what is carried; weights stay as they are."""
    model, codec = wrapped(kind, group)
    sent, wanted = torch.zeros(()), torch.zeros(())
    errors, conserved, num_bytes = [], [], []
    for step in range(STEPS):
        codec.measures_error = True
        codec.sent_bytes = 0
        mean, whole = backward(model, step).double(), exact(step)
        sent, wanted = sent + mean, wanted + whole
        errors.append(float((mean - whole).norm() / whole.norm()))
        conserved.append(float((sent + carried(model, codec) - wanted).abs().max() / wanted.abs().max()))
        num_bytes.append(codec.sent_bytes)
    measured = codec.take_error()
    codec.is_on = False
    flushed = sent + backward(model, STEPS).double() - wanted - exact(STEPS)
    last = (backward(model, STEPS + 1) - exact(STEPS + 1)).abs().max()
    return {
        "num_parameters": sum(weight.numel() for weight in model.parameters()),
        "errors": errors,
        "conserved": conserved,
        "bytes": num_bytes,
        "measured": measured,
        "flushed": float(flushed.abs().max() / wanted.abs().max()),
        "off": float(last),
        "equal": bool(same_on_all(backward(model, 1))),
    }


def same_on_all(values: torch.Tensor) -> bool:
    """Return whether all ranks have equal values, bit by bit."""
    everyone = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, values)
    return all(torch.equal(each, values) for each in everyone)


def resumed(group: dist.ProcessGroup) -> float:
    """Return the lost share of the gradients where a second process resumes with those that the first carried."""
    first, codec = wrapped(GradientType.THRESHOLD, group)
    sent = sum((backward(first, step).double() for step in range(STEPS)), torch.zeros(()))
    names = {weight: name for name, weight in first.module.named_parameters()}
    state = codec.mean_carried(names)
    second, other = wrapped(GradientType.THRESHOLD, group)
    other.first_step = STEPS
    other.begin_with(state, {weight: name for name, weight in second.module.named_parameters()})
    sent = sent + backward(second, STEPS).double()
    wanted = sum((exact(step) for step in range(STEPS + 1)), torch.zeros(()))
    return float((sent - wanted).abs().max() / wanted.abs().max())


def guarded(kind: GradientType, action: GuardAction, group: dist.ProcessGroup) -> dict[str, Any]:
    """Return the guard's reaction to a codec that doubles the mean, and once that is sound again."""
    model, codec = wrapped(kind, group)
    guard = GradientGuard.of(codec, CommunicationGuard(check_every_steps=1, action=action), group, None)
    states: list[tuple[int, str]] = []

    def checked(step: int) -> None:
        backward(model, step)
        guard.check(step)
        states.append((guard.record.num_checks, guard.record.state.value))

    with doubling():
        for step in range(1, 8):
            checked(step)
    plain = DistributedDataParallel(model.module, gradient_as_bucket_view=True, static_graph=True, bucket_cap_mb=0.005)
    off = torch.equal(backward(model, 8).clone(), backward(plain, 8))
    for step in range(9, 22):
        checked(step)
    return {
        "states": [state for _, state in states[:7]],
        "checks": next((checks for checks, state in states if state == "Suspended"), None),
        "off": off,
        "retried": states[-1][1],
        "in_a_row": guard.record.exceeded_in_a_row,
    }


@contextmanager
def doubling() -> Iterator[None]:
    """Let all codecs hand on twice the mean."""

    def doubled(found: torch.futures.Future[torch.Tensor]) -> torch.futures.Future[torch.Tensor]:
        return found.then(lambda mean: mean.value().mul_(2))

    def largest(*arguments: Any, **named: Any) -> tuple[torch.Tensor, torch.futures.Future[torch.Tensor], int]:
        late, sent, num_bytes = exchanged(*arguments, **named)
        return late, doubled(sent), num_bytes

    exchanged = SparseGradients.exchanged
    casts = {
        kind: (lambda group, bucket, hook=hook: doubled(hook(group, bucket)), num_bytes)
        for kind, (hook, num_bytes) in gradient_codec._CASTS.items()
    }
    with (
        patch.dict(gradient_codec._CASTS, casts),
        patch.object(SparseGradients, "exchanged", largest),
    ):
        yield


def kept_shares(group: dist.ProcessGroup) -> list[float]:
    """Return the share of entries that each of the last steps of a longer run kept."""
    sparse = SparseGradients(kept_share=0.05, refresh_steps=2000, group=group)
    generator = torch.Generator().manual_seed(dist.get_rank())
    scales = torch.rand(2048, generator=generator) ** 4
    late, shares = torch.zeros(2048), []
    for step in range(500):
        gradient = scales * torch.randn(2048, generator=generator)
        late, sent, _ = sparse.exchanged(0, gradient + late, step=step)
        sent.wait()
        share = sparse.take_kept_share()
        assert share is not None
        shares.append(share)
    return shares[400:]


def broken_values(group: dist.ProcessGroup) -> dict[str, bool]:
    """Return whether a value that is not a number on one rank reaches this one, behind large ones and past the room."""
    found = {}
    for name, broken in {"one": slice(2047, 2048), "many": slice(1024, 2048)}.items():
        sparse = SparseGradients(kept_share=0.05, refresh_steps=2000, group=group)
        values = torch.ones(2048)
        if dist.get_rank() == 0:
            values[broken] = torch.nan
        _, sent, _ = sparse.exchanged(0, values, step=0)
        found[name] = bool(sent.wait().isnan().any())
    return found
