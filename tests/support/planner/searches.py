"""Problems, placements and plans of the search under exact costs, and requests drawn at random."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from neuroshard_api.documents.communication import WireType, WireTypes
from neuroshard_api.documents.plan import Plan
from neuroshard_api.documents.plan_parts import DeviceMemory, Shard, TablePlacement
from neuroshard_api.documents.request import (
    ComputePeak,
    Constraints,
    Pipeline,
    PlanRequest,
    SearchSettings,
    TableConstraints,
)
from neuroshard_api.documents.tables import Optimizer, Table
from neuroshard_api.documents.topology import Rack
from neuroshard_api.sharding.kinds import ShardingType
from neuroshard_planner.pipeline import plan
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.problem.tuning import SearchTuning
from neuroshard_planner.search.estimator import tangent
from neuroshard_planner.search.options import OptionTable
from neuroshard_planner.search.proposers import Perturbation
from support import builders
from support.depth import depth
from support.planner.exact_costs import ExactCosts
from support.strategies import trained_types

MIB = 2**20
DEEP = SearchSettings() if depth(0, 1) else builders.QUICK
"""For tests that judge a plan: quick in `make test`, the default settings in `make test-long`."""


def problem_of(request: PlanRequest, *, tuning: SearchTuning | None = None) -> Problem:
    """Return the request as arrays; see Problem for ``tuning``."""
    return Problem(request, ExactCosts(request.topology.device), tuning=tuning)


def planned(request: PlanRequest) -> Plan:
    """Return the plan of the request."""
    return plan(request, bundle=ExactCosts(request.topology.device))


def placed(problem: Problem, *shards: tuple[int, int, int]) -> Placement:
    """Return a placement of shards given as (unit, columns, device)."""
    units = [unit for unit, _, _ in shards]
    sizes = [ShardSize(problem.units[unit].num_rows, columns) for unit, columns, _ in shards]
    return Placement(kinds=problem.kinds_of(units, sizes), devices=np.array([device for _, _, device in shards]))


def shards_of(problem: Problem, placement: Placement) -> list[tuple[int, int, int]]:
    """Return a placement's shards as sorted (unit, columns, device)."""
    kinds = problem.kinds
    return sorted(
        zip(
            kinds.unit[placement.kinds].tolist(),
            kinds.num_columns[placement.kinds].tolist(),
            placement.devices.tolist(),
            strict=True,
        )
    )


def random_placement(problem: Problem, generator: random.Random) -> Placement:
    """Return any split that constraints allow on any allowed devices, whether or not it fits."""
    shards = []
    for index, unit in enumerate(problem.units):
        devices = [d for d in range(problem.num_devices) if problem.allowed is None or problem.allowed[index, d]]
        count = generator.randint(1, min(unit.max_shards, len(devices)))
        spare = (unit.num_columns - count * unit.min_shard_width) // 4
        cuts = sorted(generator.randint(0, spare) for _ in range(count - 1))
        quads = np.diff([0, *cuts, spare])
        widths = [unit.min_shard_width + 4 * int(extra) for extra in quads]
        shards += [
            (index, width, device) for width, device in zip(widths, generator.sample(devices, count), strict=True)
        ]
    return placed(problem, *shards)


def used_bytes(memory: DeviceMemory) -> int:
    """Return all that a device's ledger counts."""
    return sum(
        value
        for name, value in memory.model_dump(exclude_none=True).items()
        if name not in {"capacity_bytes", "host_bytes"}
    )


def assert_valid(request: PlanRequest, plan: Plan) -> None:
    """Check that a plan covers every table once, keeps every constraint and fits."""
    constraints = request.constraints
    on_device: dict[str, set[int]] = {}
    for table, placement in zip(request.tables.tables, plan.tables, strict=True):
        assert placement.name == table.name
        own = constraints.tables.get(table.name, TableConstraints())
        shards = placement.shards
        on_device[table.name] = {shard.device for shard in shards}
        most = request.widest_shard(table)
        is_wide = most is not None and most < table.embedding_dim
        assert is_wide or len(on_device[table.name]) == len(shards), "two shards of a table on one device"
        assert most is None or not is_wide or max(shard.num_columns for shard in shards) <= most
        assert_covered(table, placement, num_devices=request.topology.num_devices)
        least = own.min_shard_width or constraints.min_shard_width
        assert all(shard.num_columns % 4 == 0 for shard in shards)
        pieces = {(shard.column_offset, shard.num_columns) for shard in shards}
        assert len(pieces) == 1 or min(columns for _, columns in pieces) >= least
        assert len(pieces) <= (own.max_shards or constraints.max_shards_per_table or 10**9)
        assert not on_device[table.name] & set(constraints.forbidden_devices)
        assert max(on_device[table.name]) < request.topology.num_devices
        assert own.devices is None or on_device[table.name] <= set(own.devices)
    groups: dict[str, set[str]] = {}
    for table in request.tables.tables:
        if table.colocation_group is not None:
            groups.setdefault(table.colocation_group, set()).add(table.name)
    for group in [*groups.values(), *map(set, constraints.colocate)]:
        assert len(set.union(*(on_device[name] for name in group))) == 1, f"{group} is not together and whole"
    assert len(plan.memory) == request.topology.num_devices
    for memory in plan.memory:
        assert used_bytes(memory) <= memory.capacity_bytes


