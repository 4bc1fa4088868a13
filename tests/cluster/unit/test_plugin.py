from types import SimpleNamespace
from typing import Any

import pytest
from neuroshard_cluster.errors import UnknownError
from neuroshard_cluster.held import Row
from neuroshard_cluster.plugin import ROW, Table, cluster_of


def test_each_worker_has_its_own_cluster() -> None:
    """The process that hands out the tests has no worker, and looks at the first cluster."""
    assert [cluster_of(["a", "b"], workers=2, worker=worker) for worker in (0, 1)] == ["a", "b"]
    assert cluster_of(["a"], workers=0, worker=0) == "a"


def test_workers_never_share_a_cluster() -> None:
    """A test may break its cluster, so each worker needs one."""
    with pytest.raises(UnknownError, match=r"2 workers would share 1 clusters \(found --cluster a\)\nhint: "):
        cluster_of(["a"], workers=2, worker=0)


def test_the_table_has_the_rows_of_all_workers() -> None:
    """A report carries the row of its test; the reports of set-up and tear-down carry none."""
    table, rows = Table(rows=[]), [Row(test="a: b", sentence="It holds.", outcome="passed", seconds=1.0)]
    fields = {"test": "a: b", "sentence": "It holds.", "outcome": "passed", "seconds": 1.0, "reason": ""}
    reports: list[Any] = [SimpleNamespace(), SimpleNamespace(**{ROW: fields})]

    for report in reports:
        table.pytest_runtest_logreport(report)

    assert table.rows == rows
