"""The task distribution: near the published sums, equal in every run, within its stated bounds."""

import numpy as np
import pytest
from neuroshard_costs.memory_ledger import MemoryLedger

from benchmarks.task_pool import MOST_INDEX_DISTANCE, MOST_ROWS_DISTANCE, MOST_TOTAL_ERROR, match
from benchmarks.tasks import (
    DIMS,
    FEWEST_TABLES,
    LOOKUPS,
    MEMORY_BYTES,
    MOST_TABLES,
    NUM_TASKS,
    draw_pool,
    full_ledger_request,
    task_tables,
    weights_only_request,
)


def test_the_pool_is_within_the_stated_tolerances_of_the_published_sums() -> None:
    """Lookups, distinct rows, and the shares of both by hits per row."""
    found = match(draw_pool())

    assert found.lookups == pytest.approx(LOOKUPS, rel=MOST_TOTAL_ERROR)
    assert found.unique_error < MOST_TOTAL_ERROR
    assert found.rows_distance < MOST_ROWS_DISTANCE
    assert found.index_distance < MOST_INDEX_DISTANCE


def test_tasks_are_equal_in_every_run_and_as_the_paper_draws_them() -> None:
    """A hundred tasks of 10 to 59 tables of the pool without repeats, each with one of six dimensions."""
    tasks = task_tables()

    assert tasks == task_tables()
    assert len(tasks) == NUM_TASKS
    assert {len(task.tables) for task in tasks} <= set(range(FEWEST_TABLES, MOST_TABLES + 1))
    assert {table.embedding_dim for task in tasks for table in task.tables} == set(DIMS)
    assert all(len({table.zipf_exponent for table in task.tables}) > 1 for task in tasks)


@pytest.mark.parametrize("num_devices", [4, 8])
def test_weights_only_memory_leaves_four_gigabytes_per_device_for_weights(num_devices: int) -> None:
    """All devices together hold exactly the weights' room and what the ledger counts next to the weights."""
    tables = task_tables()[0]
    ledger = MemoryLedger(weights_only_request(tables, num_devices))
    columns = np.array([table.embedding_dim for table in tables.tables])

    index = np.arange(len(columns))
    per_shard = ledger.activation_bytes(index, columns) + ledger.input_bytes(index) + ledger.sort_bytes(index)
    beside = int(per_shard.sum())
    room = num_devices * ledger.shard_capacity_bytes - beside

    assert num_devices * MEMORY_BYTES <= room < num_devices * (MEMORY_BYTES + 1)


def test_the_full_ledger_counts_everything_against_four_gigabytes() -> None:
    """The capacity of a device, reserve included, is 4 GB."""
    assert MemoryLedger(full_ledger_request(task_tables()[0], 4)).capacity_bytes == MEMORY_BYTES
