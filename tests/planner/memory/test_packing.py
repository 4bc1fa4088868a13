"""Packing by memory alone."""

import pytest
from neuroshard_api.documents.request import Constraints, MemorySettings, TableConstraints
from neuroshard_costs.memory_ledger import SORT_BYTES
from neuroshard_planner.memory.packing import Packing, Piece
from support.builders import GIB, request, table, topology


def packing_of(
    *sizes_gib: float, num_devices: int, embedding_dim: int = 64, constraints: Constraints | None = None
) -> Packing:
    """Return the memory side of tables of about these sizes; activations and inputs are a few bytes."""
    row_bytes = embedding_dim * 4 + 4
    members = [
        table(f"t{index}", num_embeddings=int(size * GIB / row_bytes), embedding_dim=embedding_dim)
        for index, size in enumerate(sizes_gib)
    ]
    return Packing(
        request(
            *members,
            topology=topology(num_devices),
            batch_size_per_device=1,
            memory=MemorySettings(reserve_fraction=0.0),
            constraints=constraints or Constraints(),
        )
    )


def assert_packed(packing: Packing, pieces: list[Piece] | None, capacity_bytes: int) -> None:
    """Check that the pieces cover every unit within the capacity and the units' limits."""
    assert pieces is not None
    used = [0] * packing.num_devices
    for piece in pieces:
        used[piece.device] += packing.bytes_of(piece.unit, piece.num_columns)
    assert max(used) <= capacity_bytes
    for index, unit in enumerate(packing.units):
        own = [piece for piece in pieces if piece.unit == index]
        assert sum(piece.num_columns for piece in own) == unit.num_columns
        assert len({piece.device for piece in own}) == len(own) <= unit.max_shards
        assert min(piece.num_columns for piece in own) >= unit.min_shard_width


@pytest.mark.parametrize(
    ("sizes", "num_devices", "capacity_gib", "shards"),
    [
        pytest.param((6, 5, 4, 3, 2), 2, 10.01, 1, id="whole, exactly full"),
        pytest.param((4, 4, 4, 3, 3, 3, 3), 2, 12.01, 1, id="whole, greedy by size fails"),
        pytest.param((30,), 4, 8, None, id="one table over all devices"),
        pytest.param((9, 9, 9), 4, 7.5, None, id="every table in parts"),
        pytest.param((1, 1, 20), 3, 8, None, id="a large one around small ones"),
    ],
)
def test_what_fits_is_packed(
    sizes: tuple[float, ...], num_devices: int, capacity_gib: float, shards: int | None
) -> None:
    """Whole where splitting is forbidden, in parts where it must be."""
    packing = packing_of(*sizes, num_devices=num_devices, constraints=Constraints(max_shards_per_table=shards))
    capacity_bytes = int(capacity_gib * GIB)

    assert_packed(packing, packing.pack(capacity_bytes), capacity_bytes)


@pytest.mark.parametrize(
    ("sizes", "capacity_gib", "constraints"),
    [
        pytest.param((6, 6, 6), 8, Constraints(max_shards_per_table=1), id="fragmentation"),
        pytest.param((6, 6, 6), 8.9, Constraints(), id="total"),
        pytest.param((6, 6), 8, Constraints(forbidden_devices=(0,)), id="forbidden device"),
        pytest.param((6, 6), 8, Constraints(colocate=(("t0", "t1"),)), id="group"),
        pytest.param(
            (6, 6),
            8,
            Constraints(tables={name: TableConstraints(devices=(1,)) for name in ("t0", "t1")}),
            id="pinned",
        ),
        pytest.param((10, 1), 5.4, Constraints(min_shard_width=32, max_shards_per_table=2), id="width"),
    ],
)
def test_what_does_not_fit_two_devices_is_not_packed(
    sizes: tuple[float, ...], capacity_gib: float, constraints: Constraints
) -> None:
    """None says so."""
    packing = packing_of(*sizes, num_devices=2, constraints=constraints)

    assert packing.pack(int(capacity_gib * GIB)) is None


def test_pinned_tables_are_packed_first() -> None:
    """A larger free table would otherwise take the pinned one's place."""
    packing = packing_of(
        7,
        6,
        num_devices=2,
        constraints=Constraints(max_shards_per_table=1, tables={"t1": TableConstraints(devices=(0,))}),
    )

    pieces = packing.pack(8 * GIB)

    assert_packed(packing, pieces, 8 * GIB)
    assert pieces is not None
    assert {piece.unit: piece.device for piece in pieces} == {0: 1, 1: 0}


def test_bytes_are_affine_in_the_columns() -> None:
    """A slice costs its columns' weights and activations, and the row-wise state, inputs and their sort once more."""
    packing = packing_of(1, num_devices=4)
    rows = packing.units[0].num_rows
    num_lookups = 4  # one of each device's sample; as many bags
    inputs = 3 * (8 + 4) + 12  # indices and lengths of two batches and of what is exchanged, offsets of one

    assert packing.bytes_of(0, 64) == packing.whole_bytes[0]
    assert packing.bytes_of(0, 32) + packing.bytes_of(0, 32) - packing.bytes_of(0, 64) == 4 * rows + num_lookups * (
        inputs + SORT_BYTES
    )


def test_devices_that_are_full_by_pins_alone_are_named() -> None:
    """With the bytes that have nowhere else to go."""
    pins = {"t0": TableConstraints(devices=(1,)), "t2": TableConstraints(devices=(1,))}
    packing = packing_of(50, 1, 50, num_devices=2, constraints=Constraints(tables=pins))

    assert packing.overfull_device() == (1, packing.whole_bytes[0] + packing.whole_bytes[2])
    assert packing_of(50, 1, 50, num_devices=2).overfull_device() is None


def test_many_like_devices_do_not_multiply_the_search() -> None:
    """Forty tables in halves at least on 32 devices, a little short of memory: it ends."""
    packing = packing_of(*[48.5] * 40, num_devices=32, constraints=Constraints(min_shard_width=32))

    assert packing.pack(61 * GIB, max_nodes=1000) is None
