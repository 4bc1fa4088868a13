"""A plan request for inputs as a trainer counted them: pooling factors and reuse of the tables replaced."""

from collections.abc import Mapping

import numpy as np
from neuroshard_api.documents.input_statistics import FeatureStatistics, InputStatistics
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Table, TableSet

from neuroshard_costs.errors import RecordsError
from neuroshard_costs.reuse.shard_arrays import rescaled_counts

LEAST_POOLING = 1e-3
"""Pooling factor of a table that no sampled batch looked up: a table set has none of 0."""


def with_measured_inputs(request: PlanRequest, statistics: InputStatistics) -> PlanRequest:
    """Return the request with the counted inputs in the place of its own.

    Tables of which all features were counted get their pooling factor. Those of which reuse was counted, the changed
    ones, get its histogram, rescaled to the batch of the table set's own histograms. Tables with a feature whose
    repeated lists were left out of the batches stay as they are: what was counted is of distinct lists, and does not
    tell another duplication factor from other lists.

    Raises:
        RecordsError: the statistics have features of none of the tables: they are of another model.
    """
    left_out = statistics.without_repeats or ()
    counted = {each.feature: each for each in statistics.features if each.feature not in left_out}
    tables = request.tables
    known = {name for table in tables.tables for name in table.features}
    names = {each.feature for each in statistics.features}
    if not known & names:
        found = ", ".join(sorted(names)[:3])
        raise RecordsError(
            f"statistics: have features of no table of the request (found {found}); hint: give its trainer's"
        )
    has_histograms = any(table.reuse_histogram is not None for table in tables.tables)
    batch_size = tables.reuse_batch_size if has_histograms else statistics.batch_size
    measured = tuple(_measured(table, counted, statistics.batch_size, batch_size) for table in tables.tables)
    changed = TableSet.model_validate(
        tables.model_copy(update={"tables": measured, "reuse_batch_size": batch_size}).model_dump()
    )
    return request.model_copy(update={"tables": changed})


def _measured(table: Table, counted: Mapping[str, FeatureStatistics], counted_batch: int, set_batch: int) -> Table:
    """Return a table with its counted inputs, as far as all of its features were counted."""
    own = [counted[name] for name in table.features if name in counted]
    if len(own) < len(table.features):
        return table
    pooling = max(sum(each.lookups_per_sample for each in own), LEAST_POOLING)
    update: dict[str, object] = {"pooling_factor": pooling}
    reused = [each for each in own if each.reuse_histogram is not None]
    if len(reused) == len(own):
        rows = np.array([each.lookups_per_sample * each.distinct_rows_per_lookup for each in reused])
        shares = np.array([each.reuse_histogram for each in reused])
        mean = np.average(shares, axis=0, weights=np.maximum(rows, LEAST_POOLING))
        counts = rescaled_counts(
            mean[None],
            num_rows=np.array([float(table.num_embeddings)]),
            lookups=np.array([pooling * counted_batch]),
            ratio=set_batch / counted_batch,
        )[0]
        update |= {"reuse_histogram": tuple((counts / counts.sum()).tolist()), "zipf_exponent": None}
    return table.model_copy(update=update)
