"""How many lookups the fullest of equal blocks of rows serves."""

import numpy as np
import pytest
from neuroshard_api.documents.tables import Optimizer
from neuroshard_costs.reuse.row_parts import fullest_part, hottest_row_lookups
from neuroshard_costs.reuse.shard_arrays import shard_arrays
from neuroshard_costs.shards import ShardArrays
from support.builders import table, table_set

BATCH = 65_536


def part_of(num_rows: int, exponent: float, num_parts: int) -> tuple[ShardArrays, ShardArrays]:
    """Return a table with Zipf lookups, whole and its fullest block."""
    tables = table_set(table("a", num_embeddings=num_rows, pooling_factor=1.0, zipf_exponent=exponent))
    whole = shard_arrays(tables, global_batch_size=BATCH, optimizer=Optimizer.SGD)
    part = fullest_part(
        whole,
        num_rows=np.ceil(whole.num_rows / num_parts),
        num_parts=np.array([float(num_parts)]),
        hottest_row=hottest_row_lookups(tables, whole),
    )
    return whole, part


@pytest.mark.parametrize("num_parts", [8, 64])
@pytest.mark.parametrize("exponent", [0.0, 0.85, 1.05, 1.3])
def test_the_fullest_block_is_that_of_drawn_tables(exponent: float, num_parts: int) -> None:
    """Rows in random order, lookups drawn by Zipf's law: the largest block in the mean of 20 draws, within 20 %.

    The terms are added up, so that one row that makes most of the variance counts in part twice.
    """
    num_rows, random = 100_000, np.random.default_rng(7)
    chances = np.arange(1, num_rows + 1) ** -exponent
    chances /= chances.sum()
    most = []
    for _ in range(20):
        hits = random.multinomial(BATCH, chances)[random.permutation(num_rows)]
        most.append(max(block.sum() for block in np.array_split(hits, num_parts)))

    _, part = part_of(num_rows, exponent, num_parts)

    assert part.lookups[0] == pytest.approx(np.mean(most), rel=0.2)


@pytest.mark.parametrize(("exponent", "num_parts", "over_mean"), [(0.85, 8, 1.07), (0.85, 64, 1.7), (1.05, 64, 5.9)])
def test_hot_rows_fill_one_of_many_blocks(exponent: float, num_parts: int, over_mean: float) -> None:
    """Of 40 million rows the hottest decides, however many blocks there are."""
    whole, part = part_of(40_000_000, exponent, num_parts)

    assert part.lookups[0] / whole.lookups[0] * num_parts == pytest.approx(over_mean, rel=0.1)


def test_one_block_is_the_table() -> None:
    """Nothing is dealt out."""
    whole, part = part_of(1000, 1.0, 1)

    assert part.lookups == pytest.approx(whole.lookups)
    assert part.unique_rows == pytest.approx(whole.unique_rows)


def test_a_measured_table_has_its_hottest_row_in_the_highest_bin() -> None:
    """A histogram says no more of the hottest row than the bin of the highest hits that holds one."""
    histogram = (0.5, 0.3, 0.2) + (0.0,) * 14
    tables = table_set(table("a", pooling_factor=1.0, reuse_histogram=histogram), reuse_batch_size=BATCH)
    whole = shard_arrays(tables, global_batch_size=BATCH, optimizer=Optimizer.SGD)

    assert hottest_row_lookups(tables, whole).tolist() == pytest.approx([24 / 7], rel=0.01)
