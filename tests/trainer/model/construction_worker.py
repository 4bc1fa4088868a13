"""Two ranks, of which TorchRec refuses to build the second one's shards.

The table's widest block of columns comes before a narrower one on rank 1, under a plan that was made without our rules.
Next to it is a data_parallel table, for whose gradients all ranks would meet. Each writes its error to FOLDER/RANK.txt.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from neuroshard_api.documents.tables import Optimizer
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.dense.optimizers import embedding_sharder
from neuroshard_trainer.model.sharded_model import sharded_model
from support.trainer.rank_server import joined_ranks
from torch import nn
from torchrec.distributed.types import (
    EmbeddingModuleShardingPlan,
    EnumerableShardingSpec,
    ParameterSharding,
    ShardingPlan,
    ShardMetadata,
)
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

ROWS = 61  # 61 rows of 28 columns are not a whole number of rows of 20
CPU = torch.device("cpu")


def main(folder: str) -> None:
    """Build the model under a plan that rank 1 cannot run, and then under one that all can."""
    logging.disable(logging.WARNING)
    with joined_ranks():
        with pytest.raises(InputError) as raised:
            build([(1, 20), (0, 4), (1, 8)])
        Path(folder, f"{dist.get_rank()}.txt").write_text(str(raised.value))
        build([(1, 8), (0, 4), (1, 20)])


def build(blocks: Sequence[tuple[int, int]]) -> None:
    """Build a table in blocks (rank, columns), and one on every rank."""
    width = sum(columns for _, columns in blocks)
    shards, offset = [], 0
    for rank, columns in blocks:
        shards.append(ShardMetadata([0, offset], [ROWS, columns], f"rank:{rank}/cpu"))
        offset += columns
    placements = {
        "cut": ParameterSharding("column_wise", "fused", [rank for rank, _ in blocks], EnumerableShardingSpec(shards)),
        "copied": ParameterSharding("data_parallel", "dense", [0, 1]),
    }
    tables = [EmbeddingBagConfig(name=name, num_embeddings=ROWS, embedding_dim=width, feature_names=[name])
              for name in placements]  # fmt: skip
    model = nn.ModuleDict({"bags": EmbeddingBagCollection(tables=tables, device=torch.device("meta"))})
    plan = ShardingPlan({"bags": EmbeddingModuleShardingPlan(placements)})
    sharder = embedding_sharder(Optimizer.SGD, learning_rate=0.1, device=CPU)
    sharded_model(model, plan, sharder, device=CPU)
