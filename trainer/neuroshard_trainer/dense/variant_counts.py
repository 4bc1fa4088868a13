"""The dense part of variants that train together, from the counts of each alone: they share nothing but the batch.

A step runs the forward passes of all, one after the other, and their backward passes in the opposite order. So weights,
gradients, state, and operations are sums. Where one variant's memory is highest, the others have what their backward
passes need, and in the forward pass the received embeddings as well, which are alive until it returns:

    forward   kept and received of the others + highest of one      backward   kept of the others + highest of one

The gradient of received embeddings waits for that of the last variant. It takes the place of what a variant had kept,
which is never less: interactions keep a copy of all embeddings.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import torch
from neuroshard_api.documents.dense_profile import DensePass, DensePasses, DenseProfile, DenseUnit, features_sha256
from neuroshard_api.documents.tables import Table

from neuroshard_trainer.dense.counts_by_size import Counted
from neuroshard_trainer.dense.trackers import counted_passes
from neuroshard_trainer.model.variant_model import path_of_variant
from neuroshard_trainer.variants import mean_losses, summed


def together(variants: Mapping[str, Counted], *, tables: Sequence[Table], signature: Mapping[str, str]) -> DenseProfile:
    """Return the dense part of variants in one trainer.

    Args:
        variants: each alone, by its name, all of one batch size and optimizer.
        tables: of all.
        signature: of the job.
    """
    counts = list(variants.values())
    profiles = [each.profile for each in counts]
    size = profiles[0].batch_size_per_device
    passes = _passes_working_bytes(counts)
    optimizer = max(each.optimizer_working_bytes or 0 for each in profiles)  # each variant's parameters are a group
    return profiles[0].model_copy(
        update={
            "features_sha256": features_sha256(tables),
            "signature": dict(signature),
            "weights_bytes": sum(each.weights_bytes for each in profiles),
            "gradient_bytes": sum(each.gradient_bytes for each in profiles),
            "optimizer_state_bytes": sum(each.optimizer_state_bytes for each in profiles),
            "working_bytes": max(passes, optimizer),
            "passes_working_bytes": passes,
            "optimizer_working_bytes": optimizer,
            "passes": _passes([each.passes for each in profiles if each.passes], num_samples=size),
            "units": tuple(_units(variants)),
        }
    )


def _passes_working_bytes(counts: Sequence[Counted]) -> int:
    kept = sum(each.kept_bytes for each in counts)
    received = sum(each.received_bytes for each in counts)
    forward = max(each.forward_working_bytes - each.kept_bytes - each.received_bytes for each in counts)
    both = max((each.profile.passes_working_bytes or 0) - each.kept_bytes for each in counts)
    return kept + max(received + forward, both)


def _passes(alone: Sequence[DensePasses], *, num_samples: int) -> DensePasses:
    """Return the operations of all variants.

    Their losses are computed as one, and so is the gradient of received embeddings: of its parts side by side.
    """
    own, joint = (_of_loss(count, num_samples=num_samples) for count in (None, len(alone)))
    received = DensePass(operations=1, products=0, moved_bytes=0)  # the bytes of all are those of each, added up
    return DensePasses(
        forward=_sum([each.forward for each in alone], own=[own[0]], joint=[joint[0]]),
        backward=_sum([each.backward for each in alone], own=[own[1], received], joint=[joint[1], received]),
        optimizer=_sum([each.optimizer for each in alone]),
        num_tensors=sum(each.num_tensors for each in alone),
    )


def _sum(alone: Sequence[DensePass], *, own: Sequence[DensePass] = (), joint: Sequence[DensePass] = ()) -> DensePass:
    """Return the sum of passes, with joint ones in place of each one's own."""

    def total(count: Callable[[DensePass], int]) -> int:
        return sum(map(count, alone)) - len(alone) * sum(map(count, own)) + sum(map(count, joint))

    return DensePass(
        operations=total(lambda each: each.operations),
        products=total(lambda each: each.products),
        moved_bytes=total(lambda each: each.moved_bytes),
    )


@cache
def _of_loss(num_variants: int | None, *, num_samples: int) -> tuple[DensePass, DensePass]:
    """Return the passes of the loss of variants' logits. None: there is one model."""
    with torch.device("meta"):
        logits = [torch.empty(num_samples, requires_grad=True) for _ in range(num_variants or 1)]
        labels = torch.empty(num_samples)

        def loss() -> torch.Tensor:
            joined = logits[0] if num_variants is None else torch.stack(logits, dim=1)
            return summed(mean_losses(joined, labels))

        return counted_passes(loss, lambda value: torch.autograd.grad(value, logits))


def _units(variants: Mapping[str, Counted]) -> Iterator[DenseUnit]:
    for name, each in variants.items():
        for unit in each.profile.units:
            further = tuple(path_of_variant(name, path) for path in unit.further_modules or ())
            yield unit.model_copy(
                update={"module": path_of_variant(name, unit.module), "further_modules": further or None}
            )
