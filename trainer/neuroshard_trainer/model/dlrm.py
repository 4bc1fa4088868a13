"""The model: TorchRec's DLRM with dot interaction, DCNv2, or Wukong. Shards nothing and trains nothing."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from neuroshard_api.documents.tables import Pooling, Table
from neuroshard_api.documents.trainable_names import is_trainable_name, why_not_trainable
from neuroshard_api.job.model import Architecture, CrossNetwork, Model, WukongLayers
from neuroshard_api.process.errors import InputError
from torch import nn
from torch.nn.functional import pad
from torchrec.models.dlrm import DenseArch, OverArch
from torchrec.modules.embedding_configs import DataType as TorchRecDataType
from torchrec.modules.embedding_configs import EmbeddingBagConfig, PoolingType
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor, KeyedTensor

from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.model.cross_network import Columns, CrossLayers, DistinctInputs
from neuroshard_trainer.model.expansion import Expansion
from neuroshard_trainer.model.wukong import Wukong

TABLES_PATH = "tables"
"""Path of the EmbeddingBagCollection in the model."""


class RecommendationModel(nn.Module):
    """Dense features and pooled embeddings, joined by an interaction, to one logit per sample.

    With tables of one width DLRM and DCNv2 are TorchRec's DLRM and DLRM_DCN. With several widths, DLRM and Wukong,
    whose dot products need one, project the narrower features to the widest (mixed-dimension embeddings, Ginart et
    al., 2019); DCNv2 takes features of any width side by side.

    Without dense features the interaction joins the pooled embeddings alone. In place of the dense embedding, DLRM then
    has the pooled embeddings themselves next to their dot products, since dot products of pairs say nothing of a single
    feature.
    """

    def __init__(self, model: Model, tables: Sequence[Table]) -> None:
        super().__init__()
        widths = {feature.name: feature.table.embedding_dim for feature in features_of(tables)}
        width = max(widths.values())
        self.tables: nn.Module = bag_collection(tables)
        has_dense = model.num_dense_features > 0
        self.dense_arch = (
            DenseArch(model.num_dense_features, [*model.dense_arch_layer_sizes, width]) if has_dense else nn.Identity()
        )
        self.interaction: DotProducts | _FeatureProducts | CrossNetworkArch | _FactorizationMachines
        match model.architecture:
            case Architecture.DLRM:
                self.interaction = DotProducts(widths, width) if has_dense else _FeatureProducts(widths, width)
            case Architecture.DCN_V2:
                self.interaction = CrossNetworkArch(widths, width if has_dense else 0, model.cross)
            case Architecture.WUKONG:
                self.interaction = _FactorizationMachines(
                    widths, width, model.wukong_layers, num_dense_vectors=int(has_dense)
                )
        self.over_arch = OverArch(self.interaction.out_features, [*model.over_arch_layer_sizes, 1])

    def forward(self, dense: torch.Tensor, lookups: KeyedJaggedTensor) -> torch.Tensor:
        """Return the logits, shape (samples,)."""
        # The dense part comes first, as in TorchRec's DLRM: nothing is computed between lookup and all-to-all.
        embedded_dense = self.dense_arch(dense)
        pooled = self.tables(lookups)
        if self.training and isinstance(self.interaction, DotProducts) and self.interaction.joins_runs:
            runs = runs_of(pooled, [self.interaction.keys])[0]
            logits: torch.Tensor = self.over_arch(self.interaction(embedded_dense, None, runs))
            return logits.squeeze(1)
        # By name: a sharded collection returns its keys in another order.
        return self._logits(embedded_dense, pooled.to_dict())

    def _logits(self, embedded_dense: torch.Tensor, pooled: Mapping[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.over_arch(self.interaction(embedded_dense, pooled))
        return logits.squeeze(1)


class DeduplicatedModel(RecommendationModel):
    """The model for batches without repeated lists; weights have the same names.

    Args:
        model, tables: as for the model with all lists.
        groups: features of each group, in the order of the batches' first samples.
    """

    def __init__(self, model: Model, tables: Sequence[Table], groups: Sequence[Sequence[str]]) -> None:
        super().__init__(model, tables)
        self.expansion = Expansion([feature.name for feature in features_of(tables)], groups)

    def forward(  # type: ignore[override] # a batch without repeats needs one thing more
        self, dense: torch.Tensor, lookups: KeyedJaggedTensor, first_samples: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits, shape (samples,).

        Args:
            dense: shape (samples, dense features).
            lookups: without repeated lists.
            first_samples: [groups, samples] the sample that has each one's lists.
        """
        embedded_dense = self.dense_arch(dense)
        pooled = self.tables(lookups).to_dict()
        return self._logits(embedded_dense, self.expansion(pooled, first_samples))


