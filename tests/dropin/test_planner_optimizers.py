"""Which optimizer the drop-in plans for."""

from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from neuroshard_api.documents.tables import Optimizer
from neuroshard_torchrec import DropInError
from support.dropin.dropin_models import TwoTowers
from support.dropin.dropin_planners import planned, planner
from torch.distributed.optim.apply_optimizer_in_backward import _apply_optimizer_in_backward
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.optim import RowWiseAdagrad


@pytest.mark.parametrize(
    ("fused", "optimizer"),
    [
        ({}, Optimizer.SGD),
        ({"optimizer": EmbOptimType.EXACT_ROWWISE_ADAGRAD}, Optimizer.ROWWISE_ADAGRAD),
        ({"optimizer": EmbOptimType.ADAM}, Optimizer.ADAM),
    ],
)
def test_the_optimizer_is_that_of_the_sharder(fused: dict[str, Any], optimizer: Optimizer) -> None:
    """Its state takes memory; FBGEMM's default has none."""
    made = planner()
    made.plan(TwoTowers(), [EmbeddingBagCollectionSharder(fused_params=fused)])

    assert planned(made).request.optimizer is optimizer


def test_an_optimizer_in_the_backward_pass_counts_before_the_sharders() -> None:
    """As TorchRec itself has it."""
    module, made = TwoTowers(), planner()
    for collection in (module.users, module.items):
        _apply_optimizer_in_backward(RowWiseAdagrad, collection.parameters(), {"lr": 0.1})
    made.plan(module)

    assert planned(made).request.optimizer is Optimizer.ROWWISE_ADAGRAD


def test_each_table_is_priced_with_its_own_optimizer(caplog: pytest.LogCaptureFixture) -> None:
    """That of the backward pass, or of its sharder; one that is asked for takes the place of all."""
    module, made = TwoTowers(), planner()
    _apply_optimizer_in_backward(torch.optim.Adam, module.users.parameters(), {"lr": 0.1})
    made.plan(module)
    request = planned(made).request
    users = [table for table in request.tables.tables if table.collection == "users"]
    state = sum(each.optimizer_state_bytes for each in planned(made).memory)

    assert {table.name: request.optimizer_of(table) for table in request.tables.tables} == {
        "users/id": Optimizer.ADAM,
        "country": Optimizer.ADAM,
        "items/id": Optimizer.SGD,
        "tags": Optimizer.SGD,
    }
    assert state == 8 * sum(table.num_embeddings * table.embedding_dim for table in users)
    assert "tables have the optimizers adam, sgd, each with separate kernel calls" in caplog.text
    of_one = planner(optimizer="sgd")
    of_one.plan(module)
    assert planned(of_one).request.optimizers == (Optimizer.SGD,)


def test_an_optimizer_whose_state_is_unknown_is_named() -> None:
    """Unless the caller names the nearest one."""
    sharders = [EmbeddingBagCollectionSharder(fused_params={"optimizer": EmbOptimType.LAMB})]

    with pytest.raises(DropInError, match=r"trained by lamb.*planner's `optimizer`"):
        planner().plan(TwoTowers(), sharders)
    made = planner(optimizer="adam")
    made.plan(TwoTowers(), sharders)
    assert planned(made).request.optimizer is Optimizer.ADAM
