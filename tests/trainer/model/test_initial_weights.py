"""First weights of tables by seed, table, row, and column."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from neuroshard_trainer.model.initial_weights import set_initial_weights
from support import builders
from support.trainer.trainer_builders import plan_of
from support.trainer.trainer_models import sharded_model

ROWS, WIDTH, SEED = 5000, 32, 7
TABLES = (
    builders.table("user", num_embeddings=ROWS, embedding_dim=WIDTH),
    builders.table("item", num_embeddings=ROWS, embedding_dim=WIDTH),
)


def weights(group: Any, *, seed: int, cuts: tuple[int, ...] = (WIDTH,)) -> dict[str, np.ndarray]:
    """Return the whole tables of a model, whose first table is cut by columns."""
    plan = plan_of({"user": [(0, width) for width in cuts]}, tables=TABLES)
    model = sharded_model(group, plan)
    set_initial_weights(model, seed=seed)
    found: dict[str, np.ndarray] = {}
    for table in TABLES:
        whole = torch.full((ROWS, WIDTH), math.nan)
        for shard in model.state_dict()[f"tables.embedding_bags.{table.name}.weight"].local_shards():
            first = shard.metadata.shard_offsets[1]
            whole[:, first : first + shard.tensor.shape[1]] = shard.tensor
        found[table.name] = whole.numpy()
    return found


def splitmix64(seed: int, position: int) -> int:
    """Return an output of SplitMix64, as its authors have it in Java's SplittableRandom."""
    mask = (1 << 64) - 1
    mixed = (seed + position * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)


@pytest.mark.filterwarnings("ignore")
def test_a_weight_is_its_seeds_tables_rows_and_columns(group: Any) -> None:
    """However a table is cut; other seeds and tables have others, which are uniform and uncorrelated."""
    whole, cut, other = (
        weights(group, seed=SEED),
        weights(group, seed=SEED, cuts=(12, 20)),
        weights(group, seed=SEED + 1),
    )
    scaled = {name: found.astype(np.float64) * math.sqrt(ROWS) for name, found in whole.items()}
    drawn = scaled["user"].ravel()

    assert all((whole[name] == cut[name]).all() for name in whole)
    assert abs(drawn).max() < 1
    deciles = np.histogram(drawn, bins=10, range=(-1, 1))[0] / drawn.size
    assert abs(deciles - 0.1).max() < 0.004  # five standard errors
    for one, another in (
        (scaled["user"], scaled["item"]),
        (scaled["user"], other["user"]),
        (scaled["user"][:-1], scaled["user"][1:]),
        (scaled["user"][:, :-1], scaled["user"][:, 1:]),
    ):
        assert abs(np.corrcoef(one.ravel(), another.ravel())[0, 1]) < 0.0125


@pytest.mark.parametrize("stream", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_draws_are_splitmix64s(stream: int) -> None:
    """The first 24 bits, also at positions beyond 32 bits."""
    from neuroshard_trainer.model.initial_weights import _uniform

    positions = [0, 1, 2, 2**31, 2**33 + 5, 10**12]
    found = _uniform(torch.tensor(positions), stream).tolist()

    for position, each in zip(positions, found, strict=True):
        first = splitmix64(stream, position) >> 40
        signed = first - (1 << 24) if first >= 1 << 23 else first
        assert each == (signed + 0.5) / (1 << 23)
