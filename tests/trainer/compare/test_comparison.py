"""Confidence intervals of paired rounds, and weights that are equal under every plan."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_api.documents.training_comparison import TrainingComparison
from neuroshard_trainer.compare.comparison import Contestant, balanced_order, compare_contestants, geometric_mean
from scipy import stats
from support.trainer.rank_server import RankServer
from support.trainer.trainer_builders import job_data, plan_of, write_job, write_plan


@pytest.mark.parametrize("count", [2, 5, 31, 32, 60, 200])
def test_the_interval_is_students_of_the_logarithms(count: int) -> None:
    """As scipy has it."""
    values = np.exp(np.random.default_rng(count).normal(0.2, 0.1, count))
    logs = np.log(values)
    wanted = stats.t.interval(0.95, count - 1, loc=logs.mean(), scale=stats.sem(logs))
    mean, interval = geometric_mean(values.tolist())

    assert mean == pytest.approx(math.exp(logs.mean()))
    widths = [math.log(interval[1] / interval[0]), wanted[1] - wanted[0]]
    assert widths[0] == pytest.approx(widths[1], rel=1e-3 if count <= 31 else 1e-4)
    assert math.sqrt(interval[0] * interval[1]) == pytest.approx(mean)


@pytest.mark.processes
def test_a_plan_is_timed_with_the_gradients_that_it_sends(tmp_path: Path, ranks: RankServer) -> None:
    """By Threshold the losses are others than exact ones, which two equal plans have, once steps are not whole."""
    for name, kind in (("exact", None), ("equal", None), ("largest", GradientType.THRESHOLD)):
        gradients = None if kind is None else GradientExchange(type=kind)
        write_plan(tmp_path, plan_of(world_size=2, batch_size_per_device=16, gradients=gradients), f"{name}.json")
    job = write_job(tmp_path, job_data(world_size=2, training={"denseOptimizer": "SGD", "denseLearningRate": "0.5"}))
    plans = [str(tmp_path / f"{name}.json") for name in ("exact", "equal", "largest")]
    out = tmp_path / "found.json"

    arguments = [str(job), "--plans", *plans, "--rounds", "2", "--steps", "2", "--out", str(out)]
    ranks.succeed("neuroshard_trainer.compare.plans:main", arguments, folder=tmp_path, count=2)

    found = TrainingComparison.read(out).plans
    assert found["equal"].largest_loss_difference == 0
    assert (found["largest"].largest_loss_difference or 0) > 1e-6


@pytest.fixture
def alone() -> Iterator[None]:
    """Be a process group of one."""
    store = dist.HashStore()  # type: ignore[attr-defined] # torch does not say which names are public
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_each_plan_has_every_place_and_follows_each_other_equally_often(count: int) -> None:
    """In as many rounds as there are plans, or twice as many for an odd number, from any round on."""
    num_rounds = count if count % 2 == 0 else 2 * count
    for first in (0, 1, 7):
        orders = [balanced_order(count, number) for number in range(first, first + num_rounds)]
        places = Counter((place, plan) for order in orders for place, plan in enumerate(order))
        followers = Counter(pair for order in orders for pair in pairwise(order))

        assert set(places.values()) == {num_rounds // count}
        assert len(places) == count * count
        assert set(followers.values()) == {num_rounds // count}
        assert len(followers) == count * (count - 1)


def products(count: int) -> Callable[[], torch.Tensor]:
    """Return a step of that many products of matrices, whose loss is drawn."""
    matrix = torch.ones(64, 64)

    def step() -> torch.Tensor:
        for _ in range(count):
            matrix @ matrix
        return torch.rand(())

    return step


@pytest.mark.usefixtures("alone")
def test_the_faster_plan_has_the_greater_ratio_and_all_plans_draw_alike() -> None:
    """Twenty times the work is far below half the rate; the n-th step draws the same number under every plan."""
    steps = {"first": products(50), "slow": products(1000), "quick": products(1)}
    found = compare_contestants(
        {name: Contestant(step) for name, step in steps.items()},
        rounds=3,
        steps_per_round=2,
        device=torch.device("cpu"),
    ).plans

    assert found["slow"].speedup < 0.5
    assert found["quick"].speedup > 2
    assert found["slow"].steps_per_second < found["quick"].steps_per_second
    assert [each.largest_loss_difference for each in found.values()] == [0, 0, 0]
    assert len({each.final_loss for each in found.values()}) == 1
    assert all(each.embedding_ms is None for each in found.values())
