"""Fitting one model to one set of samples: Adam, early stop by validation, resumable. Knows no features and no bundles.

Everything random is drawn from the seed and the number of the epoch, so a run that was stopped and resumed ends with
the weights of one that was not.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from neuroshard_costs.shards import FloatArray, IndexArray

_WARM_UP = 0.05  # share of the steps in which the learning rate rises
_FINAL_RATE = 0.002  # of the highest rate, at the end of the half cosine
_MAX_GRADIENT_NORM = 1.0
_PREDICT_BATCH = 1024


class Task(Protocol):
    """What is fitted: a model and the samples it is fitted to."""

    @property
    def model(self) -> nn.Module:
        """What is fitted."""
        ...

    @property
    def targets_ms(self) -> Tensor:
        """[samples] or [samples, outputs] true milliseconds."""
        ...

    def predict(self, samples: IndexArray) -> Tensor:
        """Return the model's milliseconds for these samples, with gradients, shaped like targets_ms."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class FitSettings:
    """How long and how fast to fit."""

    max_epochs: int
    batch_size: int
    learning_rate: float
    patience: int
    """Epochs without a lower validation loss after which the fit stops."""
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class FitResult:
    """How a fit went; the model holds the weights of the best epoch."""

    epochs: int
    best_epoch: int
    validation_loss: float
    """Mean square of the logarithm of predicted / true."""


def fit(
    task: Task,
    *,
    train: IndexArray,
    validation: IndexArray,
    settings: FitSettings,
    checkpoint: Path,
    on_epoch: Callable[[int], None],
) -> FitResult:
    """Fit the task's model to its training samples by the mean squared logarithm of predicted / true.

    Args:
        task: changed in place: its model ends with the weights of the epoch of the lowest validation loss.
        train: samples to learn from.
        validation: samples that decide when to stop and which epoch is kept.
        settings: length and speed.
        checkpoint: a file that is written after every epoch and continued from if it is there.
        on_epoch: called after each epoch with how many are done.
    """
    model = task.model
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    steps_per_epoch = -(-len(train) // settings.batch_size)
    state = _State(model, optimizer)
    state.restore(checkpoint)
    while state.epoch < settings.max_epochs and state.epoch - state.best_epoch < settings.patience:
        order = np.random.default_rng([settings.seed, state.epoch]).permutation(train)
        model.train()
        for step in range(steps_per_epoch):
            rate = _rate((state.epoch + step / steps_per_epoch) / settings.max_epochs)
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * rate
            samples = np.sort(order[step * settings.batch_size : (step + 1) * settings.batch_size])
            optimizer.zero_grad(set_to_none=True)
            _loss(task, samples).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), _MAX_GRADIENT_NORM)
            optimizer.step()
        state.end_epoch(_validation_loss(task, validation))
        state.store(checkpoint)
        on_epoch(state.epoch)
    model.load_state_dict(state.best_weights)
    return FitResult(epochs=state.epoch, best_epoch=state.best_epoch, validation_loss=state.best_loss)


def predict(task: Task, samples: IndexArray) -> FloatArray:
    """Return the model's milliseconds for these samples, in pieces that fit into memory."""
    task.model.eval()
    with torch.no_grad():
        parts = [
            task.predict(samples[start : start + _PREDICT_BATCH]) for start in range(0, len(samples), _PREDICT_BATCH)
        ]
    return torch.cat(parts).double().numpy()


class _State:
    """What a resumed fit must know."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self.model = model
        self.optimizer = optimizer
        self.epoch = 0
        self.best_epoch = 0
        self.best_loss = float("inf")
        self.best_weights = _copy(model)

    def end_epoch(self, loss: float) -> None:
        self.epoch += 1
        if loss < self.best_loss:
            self.best_loss, self.best_epoch, self.best_weights = loss, self.epoch, _copy(self.model)

    def store(self, path: Path) -> None:
        """Write the checkpoint whole or not at all."""
        part = path.with_name(f"{path.name}.part")
        values: dict[str, Any] = {
            "epoch": self.epoch,
            "best_epoch": self.best_epoch,
            "best_loss": self.best_loss,
            "best_weights": self.best_weights,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(values, part)
        part.replace(path)

    def restore(self, path: Path) -> None:
        """Continue from a checkpoint if there is one."""
        if not path.is_file():
            return
        values = torch.load(path, weights_only=True)
        self.model.load_state_dict(values["model"])
        self.optimizer.load_state_dict(values["optimizer"])
        self.epoch, self.best_epoch = values["epoch"], values["best_epoch"]
        self.best_loss, self.best_weights = values["best_loss"], values["best_weights"]


def _rate(progress: float) -> float:
    """Return the share of the highest learning rate: a short rise, then half a cosine."""
    if progress < _WARM_UP:
        return max(progress / _WARM_UP, _FINAL_RATE)
    cosine = 0.5 * (1 + np.cos(np.pi * (progress - _WARM_UP) / (1 - _WARM_UP)))
    return _FINAL_RATE + (1 - _FINAL_RATE) * float(cosine)


def _loss(task: Task, samples: IndexArray) -> Tensor:
    return (torch.log(task.predict(samples)) - torch.log(task.targets_ms[torch.from_numpy(samples)])).square().mean()


def _validation_loss(task: Task, samples: IndexArray) -> float:
    true_ms = task.targets_ms[torch.from_numpy(samples)].numpy()
    return float(np.square(np.log(predict(task, samples) / true_ms)).mean())


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