def assert_covered(table: Table, placement: TablePlacement, *, num_devices: int) -> None:
    """Check that copies are whole and everywhere, and that other shards hold each element once, in order."""
    shards = placement.shards
    if placement.sharding_type is ShardingType.DATA_PARALLEL:
        assert {shard.device for shard in shards} == set(range(num_devices))
        assert all(
            (shard.num_rows, shard.num_columns) == (table.num_embeddings, table.embedding_dim) for shard in shards
        )
        return
    by_column: dict[tuple[int, int], list[Shard]] = {}
    for shard in shards:
        by_column.setdefault((shard.column_offset, shard.num_columns), []).append(shard)
    assert covers(sorted(by_column), table.embedding_dim), "columns overlap or are missing"
    for blocks in by_column.values():
        rows = [(shard.row_offset, shard.num_rows) for shard in blocks]
        assert covers(rows, table.num_embeddings), "rows overlap, are missing, or out of order"
        assert not placement.sharding_type.is_by_columns or len(rows) == 1


def covers(parts: Sequence[tuple[int, int]], size: int) -> bool:
    """Whether parts, each its offset and length, follow one another from 0 to the size."""
    ends = [offset + length for offset, length in parts]
    return [offset for offset, _ in parts] == [0, *ends[:-1]] and ends[-1] == size


@st.composite
def search_tables(draw: st.DrawFn, name: str, optimizer: Optimizer) -> Table:
    """Draw a table from a few rows to more than most devices of ``search_requests`` hold."""
    return builders.table(
        name,
        num_embeddings=draw(st.sampled_from([1, 1000, 200_000, 3_000_000, 20_000_000])),
        embedding_dim=draw(st.sampled_from([4, 8, 12, 36, 64, 128, 256])),
        feature_names=draw(st.sampled_from([(), tuple(f"{name}_{feature}" for feature in range(5))])),
        pooling_factor=draw(st.sampled_from([0.01, 1.0, 3.5, 80.0])),
        data_type=draw(st.sampled_from(trained_types(optimizer))),
        zipf_exponent=draw(st.sampled_from([None, 0.0, 1.2])),
    )


@st.composite
def search_constraints(draw: st.DrawFn, names: Sequence[str], num_devices: int) -> Constraints:
    """Draw constraints that leave every table a device."""
    forbidden = draw(st.sets(st.integers(0, num_devices - 1), max_size=num_devices - 1))
    free = sorted(set(range(num_devices)) - forbidden)
    group = draw(st.lists(st.sampled_from(list(names)), max_size=3, unique=True))
    own: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(list(names)), max_size=3, unique=True)):
        can_pin = name not in group
        own[name] = TableConstraints(
            devices=tuple(draw(st.lists(st.sampled_from(free), min_size=1, max_size=3))) if can_pin else None,
            max_shards=draw(st.none() | st.integers(1, 4)),
            min_shard_width=draw(st.sampled_from([None, 4, 32, 8192])),
        )
    return Constraints(
        forbidden_devices=tuple(sorted(forbidden)),
        max_shards_per_table=draw(st.none() | st.integers(1, 6)),
        min_shard_width=draw(st.sampled_from([4, 12, 64])),
        colocate=(tuple(group),) if group else (),
        tables=own,
    )


@st.composite
def search_requests(draw: st.DrawFn, *, types: tuple[ShardingType, ...] | None = BY_COLUMNS) -> PlanRequest:
    """Draw a small request that contradicts nothing; it may be infeasible. None: it names no types."""
    names = [f"t{index}" for index in range(draw(st.integers(1, 9)))]
    optimizer = draw(st.sampled_from(Optimizer))
    num_nodes, per_node = draw(st.sampled_from([(1, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 4), (4, 2)]))
    near = builders.topology()
    links = [None, near.intra_node, near.inter_node] if num_nodes > 2 else [None]  # two racks of two
    link = draw(st.sampled_from(links))
    limits = draw(search_constraints(names, num_nodes * per_node)) if draw(st.booleans()) else Constraints()
    return builders.request(
        *(draw(search_tables(name, optimizer)) for name in names),
        topology=builders.topology(
            num_nodes * per_node,
            num_nodes=num_nodes,
            rack=None if link is None else Rack(num_nodes=2, link=link),
            memory_bytes=draw(st.sampled_from([200 * MIB, 1500 * MIB, 6 * builders.GIB, 80 * builders.GIB])),
        ),
        batch_size_per_device=draw(st.sampled_from([1, 512])),
        optimizer=optimizer,
        pipeline=draw(st.sampled_from(Pipeline)),
        compute_peak=draw(st.sampled_from(ComputePeak)),
        wire=draw(st.sampled_from([None, WireTypes(forward=WireType.FP16, backward=WireType.FP16)])),
        constraints=limits.model_copy(update={"sharding_types": types}),
        search=SearchSettings(
            seed=draw(st.integers(0, 3)),
            work_budget=draw(st.sampled_from([None, 1, 100])),
        ),
    )


def perturbation(problem: Problem, seed: int) -> Perturbation:
    """Return the perturbation of a problem, drawn by a generator of this seed."""
    sums = problem.kinds.representation[problem.whole].sum(axis=0) / problem.num_devices
    generator = np.random.default_rng(seed)
    return Perturbation(problem, OptionTable(problem), slopes=tangent(problem, sums), generator=generator)
