"""Sample batches of a module's features, and what they say of its tables: lookups, reuse, and repeated lists."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeGuard

import numpy as np
import torch
from neuroshard_api.process.errors import DataError
from neuroshard_profiler.data.batches import DataBatch, FeatureBatch
from neuroshard_profiler.data.statistics import DataStatistics, data_statistics
from torchrec.modules.embedding_configs import BaseEmbeddingConfig
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from neuroshard_torchrec.collections import TableCollection
from neuroshard_torchrec.errors import DropInError

SampleBatch: TypeAlias = KeyedJaggedTensor | tuple[KeyedJaggedTensor, ...]
"""A global batch: in one tensor, or in several of different features."""
SampleBatches: TypeAlias = KeyedJaggedTensor | Iterable[SampleBatch] | None
"""Global batches, one of them, or none."""
Batches: TypeAlias = Sequence[tuple[KeyedJaggedTensor, ...]]
NamedTable: TypeAlias = tuple[str, TableCollection, BaseEmbeddingConfig]
"""Name in the table set, and where it is found."""

_FORM = "give KeyedJaggedTensors, or tuples of them"


def are_several(given: object) -> TypeGuard[Iterable[SampleBatch]]:
    """Whether batches can be read one by one; each may be anything."""
    return isinstance(given, Iterable) and not isinstance(given, (KeyedJaggedTensor, Mapping, torch.Tensor, str))


def batches_of(given: object, *, where: str = "sample_batches") -> Batches:
    """Return the batches that were given in any of the accepted ways.

    Args:
        given: SampleBatches, or what is none; an iterator is read to its end.
        where: what an error names.

    Raises:
        DropInError: a batch is not a KeyedJaggedTensor and no tuple of them, or reading the batches fails.
    """
    if given is None:
        return ()
    if isinstance(given, KeyedJaggedTensor):
        return ((given,),)
    if not are_several(given):
        raise DropInError(f"{where}: found a {type(given).__name__}; hint: {_FORM}")
    try:
        found = tuple(given)
    except Exception as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        raise DropInError(f"{where}: reading them failed: {what}") from error
    return tuple(_parts(each, where) for each in found)


def _parts(batch: object, where: str) -> tuple[KeyedJaggedTensor, ...]:
    """Return the tensors of one batch. Raises DropInError."""
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    if not parts:
        raise DropInError(f"{where}: a batch is empty; hint: {_FORM}")
    other = next((part for part in parts if not isinstance(part, KeyedJaggedTensor)), None)
    if other is not None:
        raise DropInError(f"{where}: has a {type(other).__name__} among the batches; hint: {_FORM}")
    return parts


def statistics_of(tables: Sequence[NamedTable], batches: Batches) -> DataStatistics | None:
    """Count lookups, reuse, and repeated lists of each table over all of its features; None without batches."""
    if not batches:
        return None
    if any(part.variable_stride_per_key() for batch in batches for part in batch):
        raise DropInError("sample_batches: have features of unlike numbers of samples; hint: give batches of one size")
    sizes = {part.stride() for batch in batches for part in batch}
    if len(sizes) > 1:
        raise DropInError(
            f"sample_batches: have {', '.join(map(str, sorted(sizes)))} samples; hint: give equal batches"
        )
    size = sizes.pop()
    counted = (_counted(tables, batch, size) for batch in batches)
    try:
        return data_statistics(counted, batch_size=size, ids_are_rows=True)
    except DataError as error:
        raise DropInError(f"sample_batches: {error}") from error


def _counted(tables: Sequence[NamedTable], batch: Sequence[KeyedJaggedTensor], size: int) -> DataBatch:
    features = {name: feature for part in batch for name, feature in part.to_dict().items()}
    counted = {}
    for known_as, collection, config in tables:
        missing = next((each for each in config.feature_names if each not in features), None)
        if missing is not None:
            raise DropInError(
                f"sample_batches: have no feature {missing!r} of table {known_as!r}, "
                f"only {', '.join(map(repr, list(features)[:5]))}; hint: give whole batches of the model"
            )
        parts = [features[each] for each in config.feature_names]
        ids = torch.cat([each.values() for each in parts])
        outside = ids[(ids < 0) | (ids >= config.num_embeddings)]
        if outside.numel() and not collection.id_maps:
            raise DropInError(
                f"sample_batches: have id {int(outside[0])} for table {known_as!r} of {config.num_embeddings} rows"
            )
        counted[known_as] = _by_sample(parts)
    return DataBatch(num_samples=size, features=counted, sessions=np.zeros(size, dtype=np.int64))


def _by_sample(parts: Sequence[JaggedTensor]) -> FeatureBatch:
    """Return the features of a table as one: of each sample the ids of the first, then those of the next."""
    lengths = [each.lengths().cpu().numpy().astype(np.int64) for each in parts]
    ids = np.concatenate([each.values().cpu().numpy().astype(np.int64) for each in parts])
    sample = np.concatenate([np.repeat(np.arange(len(each)), each) for each in lengths])
    return FeatureBatch(lengths=np.sum(lengths, axis=0), ids=ids[np.argsort(sample, kind="stable")])
