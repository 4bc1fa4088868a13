"""What binds a request without a plan, and remedies that do what they say."""

import re

import pytest
from hypothesis import assume, given
from neuroshard_api.documents.request import Constraints, MemorySettings, PlanRequest, TableConstraints
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_planner.errors import InfeasibleError, PlannerError
from support.builders import GIB, request, table, tables, topology
from support.depth import generated
from support.planner.searches import assert_valid, planned, search_requests

WHOLE = Constraints(sharding_types=(ShardingType.TABLE_WISE,))


def message_of(asked: PlanRequest) -> str:
    """Return the error's sentence."""
    with pytest.raises(InfeasibleError) as error:
        planned(asked)
    return str(error.value)


def bytes_of(text: str) -> int:
    """Return a size of a message."""
    number, unit = text.split()
    return int(float(number.replace(",", "")) * {"B": 1, "GiB": GIB, "TiB": 1024 * GIB}[unit])


def remedied(asked: PlanRequest, message: str) -> list[PlanRequest]:
    """Return the request with each remedy of the message applied as it is written."""
    topology_ = asked.topology
    results = []
    limits = r"(devices with|constraints\.max_memory_bytes_per_device of|,)"
    for found in re.finditer(rf"{limits} ([\d,.]+ \w+)(?: of memory)? would do", message):
        num_bytes = bytes_of(found[2])
        device = topology_.device
        if found[1] != "constraints.max_memory_bytes_per_device of" or "devices with, and" in message:
            device = device.model_copy(update={"memory_bytes": num_bytes})
        limit = asked.constraints.max_memory_bytes_per_device
        constraints = asked.constraints.model_copy(update={"max_memory_bytes_per_device": limit and num_bytes})
        larger = topology_.model_copy(update={"device": device})
        results.append(asked.model_copy(update={"topology": larger, "constraints": constraints}))
    for found in re.finditer(r"(\d+) devices(?: \((\d+) nodes\))? of this kind would do", message):
        larger = topology_.model_copy(update={"num_nodes": int(found[2] or found[1])})
        results.append(asked.model_copy(update={"topology": larger}))
    return results


CASES = [
    pytest.param(
        request(*tables(3), memory=MemorySettings(dense_bytes=79 * GIB)),
        "no memory is left for shards on any device",
        1,
        id="dense part",
    ),
    pytest.param(
        request(table("huge", num_embeddings=10**10, embedding_dim=64), table("small"), constraints=WHOLE),
        r"table 'huge' needs [\d,.]+ TiB on one device as it may not be split",
        1,
        id="a table too large for any device",
    ),
    pytest.param(
        request(table("huge", num_embeddings=10**12, embedding_dim=8)),
        r"table 'huge' needs [\d,.]+ TiB on one device even split into 2 shards",
        1,
        id="a table too large even when split",
    ),
    pytest.param(
        request(
            *tables(4, num_embeddings=10**8),
            constraints=Constraints(colocate=(("t1", "t2", "t3"),)),
            topology=topology(4, memory_bytes=60 * GIB),
        ),
        r"the co-located group of table 't1' \(3 tables\) needs",
        1,
        id="a group too large for any device",
    ),
    pytest.param(
        request(
            *tables(4, num_embeddings=10**8),
            topology=topology(4, memory_bytes=60 * GIB),
            constraints=Constraints(tables={f"t{index}": TableConstraints(devices=(2,)) for index in range(3)}),
        ),
        "device 2: the tables pinned to it need",
        1,
        id="pinned together",
    ),
    pytest.param(
        request(*tables(12, num_embeddings=10**8), topology=topology(4, memory_bytes=60 * GIB)),
        r"the tables need [\d,.]+ GiB, 4 devices offer [\d,.]+ GiB",
        2,
        id="total",
    ),
    pytest.param(
        request(
            *tables(12, num_embeddings=10**8),
            constraints=Constraints(forbidden_devices=(0,)),
        ),
        r"the tables need [\d,.]+ GiB, 3 devices offer",
        2,
        id="total on allowed devices",
    ),
    pytest.param(
        request(*tables(5, num_embeddings=10**8), topology=topology(4, memory_bytes=45 * GIB), constraints=WHOLE),
        r"no placement of them was found under the constraints; the largest table is 't0'",
        2,
        id="fragmentation",
    ),
    pytest.param(
        request(*tables(4, num_embeddings=10**8), constraints=Constraints(max_memory_bytes_per_device=10 * GIB)),
        "constraints.max_memory_bytes_per_device of",
        2,
        id="limited memory",
    ),
    pytest.param(
        request(*tables(40, num_embeddings=10**8), constraints=Constraints(max_memory_bytes_per_device=10 * GIB)),
        "devices with, and constraints.max_memory_bytes_per_device of,",
        2,
        id="limited memory beyond the device",
    ),
    pytest.param(
        request(
            table(num_embeddings=1, embedding_dim=4), topology=topology(1, memory_bytes=50), batch_size_per_device=1
        ),
        "table 'user' needs",
        1,
        id="a device of fifty bytes",
    ),
]


@pytest.mark.parametrize(("asked", "cause", "num_remedies"), CASES)
def test_the_message_names_what_binds_and_its_remedies_work(asked: PlanRequest, cause: str, num_remedies: int) -> None:
    """Each proposed change, applied alone as it is written, gives a plan."""
    message = message_of(asked)

    assert re.search(cause, message), message
    changed = remedied(asked, message)
    assert len(changed) == num_remedies, message
    for each in changed:
        assert_valid(each, planned(each))


