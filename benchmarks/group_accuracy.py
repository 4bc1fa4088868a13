"""Normalized entropy with groups of devices that each hold all tables, with and without scaled moments.

MovieLens-100K, ratings of 4 and 5 against the others: six tables of 16 columns, row-wise Adagrad in the tables and
Adagrad in the dense part, batches of 2,048 samples over all groups. One process does what groups do: each computes its
mean gradient on its part of the batch, updates a copy of the tables and of their sums, and all copies are averaged
after each step; the dense part has the mean gradient of all. The test of the trainer's groups holds the real ones to
this arithmetic with SGD, and their rate to `moment_scale`. Seeds decide held-out samples (a tenth), order, and weights.

Argument: the folder of the data set as RecBole packs it.
"""

import csv
import sys
from collections.abc import Mapping
from math import log, sqrt
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.sharding.replication import moment_scale
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.results_file import write_result

FEATURES = ("user_id", "item_id", "age", "gender", "occupation", "zip_code")
COLUMNS = 16
BATCH = 2048
EPOCHS = 3
TABLES_RATE = 0.05
DENSE_RATE = 0.01
EPSILON = 1e-8
SEEDS = range(5)
NUM_GROUPS = (8,)
POSITIVE = 4.0


def main() -> None:
    """Train with every number of groups and seed, and write the result."""
    torch.set_num_threads(1)
    rows, labels = _samples(Path(sys.argv[1]))
    cases = [(1, False), *((groups, scaled) for groups in NUM_GROUPS for scaled in (False, True))]
    found = {case: [_entropy(rows, labels, *case, seed=seed) for seed in SEEDS] for case in cases}
    whole = found[1, False]
    lines = [
        "# Groups of devices with row-wise Adagrad, with and without scaled moments",
        "",
        *str(__doc__).splitlines()[2:-2],
        "",
        f"{EPOCHS} epochs, rates {TABLES_RATE} of the tables and {DENSE_RATE} of the dense part, {len(SEEDS)} seeds.",
        "",
        "| groups | rate of the tables | entropy, mean | standard deviation | against one model, mean | worst |",
        "|---|---|---|---|---|---|",
    ]
    for (groups, scaled), values in found.items():
        change = [100 * (one / other - 1) for one, other in zip(values, whole, strict=True)]
        rate = f"x {sqrt(groups):.3g}" if scaled else "x 1"
        lines.append(
            f"| {groups} | {rate} | {mean(values):.4f} | {stdev(values):.4f} | {mean(change):+.2f} % | "
            f"{max(change):+.2f} % |"
        )
    print(write_result("group-accuracy", lines))


def _samples(folder: Path) -> tuple[Mapping[str, torch.Tensor], torch.Tensor]:
    """Return the row of each feature of each rating, and whether it is good."""
    with (folder / "ml-100k.user").open(newline="") as file:
        users = {line["user_id:token"]: line for line in csv.DictReader(file, delimiter="\t")}
    with (folder / "ml-100k.inter").open(newline="") as file:
        ratings = list(csv.DictReader(file, delimiter="\t"))
    texts: dict[str, list[str]] = {name: [] for name in FEATURES}
    for line in ratings:
        of_user = users[line["user_id:token"]]
        for name in FEATURES:
            source = line if f"{name}:token" in line else of_user
            texts[name].append(source[f"{name}:token"])
    rows = {name: torch.from_numpy(np.unique(found, return_inverse=True)[1].copy()) for name, found in texts.items()}
    return rows, torch.tensor([float(line["rating:float"]) >= POSITIVE for line in ratings], dtype=torch.float32)


def _entropy(
    rows: Mapping[str, torch.Tensor],
    labels: torch.Tensor,
    num_groups: int,
    is_scaled: bool,  # noqa: FBT001 - a case's own
    *,
    seed: int,
) -> float:
    """Return the normalized entropy of held-out samples after a training."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    held_out, training = order[: len(order) // 10], order[len(order) // 10 :]
    weights = {name: 0.05 * torch.randn(int(found.max()) + 1, COLUMNS) for name, found in rows.items()}
    sums = {name: torch.zeros(len(weight), 1) for name, weight in weights.items()}
    dense = nn.Sequential(
        nn.Linear(len(FEATURES) * COLUMNS, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
    )
    optimizer = torch.optim.Adagrad(dense.parameters(), lr=DENSE_RATE)
    rate = TABLES_RATE * sqrt(moment_scale(Optimizer.ROWWISE_ADAGRAD, num_groups) if is_scaled else 1)
    for _ in range(EPOCHS):
        shuffled = training[torch.randperm(len(training), generator=generator)]
        for batch in torch.split(shuffled[: len(shuffled) // BATCH * BATCH], BATCH):
            optimizer.zero_grad()
            copies = {name: torch.zeros_like(weight) for name, weight in weights.items()}
            means = {name: torch.zeros_like(each) for name, each in sums.items()}
            for part in batch.chunk(num_groups):
                vectors = {name: weights[name][rows[name][part]].requires_grad_() for name in FEATURES}
                logits = dense(torch.cat(list(vectors.values()), dim=1)).squeeze(1)
                loss = binary_cross_entropy_with_logits(logits, labels[part])
                torch.autograd.backward(loss / num_groups)
                for name, vector in vectors.items():
                    assert vector.grad is not None
                    gradient = torch.zeros_like(weights[name])
                    gradient.index_add_(0, rows[name][part], num_groups * vector.grad)
                    own = sums[name] + gradient.square().mean(dim=1, keepdim=True)
                    copies[name] += (weights[name] - rate * gradient / (own.sqrt() + EPSILON)) / num_groups
                    means[name] += own / num_groups
            weights, sums = copies, means
            optimizer.step()
    with torch.no_grad():
        logits = dense(torch.cat([weights[name][rows[name][held_out]] for name in FEATURES], dim=1)).squeeze(1)
        entropy = float(binary_cross_entropy_with_logits(logits, labels[held_out]))
    share = float(labels[held_out].mean())
    return entropy / -(share * log(share) + (1 - share) * log(1 - share))


if __name__ == "__main__":
    main()
