"""Shards as columns of numbers."""

import numpy as np
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import slice_columns
from support.builders import table, table_set


def test_column_slices_differ_from_their_table_in_width_alone() -> None:
    """A slice serves all rows and lookups of its table; one table may give several."""
    whole = shard_arrays(
        table_set(table("a", pooling_factor=2.0), table("b", num_embeddings=10)),
        global_batch_size=1024,
        optimizer=Optimizer.SGD,
    )

    slices = slice_columns(whole, np.array([1, 0, 0]), np.array([64, 16, 48]))

    assert slices.num_columns.tolist() == [64, 16, 48]
    assert slices.num_rows.tolist() == [10, 10**6, 10**6]
    assert slices.lookups.tolist() == [1024, 2048, 2048]
    assert slices.unique_rows[1] == slices.unique_rows[2] == whole.unique_rows[0]
