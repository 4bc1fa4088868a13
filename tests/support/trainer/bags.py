"""An unsharded model of embedding bags, its batches, and how a sharded model's weights are held against it."""

from collections.abc import Iterator, Sequence

import torch
from neuroshard_api.documents.tables import Pooling, Table
from neuroshard_trainer.model.grouped_model import common_name
from torch import nn
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

SAMPLES = 8  # of each rank


class Bags(nn.Module):
    """Pooled embeddings of all features side by side, times a fixed vector: one logit per sample."""

    def __init__(self, tables: Sequence[Table]) -> None:
        super().__init__()
        self.tables = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name=table.name,
                    num_embeddings=table.num_embeddings,
                    embedding_dim=table.embedding_dim,
                    feature_names=list(table.features),
                    data_type=DataType[table.data_type.value],
                    pooling=PoolingType[(table.pooling or Pooling.SUM).value],
                )
                for table in tables
            ],
            device=torch.device("meta"),
        )

    def forward(self, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return shape (samples,)."""
        pooled = self.tables(lookups).to_dict()
        width = sum(each.shape[1] for each in pooled.values())
        weights = torch.cos(torch.arange(width, dtype=torch.float32)) / width**0.5
        logits: torch.Tensor = torch.cat([pooled[key] for key in sorted(pooled)], dim=1) @ weights
        return logits


def weight_difference(live: torch.Tensor | ShardedTensor, expected: torch.Tensor) -> float:
    """Return the largest difference in what this rank holds of a table."""
    differences = [float((part - wanted).abs().max()) for part, wanted in pairs(live, expected) if part.numel()]
    return max(differences, default=0.0)


def pairs(live: torch.Tensor | ShardedTensor, whole: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield this rank's cells of a table, and the same cells of the whole table."""
    if not isinstance(live, ShardedTensor):
        yield live.detach().as_subclass(torch.Tensor), whole
        return
    for each in live.local_shards():
        (row, column), (rows, columns) = each.metadata.shard_offsets, each.tensor.shape
        yield each.tensor, whole[row : row + rows, column : column + columns]


def lookups_of(tables: Sequence[Table], *, seed: int) -> KeyedJaggedTensor:
    """Return random bags of 0 to 3 rows for every feature."""
    generator = torch.Generator().manual_seed(seed)
    features = [(name, table) for table in tables for name in table.features]
    lengths = torch.randint(4, (len(features), SAMPLES), generator=generator)
    values = [
        torch.randint(table.num_embeddings, (int(count),), generator=generator)
        for (_, table), count in zip(features, lengths.sum(dim=1), strict=True)
    ]
    return KeyedJaggedTensor(keys=[name for name, _ in features], values=torch.cat(values), lengths=lengths.flatten())


def local_weights(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of this rank's shards and other tensors of a model, by names that all forms have in common."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in model.state_dict().items():
        key = common_name(name)
        if isinstance(tensor, ShardedTensor):
            found |= {f"{key} {number}": each.tensor.clone() for number, each in enumerate(tensor.local_shards())}
        else:
            found[key] = tensor.detach().as_subclass(torch.Tensor).clone()
    return found
