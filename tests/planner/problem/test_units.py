"""Constraints resolved to placement units, and what contradicts itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.request import Constraints, PlanRequest, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_planner.errors import RequestError
from neuroshard_planner.problem.units import allowed_devices, even_widths, resolve_units
from support.builders import request, table, tables


def pinned(**devices: tuple[int, ...]) -> dict[str, TableConstraints]:
    """Return constraints that pin tables by name."""
    return {name: TableConstraints(devices=only) for name, only in devices.items()}


def test_a_free_table_may_be_split_down_to_four_columns() -> None:
    """Without constraints the kernel's vector of four elements is the only limit."""
    (unit,) = resolve_units(request(table(embedding_dim=36)))

    assert (unit.num_columns, unit.min_shard_width, unit.max_shards) == (36, 4, 9)


@pytest.mark.parametrize(
    ("constraints", "width", "shards"),
    [
        pytest.param(Constraints(min_shard_width=32), 32, 4, id="width of all"),
        pytest.param(Constraints(min_shard_width=36), 36, 3, id="width that does not divide"),
        pytest.param(Constraints(min_shard_width=8192), 128, 1, id="width beyond the table"),
        pytest.param(Constraints(max_shards_per_table=3), 4, 3, id="shards of all"),
        pytest.param(Constraints(tables={"user": TableConstraints(min_shard_width=64)}), 64, 2, id="own width"),
        pytest.param(
            Constraints(min_shard_width=64, tables={"user": TableConstraints(min_shard_width=8)}),
            8,
            16,
            id="own width goes before all's",
        ),
        pytest.param(
            Constraints(max_shards_per_table=3, tables={"user": TableConstraints(max_shards=5)}),
            4,
            5,
            id="own shards go before all's",
        ),
        pytest.param(Constraints(tables={"user": TableConstraints(max_shards=1)}), 4, 1, id="whole"),
    ],
)
def test_widths_and_counts_bound_the_shards_of_a_table(constraints: Constraints, width: int, shards: int) -> None:
    """The tighter of minimum width and most shards holds; of each, the table's own goes before that of all tables."""
    (unit,) = resolve_units(request(table(embedding_dim=128), constraints=constraints))

    assert (unit.min_shard_width, unit.max_shards) == (width, shards)


def test_a_group_is_one_unit_at_the_place_of_its_first_table() -> None:
    """It has the rows and columns of all its tables and is never split."""
    members = (table("a", colocation_group="g"), table("b", embedding_dim=8), table("c", colocation_group="g"))

    units = resolve_units(request(*members))

    assert [unit.tables for unit in units] == [(0, 2), (1,)]
    assert (units[0].num_rows, units[0].num_columns, units[0].max_shards) == (2_000_000, 128, 1)


def test_a_group_of_one_table_keeps_it_whole() -> None:
    """A group is placed whole on one device, however few its tables."""
    (unit,) = resolve_units(request(table(colocation_group="alone")))

    assert (unit.min_shard_width, unit.max_shards) == (64, 1)


def test_groups_come_from_tables_and_from_the_request() -> None:
    """Both ways to name a group mean the same."""
    members = (*tables(2, colocation_group="g"), table("c"), table("d"))

    units = resolve_units(request(*members, constraints=Constraints(colocate=(("d", "c"),))))

    assert [unit.tables for unit in units] == [(0, 1), (2, 3)]


def test_without_pins_and_forbidden_devices_everything_is_allowed() -> None:
    """None spares the search a matrix that says nothing."""
    asked = request()

    assert allowed_devices(asked, resolve_units(asked)) is None


def test_pins_and_forbidden_devices_meet() -> None:
    """A pinned table keeps its devices that are not forbidden, any other table all but the forbidden ones."""
    asked = request(*tables(2), constraints=Constraints(forbidden_devices=(1,), tables=pinned(t0=(0, 1))))

    allowed = allowed_devices(asked, resolve_units(asked))

    assert allowed is not None
    assert allowed.tolist() == [[True, False, False, False], [True, False, True, True]]


