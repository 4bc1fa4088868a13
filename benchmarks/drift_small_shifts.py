"""How often the trainer's detector takes a slow-down of less than its least share for a change."""

from typing import Final

import numpy as np
from neuroshard_trainer.drift.detector import MIN_SHIFT, ShiftDetector

from benchmarks.drift_series import AFTER_STEPS, CHANGE_STEP, STEP_MS

SHIFTS: Final = (0.02, 0.03, 0.035, 0.04, 0.045, 0.05)
NOISES: Final = (0.01, 0.03)
SEEDS: Final = 9_000
"""First seed: no other series of the benchmark has it, nor had the trials that the detector was made with."""


def small_shift_lines(num_series: int) -> list[str]:
    """Return the lines of the result, of that many series for each shift and noise."""
    rows = [
        [
            f"{noise:.0%}",
            *(str(sum(is_found(shift, noise, SEEDS + seed) for seed in range(num_series))) for shift in SHIFTS),
        ]
        for noise in NOISES
    ]
    return [
        "## Slow-downs below the least share",
        "",
        f"Series of {num_series} with an alarm of the shipped detector in the {AFTER_STEPS:,} steps after the change,",
        f"in independent normal noise. It is to report changes from {MIN_SHIFT:.0%} on; its reference of 200 steps has",
        "noise too.",
        "",
        f"| noise | {' | '.join(f'+{100 * shift:g} %' for shift in SHIFTS)} |",
        f"|---|{'---|' * len(SHIFTS)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def is_found(shift: float, noise: float, seed: int) -> bool:
    """Return whether a lasting slow-down by a share raises an alarm."""
    rng = np.random.default_rng(seed)
    times = STEP_MS * (1 + noise * rng.normal(size=CHANGE_STEP + AFTER_STEPS))
    times[CHANGE_STEP:] *= 1 + shift
    detector = ShiftDetector()
    found = [detector.add(step, float(value)) for step, value in enumerate(times)]
    return any(change is not None and change.found_step >= CHANGE_STEP for change in found)