class Run(NamedTuple):
    """Pooled embeddings of features that are next to each other in the result of a collection."""

    features: tuple[int, ...]
    """Positions of the features in their group."""
    values: torch.Tensor
    """Shape (samples, columns of all of them)."""


@torch.fx.wrap
def runs_of(pooled: KeyedTensor, groups: list[list[str]]) -> list[list[Run]]:
    """Return the columns of each group of features in the order of the collection, neighbors as one.

    A stack of single features would copy each of them by itself, and so would its gradient.

    Args:
        pooled: of a collection.
        groups: keys of features, each of which is in one group.
    """
    places = {key: (group, place) for group, keys in enumerate(groups) for place, key in enumerate(keys)}
    found: list[tuple[int, list[int]]] = []
    columns: list[int] = []
    for key, width in zip(pooled.keys(), pooled.length_per_key(), strict=True):
        group, place = places[key]
        if found and found[-1][0] == group:
            found[-1][1].append(place)
            columns[-1] += width
        else:
            found.append((group, [place]))
            columns.append(width)
    runs: list[list[Run]] = [[] for _ in groups]
    for (group, features), values in zip(found, pooled.values().split(columns, dim=1), strict=True):
        runs[group].append(Run(tuple(features), values))
    return runs


class DotProducts(nn.Module):
    """Dot products of all pairs of features and the dense embedding, behind the dense embedding."""

    def __init__(self, widths: Mapping[str, int], width: int) -> None:
        super().__init__()
        self.out_features = width + len(widths) * (len(widths) + 1) // 2
        self.keys = list(widths)
        """Names of the features."""
        self.joins_runs = set(widths.values()) == {width}
        """Whether `forward` takes runs: no feature is projected."""
        self.projections = _projections(widths, width)
        self.interaction = _Pairs(len(widths) + 1)

    def forward(
        self,
        dense: torch.Tensor,
        pooled: Mapping[str, torch.Tensor] | None,
        runs: list[Run] | None = None,
    ) -> torch.Tensor:
        """Return shape (samples, out_features).

        Args:
            dense: the dense embedding.
            pooled: [samples, columns] by feature. None: they are in ``runs``.
            runs: of the features by their positions in `keys`, where `joins_runs`. If unset: they are in ``pooled``.
        """
        embedded = []
        if pooled is not None:
            embedded = [project(pooled[key].float()) for project, key in zip(self.projections, self.keys, strict=True)]
        joined: torch.Tensor = self.interaction([dense, *embedded], runs)
        return joined


