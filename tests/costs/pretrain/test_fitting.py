"""Specification of fitting, on a line through three points."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    from neuroshard_costs.pretrain.fitting import FitResult
    from torch import Tensor

pytestmark = pytest.mark.torch

SAMPLES = np.arange(60)


class ProportionalTask:
    """Times that are thrice an input; the model is the factor, to be found."""

    def __init__(self) -> None:
        import torch

        self.log_factor = torch.nn.Parameter(torch.zeros(()))
        self.model = torch.nn.Module()
        self.model.register_parameter("log_factor", self.log_factor)
        self.inputs = torch.linspace(1.0, 2.0, len(SAMPLES))
        self.targets_ms = 3 * self.inputs

    def predict(self, samples: np.ndarray) -> "Tensor":
        """Return factor * input."""
        import torch

        return torch.exp(self.log_factor) * self.inputs[torch.from_numpy(samples)]


class Killed(Exception):  # noqa: N818 - what happens, not an error
    """The process ends here."""


def run(checkpoint: Path, *, kill_after: int | None = None, **settings: Any) -> tuple[ProportionalTask, "FitResult"]:
    """Fit a fresh task, by default in 8 epochs; ``kill_after`` ends it after that many epochs."""
    from neuroshard_costs.pretrain.fitting import FitSettings, fit

    def on_epoch(epoch: int) -> None:
        if epoch == kill_after:
            raise Killed

    task = ProportionalTask()
    result = fit(
        task,
        train=SAMPLES[:50],
        validation=SAMPLES[50:],
        settings=FitSettings(
            **{"max_epochs": 8, "batch_size": 16, "learning_rate": 0.1, "patience": 8, "seed": 0, **settings}
        ),
        checkpoint=checkpoint,
        on_epoch=on_epoch,
    )
    return task, result


def test_a_fit_finds_the_factor(tmp_path: Path) -> None:
    """The relative error falls, and predictions are in milliseconds."""
    from neuroshard_costs.pretrain.fitting import predict

    task, result = run(tmp_path / "c", max_epochs=40)

    np.testing.assert_allclose(predict(task, SAMPLES), task.targets_ms.numpy(), rtol=0.02)
    assert result.validation_loss < 1e-3


def test_a_resumed_fit_ends_like_one_that_was_not_killed(tmp_path: Path) -> None:
    """Weights and result are equal bit for bit."""
    with pytest.raises(Killed):
        run(tmp_path / "killed", kill_after=3)
    resumed, result = run(tmp_path / "killed")
    whole, expected = run(tmp_path / "whole")

    assert result == expected
    assert resumed.log_factor.item() == whole.log_factor.item()


def test_a_fit_without_progress_stops_early(tmp_path: Path) -> None:
    """With a learning rate of zero nothing improves after the first epoch."""
    _, result = run(tmp_path / "c", learning_rate=0.0, patience=2)

    assert (result.epochs, result.best_epoch) == (3, 1)


def test_the_best_epoch_is_kept(tmp_path: Path) -> None:
    """A later, worse epoch does not change the model."""
    from neuroshard_costs.pretrain.fitting import predict

    task, result = run(tmp_path / "c", learning_rate=5.0, max_epochs=6)
    loss = np.square(np.log(predict(task, SAMPLES[50:]) / task.targets_ms[50:].numpy())).mean()

    assert loss == pytest.approx(result.validation_loss, rel=1e-4)
