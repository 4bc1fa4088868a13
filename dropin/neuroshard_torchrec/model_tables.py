"""The tables of a TorchRec module as a table set. Decides no placement.

Rows, columns, types, features and pooling are the module's. Lookups, reuse and skew are not in a module: they come from
sample batches, or from TorchRec's ParameterConstraints, or are 1 lookup per feature.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from neuroshard_api.documents.document import DocumentError, validated
from neuroshard_api.documents.tables import Pooling, TableSet, allowed_name, distinct_names
from neuroshard_profiler.data.statistics import DataStatistics
from torch import nn
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.modules.embedding_configs import BaseEmbeddingConfig, EmbeddingBagConfig

from neuroshard_torchrec.asked import Asked
from neuroshard_torchrec.collections import Sharders, TableCollection, collections_of
from neuroshard_torchrec.errors import DropInError, NoTablesError
from neuroshard_torchrec.first_rank import logger_of
from neuroshard_torchrec.optimizers import in_backward_optimizers, with_optimizers
from neuroshard_torchrec.sample_batches import SampleBatches, batches_of, statistics_of

logger = logger_of(__name__)

LEAST_LOOKUPS = 1e-6
"""Per sample, of a feature that constraints count none of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTables:
    """All tables of a module, and where each is found in it."""

    table_set: TableSet
    collections: tuple[TableCollection, ...]
    places: Mapping[str, tuple[str, str]]
    """Path of the collection and name in it, by the name in the table set."""
    left_out: tuple[tuple[str, str], ...]
    """Path of the collection and name in it, of the tables that the plan has no entry for."""
    statistics: DataStatistics | None
    """What sample batches say of each table, over all of its features. None: there were none."""
    optimizer_problem: str
    """Why the table set has no optimizers, although `apply_optimizer_in_backward` gave tables one. Empty: it has."""

    @property
    def by_path(self) -> Mapping[str, Mapping[str, str]]:
        """Names in the table set by names in the collection, by the collection's path."""
        found: dict[str, dict[str, str]] = {each.path: {} for each in self.collections}
        for known_as, (path, name) in self.places.items():
            found[path][name] = known_as
        return found


def table_set_of(module: nn.Module, sample_batches: SampleBatches = (), *, name: str | None = None) -> TableSet:
    """Return the tables of a module as `neuroshard plan` takes them.

    Their optimizers are those of `apply_optimizer_in_backward`: sharders with others are not known here.

    Args:
        module: on any device, meta included.
        sample_batches: global batches of the module's features; reuse is measured at the size of the first, and the
            duplication factor of a table is samples over distinct lists of a batch.
        name: what reports call the set. None: the module's class.

    Raises:
        DropInError: the module has no tables, or tables that cannot be planned, or a batch lacks a feature.
    """
    found = model_tables(module, sample_batches=sample_batches, name=name)
    if found.optimizer_problem:
        logger.warning("%s; the table set has no optimizers", found.optimizer_problem)
    return found.table_set


