"""The plan's checks: nothing to say of what the search makes, exactly one sentence for each kind of damage."""

from collections.abc import Callable, Sequence
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.documents.plan import GivenPlan, Plan
from neuroshard_api.documents.plan_parts import BaselineCost, Shard, TablePlacement
from neuroshard_api.documents.request import Algorithm, Constraints, PlanRequest, TableConstraints
from neuroshard_api.sharding.kinds import ComputeKernel, ShardingType
from neuroshard_costs.memory_ledger import MemoryLedger, tables_memory
from neuroshard_planner.errors import InfeasibleError, PlanError
from neuroshard_planner.pipeline import plan as search
from neuroshard_planner.plans.checks import plan_problems, require_sound
from support import builders
from support.depth import generated
from support.planner.exact_costs import ExactCosts
from support.planner.placements import by_columns, by_rows, everywhere, given_plan, grid, on_host, on_node

NUM_DEVICES = 4
TABLES = tuple(
    builders.table(name, num_embeddings=1000, embedding_dim=columns)
    for name, columns in (("a", 64), ("b", 48), ("c", 32), ("d", 16))
)


@cache
def sound_plan(algorithm: Algorithm = Algorithm.DIM_GREEDY) -> Plan:
    """Return a plan of four whole tables, one on each device."""
    request = builders.request(*TABLES, num_devices=NUM_DEVICES, algorithm=algorithm)
    return search(request, bundle=ExactCosts(request.topology.device))


def with_tables(plan: Plan, tables: Sequence[TablePlacement], request: PlanRequest | None = None) -> Plan:
    """Return the plan with other tables (and another request), ledger and column sums brought up to date."""
    request = request or plan.request
    columns = [0] * NUM_DEVICES
    for table in tables:
        for shard in table.shards:
            columns[shard.device] += shard.num_columns
    devices = tuple(
        cost.model_copy(update={"embedding_dim_sum": total})
        for cost, total in zip(plan.predicted.devices, columns, strict=True)
    )
    return plan.model_copy(
        update={
            "tables": tuple(tables),
            "request": request,
            "memory": tables_memory(MemoryLedger(request), tables),
            "predicted": plan.predicted.model_copy(update={"devices": devices}),
        }
    )


def placed(name: str, *shards: tuple[int, int, int], kind: ShardingType = ShardingType.COLUMN_WISE) -> TablePlacement:
    """Return a table of a thousand rows in shards (device, column offset, columns)."""
    return TablePlacement(
        name=name,
        sharding_type=kind,
        shards=tuple(
            Shard(device=device, num_rows=1000, column_offset=offset, num_columns=columns)
            for device, offset, columns in shards
        ),
    )


def with_first(table: TablePlacement) -> Plan:
    """Return the sound plan with its first table replaced and nothing else."""
    plan = sound_plan()
    return plan.model_copy(update={"tables": (table, *plan.tables[1:])})


def constrained(constraints: Constraints, *first: tuple[int, int, int]) -> Plan:
    """Return a plan under constraints it was not made for; table a is in these shards, or stays where it is."""
    plan = sound_plan()
    request = plan.request.model_copy(update={"constraints": constraints})
    tables = plan.tables if not first else (placed("a", *first), *plan.tables[1:])
    return with_tables(plan, tables, request)


def changed(path: str, value: object) -> Plan:
    """Return the sound plan with one value of its document replaced."""
    return Plan.from_data(builders.data_with(sound_plan(), path, value))


def device_of(name: str) -> int:
    """Return the device of a table in the sound plan."""
    return next(table.shards[0].device for table in sound_plan().tables if table.name == name)


def overfull() -> Plan:
    """Return a plan whose ledger is right, under a limit that it does not keep on any device but by a byte on one."""
    plan = sound_plan()
    peak = max(
        entry.weights_bytes + entry.optimizer_state_bytes + entry.activation_bytes + entry.input_bytes
        for entry in plan.memory
    )
    limit = Constraints(max_memory_bytes_per_device=peak - 1)
    request = plan.request.model_copy(
        update={"constraints": limit, "memory": plan.request.memory.model_copy(update={"reserve_fraction": 0.0})}
    )
    return with_tables(plan, plan.tables, request)


