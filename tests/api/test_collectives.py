"""Collectives of a step, by names that predictions and measurements share."""

import pytest
from neuroshard_api.documents.document import DocumentError, validated
from neuroshard_api.sharding.collectives import CollectiveKind, CollectiveTime
from neuroshard_api.sharding.kinds import Family, ShardingType


def test_every_sharding_type_has_a_family() -> None:
    """Types that TorchRec exchanges alike share one."""
    assert {kind: Family.of(kind) for kind in ShardingType} == {
        ShardingType.TABLE_WISE: Family.COLUMNS,
        ShardingType.COLUMN_WISE: Family.COLUMNS,
        ShardingType.ROW_WISE: Family.ROWS,
        ShardingType.TABLE_ROW_WISE: Family.NODE_ROWS,
        ShardingType.GRID: Family.NODE_ROWS,
        ShardingType.DATA_PARALLEL: Family.REPLICATED,
    }


@pytest.mark.parametrize(("field", "value"), [("forward_ms", -1.0), ("kind", "broadcast"), ("family", "tables")])
def test_a_time_that_cannot_be_is_refused(field: str, value: object) -> None:
    """The message names the field."""
    raw = {"kind": CollectiveKind.ALL_TO_ALL, "family": Family.COLUMNS, "forward_ms": 1.0, field: value}

    with pytest.raises(DocumentError, match=field):
        validated(CollectiveTime, raw, where="collectives[0]")
