"""TorchRec modules to plan."""

import torch
from torch import nn
from torchrec.modules.embedding_configs import BaseEmbeddingConfig, EmbeddingBagConfig, EmbeddingConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.modules.mc_embedding_modules import (
    ManagedCollisionEmbeddingBagCollection,
    ManagedCollisionEmbeddingCollection,
)
from torchrec.modules.mc_modules import (
    DistanceLFU_EvictionPolicy,
    ManagedCollisionCollection,
    MCHManagedCollisionModule,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

META = torch.device("meta")
FEATURES = ("id_id", "country_id", "item", "last_item", "tags_id")


def config(
    name: str, rows: int = 1000, columns: int = 16, features: tuple[str, ...] = (), **given: object
) -> EmbeddingBagConfig:
    """Return a table that is looked up by features of its own."""
    return EmbeddingBagConfig(
        name=name,
        num_embeddings=rows,
        embedding_dim=columns,
        feature_names=list(features or (f"{name}_id",)),
        **given,
    )


class TwoTowers(nn.Module):
    """Two collections with a table name in common, and a dense part."""

    def __init__(self, device: torch.device = META) -> None:
        super().__init__()
        self.users = EmbeddingBagCollection(
            tables=[config("id", rows=5000), config("country", rows=200, columns=8, pooling=PoolingType.MEAN)],
            device=device,
        )
        self.items = EmbeddingBagCollection(
            tables=[config("id", rows=3000, features=("item", "last_item")), config("tags", rows=700, columns=32)],
            device=device,
        )
        self.dense = nn.Linear(24 + 64, 1, device=device)

    def forward(self, users: KeyedJaggedTensor, items: KeyedJaggedTensor) -> torch.Tensor:
        """Return a logit per sample."""
        found = {**self.users(users).to_dict(), **self.items(items).to_dict()}
        logits: torch.Tensor = self.dense(torch.cat([found[name] for name in FEATURES], dim=1))
        return logits


class Remapped(nn.Module):
    """Bags and sequences of ids that managed collision maps to 40 rows each, and a dense part.

    Args:
        length: of every sequence.
        device: of all.
    """

    def __init__(self, length: int, device: torch.device = META) -> None:
        super().__init__()
        ids = config("ids", rows=40)
        words = EmbeddingConfig(name="words", num_embeddings=40, embedding_dim=16, feature_names=["words_id"])
        self.bags = ManagedCollisionEmbeddingBagCollection(
            EmbeddingBagCollection(tables=[ids], device=device), collisions(ids, device)
        )
        self.rows = ManagedCollisionEmbeddingCollection(
            EmbeddingCollection(tables=[words], device=device), collisions(words, device)
        )
        self.dense = nn.Linear(16 + length * 16, 1, device=device)

    def forward(self, bags: KeyedJaggedTensor, rows: KeyedJaggedTensor) -> torch.Tensor:
        """Return a logit per sample."""
        pooled, _ = self.bags(bags)
        sequences, _ = self.rows(rows)
        words = sequences["words_id"].values().reshape(bags.stride(), -1)
        logits: torch.Tensor = self.dense(torch.cat([pooled.to_dict()["ids_id"], words], dim=1))
        return logits


def collisions(table: BaseEmbeddingConfig, device: torch.device) -> ManagedCollisionCollection:
    """Return the collection that maps the ids of a table to its rows."""
    policy = DistanceLFU_EvictionPolicy()
    module = MCHManagedCollisionModule(
        zch_size=table.num_embeddings, device=device, eviction_policy=policy, eviction_interval=1, buckets=4
    )
    return ManagedCollisionCollection({table.name: module}, [table])


def batch(
    features: dict[str, int], *, samples: int, ids: int = 100, lowest: int = 0, seed: int = 0
) -> KeyedJaggedTensor:
    """Return a batch in which every sample has that many ids of each feature, from the lowest up to `ids`."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.cat([torch.full((samples,), each, dtype=torch.int32) for each in features.values()])
    values = torch.randint(lowest, ids, (int(lengths.sum()),), generator=random)
    return KeyedJaggedTensor(keys=list(features), values=values, lengths=lengths)
