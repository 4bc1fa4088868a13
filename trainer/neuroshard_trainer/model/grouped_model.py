"""The model of a plan with groups in the grouped form: a collection of each such group, and one of all other tables.

    tables.0    tables that are in no such group     one list per sample
    tables.1    tables of the first group            one list per distinct sample: another number on every rank and step

A collection has one number of lists for all of its features, so that such a group needs its own. Its exchanges carry
distinct lists alone, forward and backward. DCNv2's first product with all features takes the part of the group before
the expansion, where the plan says so. Checkpoints, exports, and equal weights have the names of a model with one
collection (`common_name`): a run may go on in another form.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.documents.plan_parts import DeduplicationForm
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.model import Architecture, Model
from torch import nn
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ShardingPlan
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from neuroshard_trainer.data.samples import features_of
from neuroshard_trainer.model.dlrm import (
    TABLES_PATH,
    CrossNetworkArch,
    DeduplicatedModel,
    RecommendationModel,
    bag_collection,
)
from neuroshard_trainer.model.expansion import Expansion

_OF_A_COLLECTION = re.compile(rf"(^|\.){TABLES_PATH}\.\d+\.")


@dataclass(frozen=True, kw_only=True, slots=True)
class TableCollections:
    """Which tables each collection has."""

    rest: tuple[Table, ...]
    """Tables in no group of the grouped form; there may be none."""
    groups: tuple[tuple[Table, ...], ...]
    """By group of the grouped form, in the plan's order."""

    @classmethod
    def of(cls, plan: GivenPlan) -> "TableCollections":
        """Return the collections of a plan."""
        tables = plan.resolved.tables.tables
        groups = tuple(
            tuple(table for table in tables if frozenset(each.features) & frozenset(table.features))
            for each in plan.deduplication or ()
            if each.form is DeduplicationForm.GROUPED
        )
        names = {table.name for members in groups for table in members}
        return cls(rest=tuple(table for table in tables if table.name not in names), groups=groups)

    @property
    def all(self) -> tuple[tuple[Table, ...], ...]:
        """The tables of each collection; that of the rest is first, unless it has none."""
        return (self.rest, *self.groups) if self.rest else self.groups

    def divided(self, plan: ShardingPlan) -> ShardingPlan:
        """Return a sharding plan of one collection as that of these; where there is one, as it is."""
        if not self.groups:
            return plan
        whole = plan.plan[TABLES_PATH]
        return ShardingPlan(
            plan={
                f"{TABLES_PATH}.{number}": EmbeddingModuleShardingPlan(
                    {table.name: whole[table.name] for table in tables}
                )
                for number, tables in enumerate(self.all)
            }
        )


class GroupedModel(RecommendationModel):
    """The model for batches in which some groups have distinct lists alone.

    Args:
        model, tables: as for the model with all lists.
        groups: features of each group, of either form, in the order of the batches' first samples.
        collections: of the tables.
        multiplied_once: positions of the groups whose part of the first product is computed once per list.
    """

    def __init__(
        self,
        model: Model,
        tables: Sequence[Table],
        groups: Sequence[Sequence[str]],
        collections: TableCollections,
        multiplied_once: Sequence[int] = (),
    ) -> None:
        super().__init__(model, tables)
        self._multiplied_once = {number: tuple(groups[number]) for number in multiplied_once}
        if self._multiplied_once:
            assert isinstance(self.interaction, CrossNetworkArch), "other models have no such product"
            self.interaction.multiply_once(list(self._multiplied_once.values()))
        self.tables = nn.ModuleList(bag_collection(each) for each in collections.all)
        self.expansion = Expansion([feature.name for feature in features_of(tables)], groups)
        self._has_rest = bool(collections.rest)
        self._num_groups = len(collections.groups)
        self._collection_of = {
            feature.name: number for number, each in enumerate(collections.all) for feature in features_of(each)
        }

    def forward(  # type: ignore[override] # a batch without repeats needs more
        self,
        dense: torch.Tensor,
        lookups: KeyedJaggedTensor,
        first_samples: torch.Tensor,
        group_lookups: Sequence[KeyedJaggedTensor],
    ) -> torch.Tensor:
        """Return the logits, shape (samples,).

        Args:
            dense: shape (samples, dense features).
            lookups: of the features in no group of the grouped form.
            first_samples: [groups, samples] the position of each sample's list among those of its group's features.
            group_lookups: distinct lists of each group of the grouped form.
        """
        embedded_dense = self.dense_arch(dense)
        inputs = [lookups] * self._has_rest + [group_lookups[group] for group in range(self._num_groups)]
        awaited = [
            tables(own) for tables, own in zip(self.tables.children(), inputs, strict=True)
        ]  # all exchanges begin first
        found = [each.to_dict() for each in awaited]
        pooled = {name: found[number][name] for name, number in self._collection_of.items()}
        expanded = self.expansion(pooled, first_samples)
        if not self._multiplied_once:
            return self._logits(embedded_dense, expanded)
        distinct = {name: pooled[name] for names in self._multiplied_once.values() for name in names}
        rows = [first_samples[group] for group in self._multiplied_once]
        logits: torch.Tensor = self.over_arch(self.interaction(embedded_dense, expanded, distinct, rows))
        return logits.squeeze(1)


def planned_model(model: Model, plan: GivenPlan) -> RecommendationModel:
    """Return the model that a plan's batches are for: with all lists, or in the forms of its groups."""
    tables, groups = plan.resolved.tables.tables, plan.deduplicated_features
    collections = TableCollections.of(plan)
    if collections.groups:
        has_product = model.architecture is Architecture.DCN_V2
        once = [
            number
            for number, each in enumerate(plan.deduplication or ())
            if each.product_saved_ms is not None and has_product
        ]
        return GroupedModel(model, tables, groups, collections, once)
    return DeduplicatedModel(model, tables, groups) if groups else RecommendationModel(model, tables)


def common_name(name: str) -> str:
    """Return a parameter's name in a model with one collection."""
    return _OF_A_COLLECTION.sub(rf"\1{TABLES_PATH}.", name)