def test_a_group_may_be_where_all_its_pinned_tables_may_be() -> None:
    """The devices of its tables are intersected."""
    asked = request(*tables(2, colocation_group="g"), constraints=Constraints(tables=pinned(t0=(0, 2), t1=(2, 3))))

    allowed = allowed_devices(asked, resolve_units(asked))

    assert allowed is not None
    assert allowed.tolist() == [[False, False, True, False]]


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        pytest.param(
            request(constraints=Constraints(tables=pinned(nobody=(0,)))), r"constraints\.tables\.nobody:", id="no table"
        ),
        pytest.param(
            request(constraints=Constraints(colocate=(("t0", "t1"), ("t2", "nobody")))),
            r"constraints\.colocate\[1\]: .*'nobody'",
            id="no table in a group",
        ),
        pytest.param(
            request(constraints=Constraints(colocate=(("t0", "t1"), ("t1", "t2")))),
            r"constraints\.colocate\[1\]: table 't1' is already in constraints\.colocate\[0\]",
            id="two groups",
        ),
        pytest.param(
            request(*tables(2, colocation_group="g"), constraints=Constraints(colocate=(("t0",),))),
            r"constraints\.colocate\[0\]: table 't0' is already in tables\[\]\.colocation_group 'g'",
            id="group of the table and of the request",
        ),
        pytest.param(
            request(constraints=Constraints(colocate=(("t0", "t0"),))),
            r"constraints\.colocate\[0\]: table 't0' is already in",
            id="twice in a group",
        ),
        pytest.param(
            request(constraints=Constraints(forbidden_devices=(4,))),
            r"constraints\.forbidden_devices: device 4 does not exist.*0 to 3",
            id="no such forbidden device",
        ),
        pytest.param(
            request(constraints=Constraints(tables=pinned(t0=(0, 9)))),
            r"constraints\.tables\.t0\.devices: device 9 does not exist",
            id="no such pinned device",
        ),
        pytest.param(
            request(constraints=Constraints(forbidden_devices=(2,), tables=pinned(t3=(2,)))),
            r"constraints: no device is left for 't3'",
            id="pinned to a forbidden device",
        ),
        pytest.param(
            request(constraints=Constraints(forbidden_devices=(0, 1, 2, 3))),
            r"constraints: no device is left for 't0'",
            id="all devices forbidden",
        ),
        pytest.param(
            request(constraints=Constraints(colocate=(("t1", "t2"),), tables=pinned(t1=(0,), t2=(1,)))),
            r"constraints: no device is left for 't1', 't2'",
            id="a group pinned apart",
        ),
    ],
)
def test_a_contradiction_is_refused_with_the_field_that_holds_it(asked: PlanRequest, path: str) -> None:
    """The message begins with the path of what to change."""
    with pytest.raises(RequestError, match=f"^{path}"):
        allowed_devices(asked, resolve_units(asked))


def test_a_table_that_may_not_be_cut_by_columns_is_one_shard() -> None:
    """The constraint of the table replaces that of all tables."""
    whole = (ShardingType.TABLE_WISE, ShardingType.ROW_WISE)
    own = TableConstraints(sharding_types=(ShardingType.TABLE_WISE, ShardingType.COLUMN_WISE))
    units = resolve_units(
        request(*tables(2, embedding_dim=64), constraints=Constraints(sharding_types=whole, tables={"t1": own}))
    )

    assert [unit.max_shards for unit in units] == [1, 16]


@pytest.mark.parametrize(
    ("num_columns", "count", "expected"),
    [
        (128, 3, (44, 44, 40)),
        (128, 1, (128,)),
        (36, 9, (4,) * 9),
        (12, 2, (8, 4)),
        (8192, 3, (2732, 2732, 2728)),
    ],
)
def test_even_widths_of_some_tables(num_columns: int, count: int, expected: tuple[int, ...]) -> None:
    """Widest first, in whole vectors of four."""
    assert even_widths(num_columns, count) == expected


@given(quads=st.integers(1, 2048), data=st.data())
def test_even_widths_cover_the_table_in_vectors_of_four(quads: int, data: st.DataObject) -> None:
    """They add up, fall, and differ by at most one vector."""
    count = data.draw(st.integers(1, quads))

    widths = even_widths(4 * quads, count)

    assert len(widths) == count
    assert sum(widths) == 4 * quads
    assert all(width % 4 == 0 and width > 0 for width in widths)
    assert list(widths) == sorted(widths, reverse=True)
    assert widths[0] - widths[-1] <= 4