DAMAGE: dict[str, tuple[Callable[[], Plan], str]] = {
    "missing table": (lambda: sound_plan().model_copy(update={"tables": sound_plan().tables[1:]}), "tables: 'a'"),
    "unknown table": (
        lambda: sound_plan().model_copy(update={"tables": (*sound_plan().tables, placed("x", (0, 0, 4), (1, 4, 4)))}),
        "tables[4].name: there is no table 'x'",
    ),
    "repeated table": (
        lambda: sound_plan().model_copy(update={"tables": (*sound_plan().tables, sound_plan().tables[0])}),
        "tables: 'a' is in the plan 2 times",
    ),
    "other order": (
        lambda: sound_plan().model_copy(update={"tables": sound_plan().tables[::-1]}),
        "tables[0].name: is 'd', the request has 'a' there",
    ),
    "no such device": (
        lambda: with_first(placed("a", (4, 0, 64), kind=ShardingType.TABLE_WISE)),
        "tables[0].shards[0].device: device 4 does not exist",
    ),
    "overlap": (lambda: with_first(placed("a", (0, 0, 36), (1, 32, 32))), "tables[0].shards: shards 0 and 1 overlap"),
    "gap": (lambda: with_first(placed("a", (0, 0, 28), (1, 32, 32))), "tables[0].shards: cover 60000 of 64000"),
    "out of range": (lambda: with_first(placed("a", (0, 0, 32), (1, 32, 36))), "tables[0].shards[1]: reaches"),
    "one shard is not column-wise": (
        lambda: with_first(placed("a", (0, 0, 64))),
        "tables[0].sharding_type: column_wise means",
    ),
    "two shards are not table-wise": (
        lambda: with_first(placed("a", (0, 0, 32), (1, 32, 32), kind=ShardingType.TABLE_WISE)),
        "tables[0].sharding_type: table_wise means one shard",
    ),
    "data-parallel on one device": (
        lambda: with_first(placed("a", (0, 0, 64), kind=ShardingType.DATA_PARALLEL)),
        "tables[0].sharding_type: data_parallel means the whole table on every device",
    ),
    "odd width": (
        lambda: with_first(placed("a", (0, 0, 30), (1, 30, 34))),
        "tables[0].shards[0].num_columns: must be a multiple of 4",
    ),
    "forbidden device": (
        lambda: constrained(Constraints(forbidden_devices=(device_of("a"),))),
        "tables[0].shards: 'a' is on devices",
    ),
    "device that is not allowed": (
        lambda: constrained(Constraints(tables={"a": TableConstraints(devices=((device_of("a") + 1) % 4,))})),
        "tables[0].shards: 'a' is on devices",
    ),
    "too many shards": (
        lambda: constrained(Constraints(max_shards_per_table=2), (0, 0, 20), (1, 20, 20), (2, 40, 24)),
        "tables[0].shards: 'a' has 3 shards, the constraints allow 2",
    ),
    "too many shards for what the table says itself": (
        lambda: constrained(
            Constraints(max_shards_per_table=3, tables={"a": TableConstraints(max_shards=2)}),
            (0, 0, 20),
            (1, 20, 20),
            (2, 40, 24),
        ),
        "tables[0].shards: 'a' has 3 shards, the constraints allow 2",
    ),
    "too narrow": (
        lambda: constrained(Constraints(min_shard_width=16), (0, 0, 12), (1, 12, 52)),
        "tables[0].shards: 'a' has a shard of 12 columns",
    ),
    "not co-located": (
        lambda: constrained(Constraints(colocate=(("a", "b"),))),
        "tables[0].shards: 'a', 'b' must be whole on one device",
    ),
    "request against itself": (
        lambda: constrained(Constraints(forbidden_devices=(9,))),
        "request.constraints.forbidden_devices: device 9 does not exist",
    ),
    "ledger of another plan": (
        lambda: changed("memory.0.weights_bytes", 1),
        "memory[0].weights_bytes: is 1",
    ),
    "ledger of fewer devices": (
        lambda: sound_plan().model_copy(update={"memory": sound_plan().memory[1:]}),
        "memory: has 3 entries",
    ),
    "more than fits": (overfull, "memory["),
    "costs of fewer devices": (
        lambda: sound_plan().model_copy(
            update={
                "predicted": sound_plan().predicted.model_copy(update={"devices": sound_plan().predicted.devices[1:]})
            }
        ),
        "predicted.devices: has 3 entries",
    ),
    "columns that are not there": (
        lambda: changed("predicted.devices.0.embedding_dim_sum", 4096),
        "predicted.devices[0].embedding_dim_sum: is 4096",
    ),
    "indices that are not there": (
        lambda: changed("predicted.devices.1.collectives.0.forward_ms", 0.5),
        "predicted.devices[1].input_communication_ms: is",
    ),
    "a collective longer than all": (
        lambda: changed("predicted.devices.0.collectives.1.backward_ms", 7.5),
        "predicted.devices[0].backward_communication_ms: is",
    ),
    "bound above the cost": (
        lambda: changed("lower_bound_ms", 1e6),
        "lower_bound_ms: is 1e+06, above the plan's own cost",
    ),
    "wrong gap": (lambda: changed("gap", 7.5), "gap: is 7.5"),
    "another source": (lambda: changed("predicted.source", "measured:gpu"), "predicted.source: is 'measured:gpu'"),
    "baseline without a result": (
        lambda: sound_plan().model_copy(update={"baselines": (BaselineCost(algorithm=Algorithm.RANDOM),)}),
        "baselines[0]: gives neither or both",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_each_kind_of_damage_is_one_problem(case: str) -> None:
    """A damaged plan has exactly the expected sentence, which begins with the field's path."""
    damaged, expected = DAMAGE[case]

    problems = plan_problems(damaged())

    assert len(problems) == 1
    assert problems[0].startswith(expected)


def test_dense_updates_without_copies_are_named() -> None:
    """Only data_parallel tables have a dense optimizer; the device's total grows by it."""
    problems = plan_problems(changed("predicted.devices.2.dense_update_ms", 0.25))

    assert problems[0].startswith("predicted.devices[2].dense_update_ms: is 0.25, and no table is data_parallel")


def test_time_on_the_host_link_without_a_table_there_is_named() -> None:
    """As dense updates without copies."""
    problems = plan_problems(changed("predicted.devices.2.host_link_ms", 0.25))

    assert problems[0].startswith("predicted.devices[2].host_link_ms: is 0.25, and no shard there is in host memory")


def test_tables_that_a_nodes_host_memory_does_not_hold_are_named() -> None:
    """Of all devices of the node together; the ledger is right but for that."""
    nodes = builders.topology(NUM_DEVICES, host_memory=builders.host_memory(2**10))
    plan = sound_plan()
    request = plan.request.model_copy(update={"topology": nodes})
    first = on_host(plan.tables[0])
    moved = with_tables(plan, (first, *plan.tables[1:]), request)
    needed = TABLES[0].num_embeddings * TABLES[0].embedding_dim * 4

    assert plan_problems(moved) == [
        (
            f"memory: tables of node 0 need {needed} bytes of host memory, it has {2**10} for them; move some to "
            "another node or to device memory, or give nodes with more"
        )
    ]


def test_a_co_located_table_in_host_memory_is_named() -> None:
    """The search never puts one there, and has no price for it."""
    nodes = builders.topology(NUM_DEVICES, host_memory=builders.host_memory())
    pair = [table.model_copy(update={"colocation_group": "pair"}) for table in TABLES[:2]]
    request = PlanRequest(tables=builders.table_set(*pair), topology=nodes)
    plan = given_plan(request, *(on_host(by_columns(table, (0, table.embedding_dim))) for table in pair))

    assert plan_problems(plan) == [
        f"tables[{index}].kernel: {table.name!r} is co-located, such tables run with fused; hint: leave it out"
        for index, table in enumerate(pair)
    ]


def test_a_total_that_no_device_takes_is_named() -> None:
    """The total must be the slowest device's, and the gap follows the total: both are reported."""
    problems = plan_problems(changed("predicted.total_ms", 1e3))

    assert [problem.split(":")[0] for problem in problems] == ["predicted.total_ms", "gap"]


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if each is not Algorithm.TORCHREC])
def test_plans_of_every_algorithm_have_no_problems(algorithm: Algorithm) -> None:
    """What the planner writes down matches its request."""
    assert plan_problems(sound_plan(algorithm)) == []


