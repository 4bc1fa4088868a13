"""Learning rates by step, and what reaches the optimizers."""

from typing import Any

import pytest
import torch
from neuroshard_api.documents.document import DocumentError, validated
from neuroshard_api.job.training import DenseOptimizer, LearningRateSchedule, Training
from neuroshard_trainer.dense.optimizers import dense_optimizer
from neuroshard_trainer.model.dlrm import TABLES_PATH
from neuroshard_trainer.sharding.learning_rate import learning_rate_factor
from neuroshard_trainer.sharding.step_optimizer import StepOptimizer
from support.trainer.trainer_models import lookups_of_zero, sharded_model


def schedule_of(**fields: Any) -> LearningRateSchedule:
    """Return a schedule with these fields."""
    return LearningRateSchedule(**fields)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        (schedule_of(), {1: 1.0, 10_000: 1.0}),
        (schedule_of(warmup_steps=4), {1: 0.25, 3: 0.75, 4: 1.0, 5: 1.0}),
        (schedule_of(decay_start_step=10, decay_steps=4), {9: 1.0, 10: 1.0, 12: 0.25, 13: 0.0625, 99: 0.0625}),
        (schedule_of(warmup_steps=2, decay_start_step=10, decay_steps=2), {1: 0.5, 9: 1.0, 11: 0.25, 50: 0.25}),
    ],
    ids=["constant", "warm-up", "decay", "both"],
)
def test_the_rate_follows_the_schedule(schedule: LearningRateSchedule, factors: dict[int, float]) -> None:
    """Linear up, constant, down by the square; after the decay it stays at the last value."""
    assert {step: learning_rate_factor(schedule, step) for step in factors} == factors


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"decaySteps": 5}, "decayStartStep and decaySteps need each other"),
        ({"warmupSteps": 9, "decayStartStep": 5, "decaySteps": 5}, "decayStartStep must not be before the end of the"),
    ],
)
def test_a_schedule_that_contradicts_itself_is_refused(data: dict[str, int], reason: str) -> None:
    """With both fields named."""
    with pytest.raises(DocumentError, match=reason):
        validated(LearningRateSchedule, data, where="spec.training.learningRateSchedule")


def optimizer_of(group: Any, training: Training, step: int = 0) -> tuple[Any, StepOptimizer]:
    """Return a model and what is called in each of its steps."""
    model = sharded_model(group)
    dense = dense_optimizer(model, training, tables_path=TABLES_PATH)
    return model, StepOptimizer(model, dense, None, training, step=step)


def test_the_rate_reaches_tables_and_dense_part(group: Any) -> None:
    """A resumed run takes the rate of its step: in step 3 of a warm-up of 4, both move by three quarters."""
    moves = []
    for warmup, done in ((0, 2), (4, 2)):
        training = Training(
            dense_optimizer=DenseOptimizer.SGD,
            dense_learning_rate="0.5",
            embedding_learning_rate="0.5",
            learning_rate_schedule=schedule_of(warmup_steps=warmup),
        )
        torch.manual_seed(0)
        model, optimizer = optimizer_of(group, training, step=done)
        weights = dict(model.named_parameters())
        table = next(each for name, each in model.state_dict().items() if "user" in name).local_shards()[0].tensor
        dense = weights["over_arch.model.1.bias"] if "over_arch.model.1.bias" in weights else list(weights.values())[-1]
        before = table[0].clone(), dense.detach().clone()

        optimizer.zero_grad()
        torch.autograd.backward(model(torch.ones(4, 3), lookups_of_zero(4)).sum())
        optimizer.step()

        moves.append((table[0] - before[0], dense.detach() - before[1]))
    (table_whole, dense_whole), (table_warm, dense_warm) = moves
    torch.testing.assert_close(dense_warm, 0.75 * dense_whole)
    assert table_whole.abs().sum() > 0
    torch.testing.assert_close(table_warm, 0.75 * table_whole, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("kind", list(DenseOptimizer))
def test_a_rate_beyond_all_numbers_ends_in_a_loss_that_is_none(group: Any, kind: DenseOptimizer) -> None:
    """The optimizer raises nothing, so that the loss of one of several variants may tell of it."""
    training = Training(dense_optimizer=kind, dense_learning_rate="9e99", embedding_learning_rate="1e38")
    model, optimizer = optimizer_of(group, training)

    for _ in range(2):
        optimizer.zero_grad()
        loss = model(torch.rand(4, 3), lookups_of_zero(4)).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()

    assert not model(torch.rand(4, 3), lookups_of_zero(4)).isfinite().all()


def test_a_large_gradient_is_clipped(group: Any) -> None:
    """The dense part moves by the norm times the rate, in the gradient's direction."""
    training = Training(dense_optimizer=DenseOptimizer.SGD, dense_learning_rate="1", gradient_clip_norm="0.01")
    model, optimizer = optimizer_of(group, training)
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}

    optimizer.zero_grad()
    torch.autograd.backward(1000 * model(torch.ones(4, 3), lookups_of_zero(4)).sum())
    optimizer.step()

    moved = [
        weight.detach() - before[name]
        for name, weight in model.named_parameters()
        if not name.startswith(f"{TABLES_PATH}.")
    ]
    assert float(torch.cat([each.flatten() for each in moved]).norm()) == pytest.approx(0.01, rel=1e-3)
