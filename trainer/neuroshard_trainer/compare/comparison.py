"""Training under several plans in turns, on the same devices: times of steps, and how far the losses differ.

A round trains that many steps under each plan. The order changes with every round, so that a drift of the machine, or
what one plan leaves in its caches, meets all plans alike, and plans are compared round by round: the logarithm of the
ratio of their times in a round, whose mean has Student's confidence interval. A round's time is that of the slowest
rank.

Orders are those of a Williams design: in as many rounds as there are plans, or twice as many for an odd number, each
plan has every place and comes directly after each other plan equally often.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from neuroshard_api.documents.training_comparison import PlanTimes, TrainingComparison
from torch import nn
from torchrec.optim.keyed import KeyedOptimizerWrapper

from neuroshard_trainer.measure.embedding_timers import EmbeddingTimers
from neuroshard_trainer.measure.step_marks import StepMarks
from neuroshard_trainer.ranks.clocks import clock_of

# Student's 97.5 % quantiles for 1 to 30 degrees of freedom, and the normal distribution's, which more approach.
_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL_QUANTILE = 1.959964

Step = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A model under one plan."""

    step: Step
    """Trains on the next batch and returns this rank's loss. The n-th batch is the same under every plan."""
    model: nn.Module | None = None
    """With sharded collections of bags, whose kernels and exchanges are timed. None: whole steps are timed alone."""
    replicated_optimizer: KeyedOptimizerWrapper | None = None
    """Of the model's data_parallel tables, whose updates are timed. None: there are none."""


def compare_contestants(
    contestants: Mapping[str, Contestant], *, rounds: int, steps_per_round: int, device: torch.device
) -> TrainingComparison:
    """Train under each plan in turns. All ranks must call this, and all get the same answer.

    Under every plan torch's random generators begin as they are now and go on from step to step, so that the n-th step
    draws the same under all plans.

    Args:
        contestants: by name; the first is the reference.
        rounds: at least 2, after one that is not counted.
        steps_per_round: at least 1, under each plan.
        device: of this rank.

    Raises:
        ValueError: there are too few plans, rounds, or steps.
    """
    if len(contestants) < 2 or rounds < 2 or steps_per_round < 1:  # noqa: PLR2004 - what an interval needs
        raise ValueError(
            f"a comparison needs 2 plans, 2 rounds, and 1 step, found {len(contestants)}, {rounds}, {steps_per_round}"
        )
    runs = {name: _Run(each, device) for name, each in contestants.items()}
    names = list(runs)
    for number in range(rounds + 1):
        for position in balanced_order(len(names), number):
            runs[names[position]].train(steps_per_round, is_counted=number > 0)
    reference = runs[names[0]]
    return TrainingComparison(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        world_size=dist.get_world_size(),
        rounds=rounds,
        steps_per_round=steps_per_round,
        plans={name: run.times(reference) for name, run in runs.items()},
        peak_memory_bytes=_peak_memory_bytes(device),
    )


def balanced_order(num_plans: int, number: int) -> list[int]:
    """Return the order of the plans in a round.

    Source: Williams, Experimental designs balanced for the estimation of residual effects of treatments (1949).

    Args:
        num_plans: at least 1.
        number: of the round.
    """
    first = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(num_plans)]
    order = [(position + number) % num_plans for position in first]
    is_mirrored = num_plans % 2 == 1 and (number // num_plans) % 2 == 1
    return order[::-1] if is_mirrored else order


def _peak_memory_bytes(device: torch.device) -> int | None:
    """Return the peak of torch's allocator, on the rank with most. None: no GPU, whose allocator alone counts."""
    if device.type != "cuda":
        return None
    most = torch.tensor(torch.cuda.max_memory_allocated(device), device=device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return int(most)


class _Run:
    """Steps of one contestant."""

    def __init__(self, contestant: Contestant, device: torch.device) -> None:
        self._step = contestant.step
        self._device = device
        self._clock = clock_of(device)
        self._marks: StepMarks | None = None
        if contestant.model is not None:
            self._marks = StepMarks(self._clock)
            EmbeddingTimers(contestant.model, self._marks, contestant.replicated_optimizer)
        self.step_ms: list[float] = []
        self._embedding_ms: list[float] = []
        self._losses: list[torch.Tensor] = []
        self._random = _random_state(device)

    def train(self, steps: int, *, is_counted: bool) -> None:
        _set_random_state(self._device, self._random)
        dist.barrier()
        embedding_ms = 0.0
        begin = self._clock.mark()
        for _ in range(steps):
            if self._marks is not None:
                self._marks.start()
            self._losses.append(self._step().detach())
            if self._marks is not None:
                intervals = self._marks.stop()
                marks = [mark for each in intervals for mark in (each.begin, each.end)]
                read = self._clock.read_ms(marks) if marks else []
                embedding_ms += sum(end - first for first, end in zip(read[::2], read[1::2], strict=True))
        _, total_ms = self._clock.read_ms([begin, self._clock.mark()])
        self._random = _random_state(self._device)
        if is_counted:
            slowest = torch.tensor([total_ms / steps, embedding_ms / steps], dtype=torch.float64, device=self._device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            self.step_ms.append(float(slowest[0]))
            self._embedding_ms.append(float(slowest[1]))

    def times(self, reference: "_Run") -> PlanTimes:
        rate, rate_interval = geometric_mean([1000 / ms for ms in self.step_ms])
        ratios = [theirs / ours for theirs, ours in zip(reference.step_ms, self.step_ms, strict=True)]
        speedup, speedup_interval = geometric_mean(ratios)
        losses, other = self.mean_losses(), reference.mean_losses()
        return PlanTimes(
            step_ms=tuple(self.step_ms),
            embedding_ms=None if self._marks is None else tuple(self._embedding_ms),
            steps_per_second=rate,
            interval=rate_interval,
            speedup=speedup,
            speedup_interval=speedup_interval,
            final_loss=float(losses[-1]),
            largest_loss_difference=float((losses - other).abs().max()),
        )

    def mean_losses(self) -> torch.Tensor:
        losses = torch.stack([loss.reshape(()) for loss in self._losses]).to(self._device, torch.float64)
        dist.all_reduce(losses)
        return (losses / dist.get_world_size()).cpu()


def geometric_mean(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    """Return the geometric mean and its confidence interval, from two or more positive values."""
    logs = [math.log(value) for value in values]
    mean = sum(logs) / len(logs)
    freedom = len(logs) - 1
    variance = sum((each - mean) ** 2 for each in logs) / freedom
    half = _quantile(freedom) * math.sqrt(variance / len(logs))
    return math.exp(mean), (math.exp(mean - half), math.exp(mean + half))


def _quantile(freedom: int) -> float:
    """Return Student's 97.5 % quantile; beyond the table the two terms of Abramowitz and Stegun, 26.7.5."""
    if freedom <= len(_QUANTILES):
        return _QUANTILES[freedom - 1]
    z = _NORMAL_QUANTILE
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _random_state(device: torch.device) -> tuple[torch.Tensor, ...]:
    """Return torch's generators of the processor and of a GPU."""
    of_gpu = (torch.cuda.get_rng_state(device),) if device.type == "cuda" else ()
    return torch.get_rng_state(), *of_gpu


def _set_random_state(device: torch.device, states: tuple[torch.Tensor, ...]) -> None:
    of_processor, *of_gpu = states
    torch.set_rng_state(of_processor)
    for state in of_gpu:
        torch.cuda.set_rng_state(state, device)