class _FeatureProducts(nn.Module):
    """Dot products of all pairs of features, next to the features themselves; there is no dense embedding."""

    def __init__(self, widths: Mapping[str, int], width: int) -> None:
        super().__init__()
        self.out_features = len(widths) * width + len(widths) * (len(widths) - 1) // 2
        self._keys = list(widths)
        self.projections = _projections(widths, width)
        self.interaction = _Pairs(len(widths))

    def forward(self, _dense: torch.Tensor, pooled: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return shape (samples, out_features)."""
        embedded = [project(pooled[key].float()) for project, key in zip(self.projections, self._keys, strict=True)]
        # The first feature is where the dense embedding would be.
        return torch.cat([self.interaction(embedded), *embedded[1:]], dim=1)


class _Pairs(nn.Module):
    """TorchRec's InteractionArch with the same numbers, but for rounding of gradients.

    On a CPU its choice of pairs by rows and columns takes as long as their products, and it copies all vectors twice.

    Args:
        count: vectors of a sample.
    """

    def __init__(self, count: int) -> None:
        super().__init__()
        places, pairs = _places(torch.arange(count))
        self.register_buffer("places", places, persistent=False)
        self.register_buffer("pairs", pairs, persistent=False)

    def forward(self, vectors: Sequence[torch.Tensor], runs: list[Run] | None = None) -> torch.Tensor:
        """Return the first vector, and the dot products of all pairs behind it.

        Args:
            vectors: each of shape (samples, width).
            runs: of vectors after these, in any order; only in training. If unset: there are none.
        """
        assert isinstance(self.places, torch.Tensor), "a buffer"
        assert isinstance(self.pairs, torch.Tensor), "a buffer"
        if runs is not None:
            return _pairs_of_runs(vectors[0], runs, self.places, self.pairs)
        stacked = torch.stack(list(vectors), dim=1)
        if self.training:
            products: torch.Tensor = _PairProducts.apply(stacked, self.places, self.pairs)
        else:  # as TorchScript takes it
            products = _pair_products(stacked).flatten(1).index_select(1, self.places)
        return torch.cat([vectors[0], products], dim=1)


def _places(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of all pairs of vectors in a matrix of products, and the pairs by place, as `_PairProducts`.

    Args:
        rows: of the vectors in the matrix.
    """
    count = len(rows)
    first, second = rows[torch.triu_indices(count, count, offset=1)]
    places = first * count + second
    pairs = torch.full((count * count,), len(places))  # one behind the last pair, where the gradient is 0
    pairs[places] = pairs[second * count + first] = torch.arange(len(places))
    return places, pairs


@lru_cache(maxsize=64)
def _places_in(order: tuple[int, ...], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places for vectors in another order after the first."""
    rows = torch.tensor([0, *(1 + place for place in np.argsort(order))])
    places, pairs = _places(rows)
    return places.to(device), pairs.to(device)


@torch.fx.wrap
def _pairs_of_runs(first: torch.Tensor, runs: list[Run], places: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
    """Return the first vector, and the dot products of all pairs behind it.

    Args:
        first: shape (samples, width).
        runs: of all others.
        places: of `_Pairs`, for vectors in the order of their positions.
        pairs: likewise.
    """
    order = tuple(place for run in runs for place in run.features)
    if order != tuple(range(len(order))):
        places, pairs = _places_in(order, first.device)
    width = first.shape[1]
    blocks = [run.values.float().view(first.shape[0], len(run.features), width) for run in runs]
    products = _PairProducts.apply(torch.cat([first.unsqueeze(1), *blocks], dim=1), places, pairs)
    return torch.cat([first, products], dim=1)


def _pair_products(vectors: torch.Tensor) -> torch.Tensor:
    return torch.bmm(vectors, vectors.transpose(1, 2))


class _PairProducts(torch.autograd.Function):
    """Dot products of pairs: the gradient at their vectors is one matrix product, where autograd would take two.

    The gradient of a pair has two places in a symmetric matrix, which are read by index. Autograd writes one by index.
    """

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, places: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        """Return shape (samples, pairs).

        Args:
            ctx: of autograd.
            vectors: shape (samples, count, width).
            places: of the pairs in the rows of a matrix of products.
            pairs: by place in the rows of a symmetric matrix.
        """
        products = _pair_products(vectors)
        ctx.save_for_backward(vectors.to(products.dtype), pairs)  # autocast multiplies in a narrow type
        ctx.data_type = vectors.dtype
        return products.flatten(1).index_select(1, places)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # noqa: ANN401
        """Return the gradient at the vectors."""
        vectors, pairs = ctx.saved_tensors
        count = vectors.shape[1]
        symmetric = pad(gradient, (0, 1)).index_select(1, pairs).view(-1, count, count)
        return torch.bmm(symmetric, vectors).to(ctx.data_type), None, None


class CrossNetworkArch(nn.Module):
    """Low-rank cross layers over all features side by side; ``width`` is that of the dense embedding, or 0."""

    def __init__(self, widths: Mapping[str, int], width: int, size: CrossNetwork) -> None:
        super().__init__()
        self.out_features = width + sum(widths.values())
        self._keys = list(widths)
        ends = list(accumulate(widths.values(), initial=width))
        self._places = {key: slice(*place) for key, place in zip(widths, pairwise(ends), strict=True)}
        self._width = width
        self._columns = Columns(others=(), groups=())
        self._groups: tuple[tuple[str, ...], ...] = ()
        self.interaction = CrossLayers(self.out_features, size.num_layers, low_rank=size.low_rank_dim)

    def multiply_once(self, groups: Sequence[Sequence[str]]) -> None:
        """Multiply the features of groups once per distinct list in the first layer; forward then takes the lists."""
        self._groups = tuple(tuple(key for key in self._keys if key in set(names)) for names in groups)
        grouped = {key for names in self._groups for key in names}
        others = [slice(0, self._width)] * bool(self._width)
        others += [place for key, place in self._places.items() if key not in grouped]
        self._columns = Columns(
            others=_joined(others),
            groups=tuple(_joined([self._places[key] for key in names]) for names in self._groups),
        )

    def forward(
        self,
        dense: torch.Tensor,
        pooled: Mapping[str, torch.Tensor],
        distinct: Mapping[str, torch.Tensor] | None = None,
        rows: Sequence[torch.Tensor] = (),
    ) -> torch.Tensor:
        """Return shape (samples, out_features).

        Args:
            dense: the dense embedding.
            pooled: [samples, columns] by feature.
            distinct: [lists, columns] by feature of the groups that are multiplied once. If unset: there are none.
            rows: by group, [samples] the list of each sample.
        """
        joined = torch.cat([dense, *(pooled[key].float() for key in self._keys)], dim=1)
        lists = None
        if distinct is not None:
            lists = DistinctInputs(
                columns=self._columns,
                pooled=[torch.cat([distinct[key].float() for key in names], dim=1) for names in self._groups],
                rows=rows,
            )
        crossed: torch.Tensor = self.interaction(joined, lists)
        return crossed


def _joined(places: Sequence[slice]) -> tuple[slice, ...]:
    """Return places in their order, neighbors as one."""
    found: list[slice] = []
    for place in places:
        if found and found[-1].stop == place.start:
            found[-1] = slice(found[-1].start, place.stop)
        else:
            found.append(place)
    return tuple(found)


class _FactorizationMachines(nn.Module):
    """Wukong's layers over the dense embedding, if there is one, and all features, each a vector of one width."""

    def __init__(self, widths: Mapping[str, int], width: int, size: WukongLayers, *, num_dense_vectors: int) -> None:
        super().__init__()
        self.out_features = size.num_outputs * width
        self._keys = list(widths)
        self.projections = _projections(widths, width)
        self._num_dense_vectors = num_dense_vectors
        self.interaction = Wukong(num_dense_vectors + len(widths), width, size)

    def forward(self, dense: torch.Tensor, pooled: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return shape (samples, out_features)."""
        embedded = [project(pooled[key].float()) for project, key in zip(self.projections, self._keys, strict=True)]
        joined: torch.Tensor = self.interaction(torch.stack([dense] * self._num_dense_vectors + embedded, dim=1))
        return joined.flatten(1)


def _projections(widths: Mapping[str, int], width: int) -> nn.ModuleList:
    """Return the projections of each feature to one width."""
    return nn.ModuleList(
        nn.Identity() if narrow == width else nn.Linear(narrow, width, bias=False) for narrow in widths.values()
    )


def bag_collection(tables: Sequence[Table]) -> EmbeddingBagCollection:
    """Return a collection that is not sharded yet and has no memory. Raises InputError for a table it cannot have."""
    return EmbeddingBagCollection(tables=[_config(table) for table in tables], device=torch.device("meta"))


def _config(table: Table) -> EmbeddingBagConfig:
    if not is_trainable_name(table.name) or hasattr(nn.ModuleDict(), table.name):
        raise InputError(why_not_trainable(table.name))
    if table.is_sequence:
        raise InputError(
            f"table {table.name!r} has pooling NONE, and this trainer joins one vector of each feature"
            f"; hint: give it SUM or "
            "MEAN, or bring a trainer of your own (spec.trainer.command)"
        )
    return EmbeddingBagConfig(
        name=table.name,
        num_embeddings=table.num_embeddings,
        embedding_dim=table.embedding_dim,
        feature_names=list(table.features),
        data_type=TorchRecDataType[table.data_type.value],
        pooling=PoolingType[(table.pooling or Pooling.SUM).value],
    )
