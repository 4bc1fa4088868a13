"""Repeated lists in the cost of a plan: lookups of distinct lists alone, and the expansion behind the exchange.

Of a group with the factor f, a batch of B samples of a device has 1 + (B - 1) / f distinct samples: its first sample is
one in any case. Lookups and exchanged indices fall by B over that. Bags, and with them pooled embeddings and their
exchange, stay: a repeat is an empty bag. Rows that are touched stay too, for a repeat touches the rows of the list that
it repeats; their hits fall by the factor.

In the grouped form the group's tables have a collection of their own: its pooled embeddings travel for distinct samples
alone, and its exchanges and kernels are calls of their own (step_cost.py). Its kernels are priced with the bags of all
samples, which they do not have, and its indices with the lengths of all lists: no price is too low.

The memory ledger does not know of this: a batch without repeats must fit.

A model may begin with a product of all features side by side. In the grouped form the trainer computes the part of the
group once per distinct list, and copies its columns behind it. That saves time of the dense part, which the cost of a
placement does not have.
"""

from collections.abc import Sequence

import numpy as np
from neuroshard_api.documents.dense_profile import DensePass, DensePasses
from neuroshard_api.documents.plan_parts import DeduplicatedGroup, DeduplicationForm
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import DataType, Table

from neuroshard_costs.exchanges import TransferModel
from neuroshard_costs.reuse.repeats import without_repeats
from neuroshard_costs.shards import BYTES_PER_ELEMENT, FloatArray


def repeating_groups(request: PlanRequest) -> tuple[DeduplicatedGroup, ...]:
    """Return the groups that a request leaves repeats of out, in its order; without their savings."""
    groups = []
    for name in request.deduplicate or ():
        members = members_of(name, request)
        if members:
            features = tuple(dict.fromkeys(feature for table in members for feature in table.features))
            factor = batch_factor(_factor(members), request.batch_size_per_device)
            form = DeduplicationForm.GROUPED if name in (request.grouped or ()) else DeduplicationForm.FIRST_SAMPLE
            groups.append(DeduplicatedGroup(group=name, features=features, form=form, factor=factor))
    return tuple(groups)


def members_of(group: str, request: PlanRequest) -> Sequence[Table]:
    """Return the tables of a group whose repeats may be left out: bags, for sequences are looked up as they are."""
    return [table for table in request.tables.tables if _group_of(table) == group]


def _group_of(table: Table) -> str | None:
    return None if table.is_sequence else table.duplication_group


def is_grouped(table: Table, request: PlanRequest) -> bool:
    """Return whether a table is in the collection of a group in the grouped form."""
    return _group_of(table) in (request.grouped or ())


def sent_shares(request: PlanRequest) -> FloatArray:
    """Return [tables] the lists whose pooled embeddings travel, over the samples: less than 1 in the grouped form."""
    factors = {group.group: group.factor for group in repeating_groups(request)}
    return np.array(
        [
            1 / factors[table.duplication_group] if table.duplication_group and is_grouped(table, request) else 1.0
            for table in request.tables.tables
        ]
    )


def num_added_calls(request: PlanRequest) -> int:
    """Return the exchanges that the collections of groups add, in each direction and for indices."""
    has_rest = not all(is_grouped(table, request) for table in request.tables.tables)
    return max(0, len(request.grouped or ()) - (not has_rest))


def batch_factor(factor: float, batch_size: int) -> float:
    """Return expected samples over distinct ones in a batch, from those of a whole log."""
    return batch_size / (1 + (batch_size - 1) / factor)


def looked_up(request: PlanRequest) -> PlanRequest:
    """Return the request with the lookups and hits of distinct lists alone; memory is not to be taken from it."""
    factors: dict[str | None, float] = {group.group: group.factor for group in repeating_groups(request)}
    if not factors:
        return request
    tables = tuple(
        without_repeats(table, factors[group]) if (group := _group_of(table)) in factors else table
        for table in request.tables.tables
    )
    return request.model_copy(update={"tables": request.tables.model_copy(update={"tables": tables})})


def expansion_ms(request: PlanRequest, costs: TransferModel) -> float:
    """Return the time to copy pooled embeddings to the repeats of a device's samples, forward and backward."""
    of_groups = [members_of(name, request) for name in dict.fromkeys(request.deduplicate or ())]
    members = [table for own in of_groups for table in own]
    if not members:
        return 0.0
    features = sum(table.num_features for table in members)
    columns = sum(table.embedding_dim * table.num_features for table in members)
    row_bytes = columns * BYTES_PER_ELEMENT[request.memory.output_data_type]
    samples = request.batch_size_per_device
    num_groups = sum(map(bool, of_groups))
    return costs.expansion_ms(features, samples * num_groups, samples * row_bytes)


def product_saved_ms(request: PlanRequest, group: str, costs: TransferModel) -> float | None:
    """Return the time that a group in the grouped form saves of the first product with all features, both passes.

    None: nothing, since the model has no such product, or copying its columns takes longer.
    """
    rank = request.joint_product_columns
    own = request.model_copy(update={"deduplicate": (group,), "grouped": (group,)})
    found = repeating_groups(own)
    if rank is None or not found:
        return None
    samples = request.batch_size_per_device
    columns = sum(table.embedding_dim * table.num_features for table in members_of(group, request))
    flops = 2.0 * columns * rank * samples * (1 - 1 / found[0].factor)
    row_bytes = rank * BYTES_PER_ELEMENT[DataType.FP32]
    copies_ms = costs.expansion_ms(1, samples, samples * row_bytes)
    saved_ms = sum(costs.matrices_ms(flops, 2 * flops)) - costs.dense_other_ms(_FURTHER_PRODUCT) - copies_ms
    return saved_ms if saved_ms > 0 else None


_FURTHER_PRODUCT = DensePasses(
    forward=DensePass(operations=1, products=1, moved_bytes=0),
    backward=DensePass(operations=2, products=2, moved_bytes=0),
    optimizer=DensePass(operations=0, products=0, moved_bytes=0),
    num_tensors=0,
)
"""What one product more is, besides its floating-point operations."""


def _factor(tables: Sequence[Table]) -> float:
    """Return the least factor of a group's tables; all have one where they are from one measurement."""
    return min(table.duplication_factor or 1.0 for table in tables)
