"""The learning rate of each step: warm-up, constant, decay. A function of the step alone: a resume needs no state.

    factor
      1 |      ____________
        |    /             \
        |  /                 ` .
      0 |/________________________` ._________ the last decaying step's factor
         warmupSteps   decayStartStep   + decaySteps

The decay is a polynomial of power 2, as in the public DLRM and DCNv2 references (MLPerf Training).
"""

from collections.abc import Callable

import torch
from neuroshard_api.job.training import LearningRateSchedule
from torchrec.optim.keyed import KeyedOptimizer

DECAY_POWER = 2
LARGEST_RATE = torch.finfo(torch.float32).max / 16
"""Larger ones raise an error in torch, where Adam's first step divides them by 0.1. Weights overflow by this one too,
so that the loss tells of it."""


def learning_rate_factor(schedule: LearningRateSchedule, step: int) -> float:
    """Return the factor of the learning rates in a step.

    Args:
        schedule: the job's.
        step: number of the step, from 1.
    """
    if step < schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.decay_start_step is None or schedule.decay_steps is None or step < schedule.decay_start_step:
        return 1.0
    remaining = max(1, schedule.decay_steps - (step - schedule.decay_start_step))
    return float((remaining / schedule.decay_steps) ** DECAY_POWER)


def set_learning_rate(optimizer: KeyedOptimizer, rate: Callable[[str], float]) -> None:
    """Give each group of an optimizer's parameters the rate of its first one, by name, from its next step on.

    A rate above `LARGEST_RATE` is as that one.
    """
    names = {id(weight): name for name, weight in optimizer.params.items()}
    for group in optimizer.param_groups:
        own = rate(next((names[id(weight)] for weight in group["params"] if id(weight) in names), ""))
        group["lr"] = min(own, LARGEST_RATE)