def model_tables(
    module: nn.Module,
    *,
    sharders: Sharders | None = None,
    sample_batches: SampleBatches = (),
    asked: Asked | None = None,
    batch_size: int | None = None,
    compute_device: str | None = None,
    name: str | None = None,
) -> ModelTables:
    """Return the tables of a module and where each is found in it.

    Tables keep their names; one that occurs in several collections has its collection's path before it.

    Raises:
        DropInError: see table_set_of.
    """
    asked = asked or Asked()
    whole = collections_of(module, sharders)
    collections = tuple(each for given in whole if (each := _planned_part(given, asked, compute_device)).configs)
    if not collections:
        raise NoTablesError(
            f"{type(module).__name__} has no EmbeddingBagCollection or EmbeddingCollection that one of the sharders "
            "takes; hint: give the module that holds the tables, and the sharders of DistributedModelParallel"
        )
    counts = Counter(config.name for each in collections for config in each.configs)
    members = [(each, config) for each in collections for config in each.configs]
    names = distinct_names(
        [_name(each.path, config.name, is_unique=counts[config.name] == 1) for each, config in members]
    )
    named = [(name, each, config) for name, (each, config) in zip(names, members, strict=True)]
    batches = batches_of(sample_batches)
    statistics = statistics_of(named, batches)
    num_samples = sum(batch[0].stride() for batch in batches)
    measured = {} if statistics is None else {each.name: each for each in statistics.features}
    tables = []
    for known_as, collection, config in named:
        if getattr(config, "use_virtual_table", False):
            raise DropInError(
                f"table {known_as!r} is a virtual table (use_virtual_table), which has no rows to place; "
                "hint: plan the module with TorchRec's planner"
            )
        limit = asked.of((collection.path, config.name))
        table: dict[str, object] = {
            "name": known_as,
            "num_embeddings": config.num_embeddings,
            "embedding_dim": config.embedding_dim,
            "data_type": config.data_type.name,
            "pooling": config.pooling.name if isinstance(config, EmbeddingBagConfig) else Pooling.NONE,
            "is_weighted": True if collection.is_weighted or (limit is not None and limit.is_weighted) else None,
            "feature_names": list(config.feature_names),
            "collection": collection.path if len(collections) > 1 else None,
            "pooling_factor": _declared_lookups(config, limit, batch_size),
        }
        if known_as in measured:
            if measured[known_as].pooling_factor == 0:
                table["pooling_factor"] = 1 / num_samples
                logger.warning(
                    "table %r has no ids in the sample batches; it is priced with one lookup in %d samples",
                    known_as,
                    num_samples,
                )
            else:
                table["pooling_factor"] = measured[known_as].pooling_factor
                table["reuse_histogram"] = measured[known_as].reuse_histogram
                table["duplication_factor"] = measured[known_as].duplication_factor
        tables.append(table)
    raw: dict[str, object] = {
        "schema_version": TableSet.schema_name,
        "name": name or type(module).__name__,
        "tables": tables,
    }
    if statistics is not None:
        raw["reuse_batch_size"] = raw["session_run"] = statistics.reuse_batch_size
    try:
        table_set = validated(TableSet, raw, where=type(module).__name__)
    except DocumentError as error:
        raise DropInError(_with_names(str(error), names)) from error
    planned = {(each.path, config.name) for each, config in members}
    in_module = [(each.path, name) for each in whole for name in each.weights]
    places = {known_as: (collection.path, config.name) for known_as, collection, config in named}
    problem = ""
    try:
        own = in_backward_optimizers(collections)
        table_set = with_optimizers(table_set, {name: own[place] for name, place in places.items() if place in own})
    except DropInError as error:
        problem = str(error)
    return ModelTables(
        table_set=table_set,
        collections=collections,
        places=places,
        left_out=tuple(place for place in in_module if place not in planned),
        statistics=statistics,
        optimizer_problem=problem,
    )


def _name(path: str, name: str, *, is_unique: bool) -> str:
    return allowed_name(name if is_unique or not path else f"{path}/{name}")


def _with_names(sentence: str, names: Sequence[str]) -> str:
    """Return a sentence with the names of tables in the place of their numbers."""
    return re.sub(
        r"tables\[(\d+)\]",
        lambda found: f"table {names[int(found[1])]!r}" if int(found[1]) < len(names) else found[0],
        sentence,
    )


def _planned_part(collection: TableCollection, asked: Asked, compute_device: str | None) -> TableCollection:
    """Return a collection without the tables that the plan has no entry for."""
    left_out = {name for name in collection.weights if asked.leaves_out((collection.path, name), compute_device)}
    return replace(
        collection,
        configs=tuple(each for each in collection.configs if each.name not in left_out),
        weights={name: each for name, each in collection.weights.items() if name not in left_out},
    )


def _declared_lookups(
    config: BaseEmbeddingConfig, limits: ParameterConstraints | None, batch_size: int | None
) -> float:
    """Return lookups per sample over all features, as TorchRec's planner counts them."""
    factors = [1.0] if limits is None else list(limits.pooling_factors or [1.0])
    if not all(math.isfinite(each) and each >= 0 for each in factors):
        raise DropInError(
            f"constraints[{config.name!r}].pooling_factors: must be finite and at least 0 (found {factors}); "
            "hint: give the mean number of ids in a sample"
        )
    if len(factors) == 1:  # TorchRec's default stands for each feature
        factors *= max(1, len(config.feature_names))
    if len(factors) != len(config.feature_names):
        raise DropInError(
            f"constraints[{config.name!r}].pooling_factors: has {len(factors)} entries, "
            f"the table has {len(config.feature_names)} features; hint: give one of each"
        )
    total = 0.0
    for index, factor in enumerate(factors):
        share = 1.0
        if limits is not None and limits.num_poolings and index < len(limits.num_poolings):
            share *= limits.num_poolings[index]
        if limits is not None and limits.batch_sizes and batch_size and index < len(limits.batch_sizes):
            share *= limits.batch_sizes[index] / batch_size
        total += factor * share
    return total or LEAST_LOOKUPS
