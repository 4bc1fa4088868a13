"""Specification of fitting, on a line through three points."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from neuroshard_costs.pretrain.fitting import FitResult, FitSettings, fit, predict
from torch import Tensor, nn

pytestmark = pytest.mark.torch

SAMPLES = np.arange(60)


class Proportional(nn.Module):
    """One factor, to be found."""

    def __init__(self) -> None:
        super().__init__()
        self.log_factor = nn.Parameter(torch.zeros(()))


class ProportionalTask:
    """Times that are thrice an input."""

    def __init__(self) -> None:
        self.model = Proportional()
        self.inputs = torch.linspace(1.0, 2.0, len(SAMPLES))
        self.targets_ms = 3 * self.inputs

    def predict(self, samples: np.ndarray) -> Tensor:
        """Return factor * input."""
        return torch.exp(self.model.log_factor) * self.inputs[torch.from_numpy(samples)]


class Killed(Exception):  # noqa: N818 - what happens, not an error
    """The process ends here."""


SETTINGS = FitSettings(max_epochs=8, batch_size=16, learning_rate=0.1, patience=8, seed=0)


def run(
    checkpoint: Path, *, kill_after: int | None = None, settings: FitSettings = SETTINGS
) -> tuple[ProportionalTask, FitResult]:
    """Fit a fresh task; ``kill_after`` ends it after that many epochs."""

    def on_epoch(epoch: int) -> None:
        if epoch == kill_after:
            raise Killed

    task = ProportionalTask()
    result = fit(
        task,
        train=SAMPLES[:50],
        validation=SAMPLES[50:],
        settings=settings,
        checkpoint=checkpoint,
        on_epoch=on_epoch,
    )
    return task, result


def test_a_fit_finds_the_factor(tmp_path: Path) -> None:
    """The relative error falls, and predictions are in milliseconds."""
    task, result = run(tmp_path / "c", settings=replace(SETTINGS, max_epochs=40))

    np.testing.assert_allclose(predict(task, SAMPLES), task.targets_ms.numpy(), rtol=0.02)
    assert result.validation_loss < 1e-3


def test_a_resumed_fit_ends_like_one_that_was_not_killed(tmp_path: Path) -> None:
    """Weights and result are equal bit for bit."""
    with pytest.raises(Killed):
        run(tmp_path / "killed", kill_after=3)
    resumed, result = run(tmp_path / "killed")
    whole, expected = run(tmp_path / "whole")

    assert result == expected
    assert torch.equal(resumed.model.log_factor, whole.model.log_factor)


def test_a_fit_without_progress_stops_early(tmp_path: Path) -> None:
    """With a learning rate of zero nothing improves after the first epoch."""
    _, result = run(tmp_path / "c", settings=replace(SETTINGS, learning_rate=0.0, patience=2))

    assert (result.epochs, result.best_epoch) == (3, 1)


def test_the_best_epoch_is_kept(tmp_path: Path) -> None:
    """A later, worse epoch does not change the model."""
    task, result = run(tmp_path / "c", settings=replace(SETTINGS, learning_rate=5.0, max_epochs=6))
    loss = np.square(np.log(predict(task, SAMPLES[50:]) / task.targets_ms[50:].numpy())).mean()

    assert loss == pytest.approx(result.validation_loss, rel=1e-4)
