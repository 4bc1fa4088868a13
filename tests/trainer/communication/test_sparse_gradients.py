"""Thresholded gradients on one rank: bytes of their messages, that these say what was sent, and what is warned of."""

import pytest
import torch
from neuroshard_api.documents.gradient_exchange import GradientExchange, GradientType
from neuroshard_api.job.training import DenseOptimizer
from neuroshard_trainer.communication.gradient_codec import slowed_optimizer
from neuroshard_trainer.communication.sparse_gradients import BLOCK, packed, unpacked
from support.trainer.trainer_builders import plan_of


@pytest.mark.parametrize(
    "places",
    [
        [0, BLOCK - 1, BLOCK, 2 * BLOCK + 7],
        [2 * BLOCK + 6, 2 * BLOCK + 7],
        [],
    ],
)
def test_a_message_has_the_places_and_values_of_all_blocks(places: list[int]) -> None:
    """Four bytes for each block and each entry that there is room for; room that is not used points past the end."""
    size, room = 2 * BLOCK + 8, 6
    all_places = torch.tensor([*places, *[size] * (room - len(places))])
    values = torch.arange(1.0, room + 1).to(torch.bfloat16)

    message = packed(all_places, values, size=size)
    found_places, found_values = unpacked(message, size=size, room=room)

    assert message.nbytes == 4 * 3 + 4 * room
    assert found_places.tolist() == all_places.tolist()
    assert found_values.tolist() == values.tolist()


def test_a_message_may_be_full() -> None:
    """Also of a single block."""
    places, values = torch.arange(5), torch.ones(5, dtype=torch.bfloat16)

    found, _ = unpacked(packed(places, values, size=5), size=5, room=5)

    assert found.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("kind", "optimizer", "is_warned_of"),
    [
        (GradientType.THRESHOLD, DenseOptimizer.ADAM, True),
        (GradientType.THRESHOLD, DenseOptimizer.ADAGRAD, True),
        (GradientType.THRESHOLD, DenseOptimizer.SGD, False),
        (GradientType.BF16, DenseOptimizer.ADAM, False),
    ],
)
def test_an_optimizer_that_divides_by_squares_is_warned_of(
    kind: GradientType, optimizer: DenseOptimizer, *, is_warned_of: bool
) -> None:
    """Where entries arrive as sums of steps."""
    found = slowed_optimizer(plan_of(gradients=GradientExchange(type=kind)), optimizer)

    assert (found is not None) == is_warned_of
    assert found is None or f"by whose squares {optimizer} divides" in found