@given(
    widths=st.lists(st.integers(1, 32).map(lambda quads: quads * 4), min_size=1, max_size=8),
    rows=st.integers(1, 10**7),
    memory_gib=st.integers(1, 8),
    num_nodes=st.sampled_from([1, 2]),
    max_shards=st.none() | st.integers(1, 4),
    min_shard_width=st.sampled_from([4, 16]),
    forbidden=st.sampled_from([(), (0,), (1, 2)]),
    group_size=st.integers(0, 3),
)
@generated(5, 12)
def test_every_plan_of_the_search_has_no_problems(
    *,
    widths: list[int],
    rows: int,
    memory_gib: int,
    num_nodes: int,
    max_shards: int | None,
    min_shard_width: int,
    forbidden: tuple[int, ...],
    group_size: int,
) -> None:
    """Whatever the tables, the memory and the constraints, a plan keeps to them, or there is none."""
    members = [
        builders.table(f"t{index}", num_embeddings=rows, embedding_dim=width) for index, width in enumerate(widths)
    ]
    group = tuple(member.name for member in members[:group_size])
    request = builders.request(
        *members,
        topology=builders.topology(NUM_DEVICES, num_nodes=num_nodes, memory_bytes=memory_gib * builders.GIB),
        constraints=Constraints(
            max_shards_per_table=max_shards,
            min_shard_width=min_shard_width,
            forbidden_devices=forbidden,
            colocate=(group,) if group else (),
        ),
    )
    try:
        plan = search(request, bundle=ExactCosts(request.topology.device))
    except InfeasibleError:
        return

    assert plan_problems(plan) == []


