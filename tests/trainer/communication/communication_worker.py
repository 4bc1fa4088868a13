"""One of four ranks: exchanges pooled embeddings in every type that a CPU has, and counts what really travels.

Argument: folder, to which rank 0 writes what was found, by types.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType, WireTypes
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.progress import GuardRecord
from neuroshard_api.job.communication import CommunicationGuard
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_trainer.communication.codecs import Codecs, live_codecs
from neuroshard_trainer.communication.guard import Guard
from neuroshard_trainer.ranks.process import Process, new_group
from neuroshard_trainer.run import sharded_job_model
from support.trainer.rank_server import joined_ranks
from support.trainer.trainer_builders import TABLES, job_data, plan_of
from support.trainer.trainer_models import random_samples
from torch.nn.functional import binary_cross_entropy_with_logits

CPU = torch.device("cpu")
SAMPLES = 32  # of each rank: whole groups of every type
CUTS = {"user": ((1, 20), (0, 12)), "item": ((2, 32),), "country": ((1, 16),)}
"""Rank 3 has nothing to send."""
PAIRS = [
    WireTypes(forward=WireType(forward), backward=WireType(backward))
    for forward, backward in (
        ("FP16", "FP16"),
        ("INT8", "INT8"),
        ("MX4", "MX4"),
        ("INT8", "FP32"),
        ("FP32", "FP16"),
        ("TOP32", "TOP16"),
        ("FP16", "TOP8"),
    )
]


def main(folder: str) -> None:
    """Hold every pair of types against exact exchange."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        process = Process(rank=dist.get_rank(), world_size=4, device=CPU, group=new_group(60))
        exact, plain_bytes = trained(process, None)
        found = {"exact": plain_bytes}
        for types in PAIRS:
            found[types.text] = check(process, types, exact)
        found["guard"] = guarded(process)
        everyone: list[Any] = [None] * 4
        dist.all_gather_object(everyone, found)
        if process.is_first:
            Path(folder, "found.json").write_text(json.dumps(everyone))


def plan_with(types: WireTypes | None) -> GivenPlan:
    """Return the plan with these types."""
    return plan_of(CUTS, world_size=4, batch_size_per_device=SAMPLES, wire=types)


def model_of(process: Process, types: WireTypes | None) -> tuple[Any, Codecs | None]:
    """Return a model with equal weights, and its codecs."""
    model = sharded_job_model(DLRMTrainingJob.from_data(job_data(world_size=4)), plan_with(types), process)
    return model, live_codecs(model)


def step(model: Any, seed: int) -> torch.Tensor:
    """Take a step of the tables, and return the logits before it."""
    dense, lookups, labels = random_samples(10 * seed + dist.get_rank(), SAMPLES, TABLES)
    logits: torch.Tensor = model(dense, lookups)
    torch.autograd.backward(binary_cross_entropy_with_logits(logits, labels))
    model.zero_grad()
    return logits.detach()


@contextmanager
def counted() -> Iterator[dict[str, int]]:
    """Count the bytes of values, not of indices, that this rank hands to all-to-alls, and that it gets."""
    found, real = {"sent": 0, "received": 0}, dist.all_to_all_single

    def count(output: torch.Tensor, input: torch.Tensor, *options: Any, **more: Any) -> Any:  # noqa: A002 - torch's
        if input.dtype not in {torch.int32, torch.int64}:
            found["sent"] += input.numel() * input.element_size()
            found["received"] += output.numel() * output.element_size()
        return real(output, input, *options, **more)

    with patch.object(dist, "all_to_all_single", count):
        yield found


def trained(process: Process, types: WireTypes | None) -> tuple[list[torch.Tensor], dict[str, int]]:
    """Return the logits of three steps, and the bytes of the first."""
    model, _ = model_of(process, types)
    with counted() as num_bytes:
        logits = [step(model, 0)]
    return [*logits, step(model, 1), step(model, 2)], num_bytes


def check(process: Process, types: WireTypes, exact: list[torch.Tensor]) -> dict[str, Any]:
    """Return bytes, errors, and differences of logits with these types, on, off from the first step, and off later."""
    model, codecs = model_of(process, types)
    assert codecs is not None
    assert codecs.types == types
    codecs.measure_errors()
    with counted() as num_bytes:
        narrow = step(model, 0)
    work = codecs.forward.take_work(), codecs.backward.take_work()
    errors = [0.0 if each.error is None else float(each.error) for each in (codecs.forward, codecs.backward)]
    late(process)
    codecs.switch(on=False)
    with counted() as off_bytes:
        step(model, 1)
    late(process)
    codecs.switch(on=True)
    with counted() as again_bytes:
        step(model, 2)
    off, own = model_of(process, types)
    assert own is not None
    own.switch(on=False)
    columns = {0: 12, 1: 36, 2: 32, 3: 0}[process.rank]
    samples = 4 * SAMPLES
    return {
        "bytes": num_bytes,
        "off_bytes": off_bytes,
        "again_bytes": again_bytes,
        "worked_bytes": [each.sent_bytes for each in work],
        "forward_bytes": WIRE_FORMATS[types.forward].sent_bytes(columns, samples, pads=True),
        "backward_bytes": WIRE_FORMATS[types.backward].sent_bytes(columns, samples, pads=False),
        "errors": errors,
        "difference": float((narrow - exact[0]).abs().max()),
        "off_is_exact": all(torch.equal(step(off, seed), exact[seed]) for seed in range(3)),
    }


def late(process: Process) -> None:
    """Make the last rank come to the next exchange after the others."""
    if process.rank == process.world_size - 1:
        values = torch.randn(400, 400)
        for _ in range(20):
            values = torch.tanh(values @ values)


def guarded(process: Process) -> dict[str, Any]:
    """Train with a codec that decodes 20 times the values, guarded, and return what the guard did."""
    types = WireTypes(forward=WireType.INT8)
    model, codecs = model_of(process, types)
    assert codecs is not None
    decode = codecs.forward._codec.decode
    codecs.forward._codec.decode = lambda *values: 20 * decode(*values)  # type: ignore[method-assign]
    settings = CommunicationGuard(check_every_steps=1)
    guard = Guard(codecs, settings, process.group, GuardRecord())
    dense, lookups, labels = random_samples(1000 + process.rank, SAMPLES, TABLES)

    def loss() -> torch.Tensor:
        return binary_cross_entropy_with_logits(model(dense, lookups), labels, reduction="sum")

    records = []
    for number in range(1, 5):
        step(model, number)
        with torch.no_grad():
            guard.check(number, loss)
        records.append(guard.record.model_dump(mode="json"))
    return {"records": records, "is_on": codecs.is_on}
