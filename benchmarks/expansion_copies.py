"""What summing gradients of a group side by side saves of copies to repeated lists, on one core.

python -m benchmarks.expansion_copies
"""

import os
import time
from collections.abc import Callable, Sequence
from itertools import product

import numpy as np
import torch
from neuroshard_api.process.host_memory import keep_freed_memory
from neuroshard_trainer.model.expansion import copied
from torch import Tensor

from benchmarks.results_file import cpu_model, hardware_slug, write_result

FEATURES, COLUMNS, SAMPLES = (1, 2, 4, 8), (16, 64, 128), (512, 2048, 4096)
FACTOR = 4
WARM, REPEATS = 5, 40
NS_PER_MS = 1e6
Copies = Callable[[Sequence[Tensor], Tensor], Sequence[Tensor]]

HEAD = """Machine: {machine}, one core of two, one thread; load average {load:.1f}, so processor time of the thread is
given, which other work disturbs through shared caches and hardware threads alone. Copies of pooled embeddings, FP32, to
samples of which {factor} in a row have one list, and sums of their gradients. Features are parts of one wide tensor, as
exchanges return them. "By feature" is torch's `index_select` of each feature and its backward pass; "side by side" is
`copied` of the trainer. Both take turns, {repeats} times; medians, and ratios of neighbors with their quartiles in
brackets. Both give the same bits."""


def main() -> None:
    """Measure all sizes, and write the result."""
    torch.set_num_threads(1)
    keep_freed_memory()
    rows: list[str] = []
    ratios: dict[int, list[float]] = {count: [] for count in FEATURES}
    for count, columns, samples in product(FEATURES, COLUMNS, SAMPLES):
        by_feature, side_by_side = compared(count, columns, samples)
        low, middle, high = np.quantile(side_by_side / by_feature, (0.25, 0.5, 0.75))
        ratios[count].append(float(middle))
        times = f"{np.median(by_feature):.3f} | {np.median(side_by_side):.3f}"
        rows.append(f"| {count} | {columns} | {samples:,} | {times} | {middle:.2f} ({low:.2f} to {high:.2f}) |")
    head = HEAD.format(machine=cpu_model(), load=os.getloadavg()[0], factor=FACTOR, repeats=REPEATS)
    said = "; ".join(f"{count}: {min(found):.2f} to {max(found):.2f}" for count, found in ratios.items())
    lines = [
        "# Copies to repeated lists: gradients summed side by side",
        "",
        head,
        "",
        "| features | columns of each | samples | by feature (ms) | side by side (ms) | ratio |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        f"Ratios by number of features: {said}.",
    ]
    print(write_result("expansion-copies", lines, hardware=hardware_slug(), packages=("numpy", "torch")))


def compared(num_features: int, columns: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Return [REPEATS] milliseconds of processor time by feature, and side by side; of both directions."""
    generator = torch.Generator().manual_seed(0)
    shape = (samples, num_features * columns)
    pooled = [each.requires_grad_() for each in torch.randn(shape, generator=generator).chunk(num_features, dim=1)]
    gradients = torch.randn(shape, generator=generator).chunk(num_features, dim=1)
    places = torch.arange(samples)
    rows = places - places % FACTOR
    ways: tuple[Copies, Copies] = (by_feature, copied)
    expected, found = (torch.autograd.grad(way(pooled, rows), pooled, gradients) for way in ways)
    assert all(torch.equal(*pair) for pair in zip(expected, found, strict=True)), "the bits are the same"
    times = np.empty((2, WARM + REPEATS))
    for repeat in range(WARM + REPEATS):
        for way in (0, 1) if repeat % 2 else (1, 0):
            begun = time.thread_time_ns()
            torch.autograd.grad(ways[way](pooled, rows), pooled, gradients)
            times[way, repeat] = (time.thread_time_ns() - begun) / NS_PER_MS
    return times[0, WARM:], times[1, WARM:]


def by_feature(pooled: Sequence[Tensor], rows: Tensor) -> Sequence[Tensor]:
    """Return [samples, columns] of each feature."""
    return [each.index_select(0, rows) for each in pooled]


if __name__ == "__main__":
    main()