def without_price(first: TablePlacement, constraints: Constraints | None = None) -> GivenPlan:
    """Return the sound plan without its price, table a placed so, under these constraints."""
    plan = sound_plan()
    request = plan.request.model_copy(update={"constraints": constraints or Constraints()})
    return given_plan(request, first, *plan.tables[1:])


A, DEVICES = TABLES[0], builders.topology(NUM_DEVICES)
FAMILIES = {
    "row_wise": by_rows(A, DEVICES),
    "table_row_wise": on_node(A, 0, DEVICES),
    "grid_shard": grid(A, DEVICES, (0, 32), (0, 32)),
    "data_parallel": everywhere(A, DEVICES),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_placements_of_every_family_are_checked_with_and_without_a_price(family: str) -> None:
    """The plan matches its request; a ledger and columns of other shards do not."""
    assert plan_problems(without_price(FAMILIES[family])) == []
    problems = plan_problems(with_first(FAMILIES[family]))
    assert any(problem.startswith("memory[0].") for problem in problems)
    assert any(".embedding_dim_sum: " in problem for problem in problems)


@pytest.mark.parametrize(
    ("first", "constraints", "expected"),
    [
        (
            "row_wise",
            Constraints(sharding_types=(ShardingType.TABLE_WISE,), tables={"b": TableConstraints()}),
            "tables[0].sharding_type: 'a' is row_wise, the constraints allow table_wise",
        ),
        (
            "data_parallel",
            Constraints(tables={"a": TableConstraints(compute_kernels=(ComputeKernel.FUSED,))}),
            "tables[0].kernel: 'a' runs with dense, the constraints allow fused",
        ),
        ("data_parallel", Constraints(forbidden_devices=(3,)), "tables[0].shards: 'a' is on devices 0, 1, 2, 3"),
        (
            "row_wise",
            Constraints(tables={"a": TableConstraints(devices=(0, 1, 2))}),
            "tables[0].shards: 'a' is on devices 0, 1, 2, 3, the constraints allow 0, 1, 2",
        ),
        ("grid_shard", Constraints(max_shards_per_table=1), "tables[0].shards: 'a' has 2 shards"),
        ("grid_shard", Constraints(min_shard_width=64), "tables[0].shards: 'a' has a shard of 32 columns"),
        ("table_row_wise", Constraints(colocate=(("a", "b"),)), "tables[0].shards: 'a', 'b' must be whole"),
    ],
    ids=["type", "kernel", "forbidden device", "devices", "blocks", "width", "group"],
)
def test_constraints_hold_for_every_family(first: str, constraints: Constraints, expected: str) -> None:
    """As TorchRec's ParameterConstraints; the sentence names the table and what is allowed."""
    problems = plan_problems(without_price(FAMILIES[first], constraints))

    assert any(problem.startswith(expected) for problem in problems), problems


def test_a_row_cut_counts_every_device() -> None:
    """Every rank pools for all of a table cut by rows, so that devices of a table exclude it."""
    few, many = builders.table("few", num_embeddings=7), builders.table("many")
    constraints = Constraints(tables={"few": TableConstraints(devices=(0, 1))})
    request = builders.request(few, many, num_devices=NUM_DEVICES, constraints=constraints)

    (problem,) = plan_problems(given_plan(request, by_rows(few, DEVICES), by_rows(many, DEVICES)))

    assert problem.startswith("tables[0].shards: 'few' is on devices 0, 1, 2, 3")


def test_a_damaged_plan_is_refused_with_its_first_problems() -> None:
    """Anyone who goes on with a plan gets an error that lists what is wrong."""
    with pytest.raises(PlanError, match=r"does not match its request: gap: is 7\.5.*make it again"):
        require_sound(changed("gap", 7.5))
