"""What is left of the gradients of pooled embeddings in narrow types."""

from typing import Any

import pytest
import torch
from neuroshard_api.documents.request import MemorySettings
from neuroshard_api.documents.tables import DataType, Optimizer
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.sharding.plan_adapter import require_lasting_gradients
from support.trainer.trainer_builders import plan_of
from support.trainer.trainer_models import lookups_of_zero, sharded_model

SAMPLES = 64
SMALL = 1e-9
"""A gradient of a mean loss over a usual global batch."""


def update_of(output: DataType, group: Any) -> float:
    """Return the update of a row by a step of SGD whose gradients are SMALL for each sample."""
    plan = plan_of(memory=MemorySettings(output_data_type=output))
    model = sharded_model(group, plan, optimizer=Optimizer.SGD, learning_rate=1 / SMALL)
    weights = next(each for name, each in model.state_dict().items() if "user" in name).local_shards()[0].tensor
    with torch.no_grad():
        weights.zero_()
    pooled = model.module.tables(lookups_of_zero(SAMPLES)).to_dict()["user"]
    torch.autograd.backward(pooled.float().sum() * SMALL)
    return float(-weights[0, 0])


def test_fp16_loses_the_gradients_of_a_mean_loss(group: Any) -> None:
    """Gradients of 1e-9 are 0 in FP16, whose least number is 6e-8: the rows do not move."""
    assert update_of(DataType.FP32, group) == pytest.approx(SAMPLES, rel=1e-3)
    assert update_of(DataType.FP16, group) == 0.0


def test_only_types_with_fp32s_range_are_trained() -> None:
    """FP16 is refused with the option that helps."""
    for output in (DataType.FP32, DataType.BF16):
        require_lasting_gradients(plan_of(memory=MemorySettings(output_data_type=output)))

    with pytest.raises(InputError, match=r"become 0; hint: plan again with memory\.output_data_type BF16"):
        require_lasting_gradients(plan_of(memory=MemorySettings(output_data_type=DataType.FP16)))
