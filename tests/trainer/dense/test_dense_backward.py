"""The backward passes of sharded units: what modules around them, and their inputs, change."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from neuroshard_api.documents.dense_profile import DenseUnit
from support.trainer.own_models import SAMPLES, described
from torch import nn
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


class Block(nn.Module):
    """Two layers with an own weight, and a module between them."""

    def __init__(self, between: nn.Module) -> None:
        super().__init__()
        self.first, self.between, self.second = nn.Linear(32, 128), between, nn.Linear(128, 32)
        self.scale = nn.Parameter(torch.ones(32))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return as many columns as there are."""
        scaled: torch.Tensor = self.second(self.between(torch.tanh(self.first(values)))) * self.scale
        return scaled


class PreActivation(nn.Module):
    """A matrix product of what a function makes of the input, which it does not keep."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight, self._function = nn.Parameter(torch.ones(32, 32)), function

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return as many columns as there are."""
        return self._function(values) @ self.weight


class NoGradient(nn.Module):
    """Hands on values that have no gradient."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the same values."""
        return values.detach()


class OfModules(nn.Module):
    """Modules one after the other, from the 32 columns of the tables."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        bags = [EmbeddingBagConfig(name="t0", num_embeddings=10, embedding_dim=16, feature_names=["a", "b"])]
        self.bags = EmbeddingBagCollection(tables=bags)
        self.layers = nn.ModuleList(layers)

    def forward(self, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return the last module's result."""
        values: torch.Tensor = self.bags(lookups).values()
        for layer in self.layers:
            values = layer(values)
        return values


def units_by_path(
    *layers: Callable[[], nn.Module], loss: Callable[[Any], torch.Tensor] = torch.sum
) -> dict[str, DenseUnit]:
    """Return the counted units of modules one after the other, each of a group under its own path."""
    profile = described(lambda: OfModules(*[layer() for layer in layers]), loss=loss)
    return {path: unit for unit in profile.units for path in (unit.module, *(unit.further_modules or ()))}


def linear(columns: int = 32) -> nn.Module:
    """Return a layer that takes 32 columns."""
    return nn.Linear(32, columns)


def sharded_bytes(unit: DenseUnit) -> list[int | None]:
    """Return the bytes of the unit and of its operators where they are sharded."""
    return [unit.sharded_transient_bytes, *(each.sharded_transient_bytes for each in unit.operators or ())]


@pytest.mark.parametrize("passing", [nn.Identity, lambda: nn.Dropout(0.0)], ids=["identity", "dropout of nothing"])
def test_a_module_that_returns_its_input_leaves_the_backward_pass_to_the_one_before(
    passing: Callable[[], nn.Module],
) -> None:
    """The backward passes of both begin with the same gradient."""
    alone = units_by_path(lambda: Block(nn.Tanh()), linear)["layers.0"]
    followed = units_by_path(lambda: Block(nn.Tanh()), passing, linear)["layers.0"]
    within = units_by_path(lambda: Block(passing()), linear)["layers.0"]

    assert followed.operators is not None
    assert sharded_bytes(followed) == sharded_bytes(alone)
    assert all(each is not None and each >= 4 * 32 * 128 for each in sharded_bytes(within))


def test_a_unit_without_a_backward_pass_has_no_bytes_of_one() -> None:
    """They are unset in place of zero, as in a profile that does not say."""
    units = units_by_path(lambda: Block(nn.Tanh()), NoGradient, linear)

    assert units["layers.0"].num_parameters
    assert sharded_bytes(units["layers.0"]) == [None]
    assert units["layers.2"].sharded_transient_bytes


def test_modules_that_are_not_the_models_are_not_counted() -> None:
    """A loss may be a module, and a model may call modules of a plain list."""
    loss = nn.MSELoss()
    outside = [nn.GELU()]

    class Hidden(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = outside[0](values)
            return result

    units = units_by_path(linear, Hidden, linear, loss=lambda values: loss(values, torch.zeros(SAMPLES, 32)))

    assert list(units) == ["layers.0", "layers.1", "layers.2"]
    assert all(unit.sharded_transient_bytes for unit in units.values())


@pytest.mark.parametrize(
    "in_place",
    [lambda: PreActivation(torch.relu_), lambda: nn.Dropout(0.5, inplace=True)],
    ids=["function", "module"],
)
def test_units_that_change_their_inputs_leave_sharded_bytes_unset(in_place: Callable[[], nn.Module]) -> None:
    """Their inputs cannot be joined. The model has no hooks afterwards."""
    models = []

    def made() -> nn.Module:
        models.append(OfModules(linear(), in_place(), linear(4)))
        return models[-1]

    units = {unit.module: unit for unit in described(made).units}

    assert list(units) == ["layers.0", "layers.1", "layers.2"]
    assert {unit.sharded_transient_bytes for unit in units.values()} == {None}
    assert all(unit.transient_bytes for unit in units.values())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in models[0].modules())
    assert not any(weight._post_accumulate_grad_hooks for weight in models[0].parameters())
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_another_failure_of_the_backward_pass_is_not_hidden() -> None:
    """Only a changed input leaves bytes unset."""
    calls = iter(range(4))

    def loss(values: torch.Tensor) -> torch.Tensor:
        if next(calls) == 2:
            raise RuntimeError("of the model")
        return values.sum()

    with pytest.raises(RuntimeError, match="of the model"):
        units_by_path(linear, loss=loss)


def test_an_input_that_a_unit_made_is_kept_once() -> None:
    """The output is counted with the unit that returns it; what no unit made is counted with the first that has it."""
    units = units_by_path(*[lambda: PreActivation(torch.relu)] * 4)

    received = 4 * 32 * SAMPLES
    assert [unit.unkept_input_bytes for unit in units.values()] == [received, 0, 0, 0]
    assert {unit.output_bytes for unit in units.values()} == {received}


def test_an_input_of_two_units_is_kept_once() -> None:
    """Both would keep the same memory."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = PreActivation(torch.relu), PreActivation(torch.relu)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.first(values) + self.second(values)
            return result

    units = units_by_path(Both)

    assert {path: unit.unkept_input_bytes for path, unit in units.items()} == {
        "layers.0.first": 4 * 32 * SAMPLES,
        "layers.0.second": 0,
    }
