"""Counts models of your own for tests."""

from collections.abc import Callable
from typing import Any

import torch
from neuroshard_api.documents.dense_profile import DenseProfile
from neuroshard_api.documents.tables import Table
from neuroshard_trainer.dense_profile import describe_dense
from support import builders

SAMPLES = 64


def own_tables(width: int) -> tuple[Table, ...]:
    """Return the table of OwnModel."""
    return (builders.table("t0", num_embeddings=10**9, embedding_dim=width, feature_names=("a", "b")),)


def described(model: Any, *, loss: Callable[[Any], torch.Tensor] = torch.sum) -> DenseProfile:
    """Count a model of width 16."""
    return describe_dense(
        model,
        lambda: (None,),
        tables=own_tables(16),
        batch_size=SAMPLES,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=0.1),
        loss=loss,
    )