@generated(3, 15)
@given(asked=search_requests())
def test_every_remedy_works(asked: PlanRequest) -> None:
    """Over random infeasible requests."""
    try:
        planned(asked)
        assume(condition=False)
    except InfeasibleError as error:
        message = str(error)

    for each in remedied(asked, message):
        try:
            found = planned(each)
        except PlannerError as error:
            pytest.fail(f"{message}\nbut then: {error}")
        assert_valid(each, found)


def test_a_large_infeasible_request_is_answered_soon() -> None:
    """Three hundred tables on 32 devices that lack memory for most of them."""
    members = [
        table(f"t{index}", num_embeddings=10**6 * (index % 89 + 10), embedding_dim=64 * (index % 4 + 1))
        for index in range(300)
    ]

    message = message_of(request(*members, topology=topology(32, memory_bytes=40 * GIB)))

    assert "32 devices offer" in message


def test_on_one_device_nothing_is_called_pinned_and_no_node_is_counted() -> None:
    """The sentence names what was asked for: no table has a device of its own, and a node is a device."""
    message = message_of(request(*tables(4, num_embeddings=100_000_000), num_devices=1, constraints=WHOLE))

    assert message.startswith("device 0: the tables, which may lie on no other, need ")
    assert "pinned" not in message
    assert " 2 devices of this kind would do" in message


def test_a_set_of_variants_that_does_not_fit_names_how_many_do() -> None:
    """As many as have a plan, and not one more."""
    members = [
        table(f"{variant}:{own}", num_embeddings=10**8, embedding_dim=64)
        for variant in ("base", "fast", "slow", "wide")
        for own in ("user", "item")
    ]
    asked = request(*members, topology=topology(2, memory_bytes=80 * GIB))
    message = message_of(asked)

    assert "; or train 3 of the 4 variants in this job (spec.variants)" in message
    assert_valid(fitting := request(*members[:6], topology=asked.topology), planned(fitting))
    assert "variants" not in message_of(request(*members[:7], topology=asked.topology))


HUGE = table("huge", num_embeddings=10**12, embedding_dim=8)


def test_where_rows_may_be_the_message_says_that_the_remedy_is_by_columns() -> None:
    """By rows a table may need less."""
    asked = request(HUGE, constraints=Constraints(sharding_types=tuple(ShardingType)))

    message = message_of(asked)

    assert "table 'huge' needs" in message
    assert "so it is by columns, and no plan with rows or copies was found; hint: by columns, devices with" in message
    (changed,) = remedied(asked, message)
    assert_valid(changed, planned(changed))


def gib_after(message: str, words: str) -> float:
    """Return the memory that a message gives after some words, in GiB."""
    found = re.search(rf"{words} ([\d,.]+ \w+)", message)
    assert found is not None, message
    return bytes_of(found[1]) / GIB


COPIED = (ShardingType.DATA_PARALLEL,)
LARGE_ROWS, LARGE_COLUMNS = 10**7, 64
LARGE_COPY_GIB = 3 * 4 * LARGE_ROWS * LARGE_COLUMNS / GIB
KEPT_FREE = MemorySettings(reserve_fraction=0.1)  # no gaps next to the gradients of copies
"""Weights of a large table, and its gradient in kernel and bucket."""


def test_copies_that_exceed_a_device_are_named_with_their_memory_on_each() -> None:
    """All tables have a copy there, whatever the devices hold together."""
    members = tables(3, num_embeddings=LARGE_ROWS, embedding_dim=LARGE_COLUMNS)
    nodes = topology(4, memory_bytes=20 * GIB)

    copied = request(*members, constraints=Constraints(sharding_types=COPIED), topology=nodes, memory=KEPT_FREE)
    message = message_of(copied)

    largest = gib_after(message, "the largest of them is 't0' with")
    assert largest == pytest.approx(LARGE_COPY_GIB, rel=0.01)
    assert gib_after(message, "the tables that may be data_parallel alone need") == pytest.approx(3 * largest, rel=0.01)
    assert "by columns" not in message
    assert "hint: give these tables another sharding type too" in message
    assert "give more devices" not in message
    assert "host memory" not in message


def test_the_memory_of_all_tables_counts_each_copy() -> None:
    """Two devices that would have room for one copy and another table do not have it for two copies."""
    members = tables(2, num_embeddings=LARGE_ROWS, embedding_dim=LARGE_COLUMNS)
    constraints = Constraints(
        sharding_types=WHOLE.sharding_types, tables={"t0": TableConstraints(sharding_types=COPIED)}
    )

    nodes = topology(2, memory_bytes=9 * GIB)
    message = message_of(request(*members, constraints=constraints, topology=nodes, memory=KEPT_FREE))

    largest = gib_after(message, "the largest table is 't0' with")
    assert largest == pytest.approx(2 * LARGE_COPY_GIB, rel=0.01)
    assert "GiB in 2 copies" in message
    assert gib_after(message, "the tables need") > largest


def test_no_remedy_by_columns_is_named_for_a_table_that_may_not_be_by_columns() -> None:
    """What would be enough by columns may not be enough for it."""
    message = message_of(request(HUGE, constraints=Constraints(sharding_types=(ShardingType.ROW_WISE,))))

    assert "no plan with rows or copies was found; hint: give more devices or memory, or lower batch_size" in message
    assert "would do" not in message
