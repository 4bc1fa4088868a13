"""TorchRec's own planner as a baseline, set up so that it answers the same question. Needs torchrec when called.

The request's batch size, pooling factors, links and device; and the memory ledger of this planner in place of
TorchRec's estimates, so that memory means the same for both. TorchRec cuts every table into shards of one width, the
least that ``min_partition`` allows, so that this setting decides much. The planner runs once per width, with table-wise
and column-wise sharding and with all sharding types that the search may use too, in fused kernels
(dense ones for data_parallel tables). The best result under the request's cost model counts. grid_shard is left out for
more than MOST_GRID_TABLES tables, for which TorchRec's planner takes minutes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import DIM_MULTIPLE
from neuroshard_api.process.errors import MissingPackageError
from neuroshard_api.process.generations import kernels_hint
from neuroshard_api.process.missing_package import install_hint
from neuroshard_api.sharding.kinds import ComputeKernel, Family, ShardingType
from neuroshard_costs.shards import FAMILIES

from neuroshard_planner.errors import InfeasibleError
from neuroshard_planner.problem.counted_memory import memory_ledger
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from neuroshard_planner.problem.sharding_choice import BY_COLUMNS
from neuroshard_planner.problem.units import Unit

if TYPE_CHECKING:
    from torchrec.distributed.planner.types import ParameterConstraints, ShardingOption, Topology
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

SHARD_WIDTHS = (4, 16, 32, 64)
"""Values of min_partition that are tried: the kernel's least width, and what did better on the public workloads."""

MOST_GRID_TABLES = 60

MS_PER_SECOND = 1000.0  # TorchRec counts bandwidths in bytes per millisecond


def torchrec_placement(problem: Problem) -> Placement:
    """Return the placement of TorchRec's planner.

    Raises:
        InfeasibleError: it found none, or the request asks for what it cannot do.
        MissingPackageError: torchrec is not installed.
    """
    require_torchrec("the algorithm torchrec")
    _require_supported(problem)
    tried: dict[tuple[tuple[int, ...], tuple[Types, ...]], Placement | InfeasibleError] = {}
    for width in SHARD_WIDTHS:
        widths = tuple(max(_least_width(unit), min(width, unit.num_columns)) for unit in problem.units)
        for types in (tuple(ShardingType), BY_COLUMNS):
            allowed = tuple(_types(problem, position, types) for position in range(len(problem.units)))
            if all(allowed) and (widths, allowed) not in tried:
                tried[widths, allowed] = _planned(problem, widths, allowed)
    found = [result for result in tried.values() if isinstance(result, Placement)]
    if not tried:
        raise InfeasibleError(
            "TorchRec's planner was not asked: some table may have no sharding type that it trains"
            "; hint: allow table_wise"
        )
    if not found:
        raise next(result for result in tried.values() if isinstance(result, InfeasibleError))
    return problem.cheapest(found)


Types = tuple[ShardingType, ...]
"""Sharding types that a table may have."""


def _types(problem: Problem, position: int, among: Types) -> Types:
    """Return those of these sharding types that a unit may have, and that TorchRec's planner is asked for."""
    left_out = {ShardingType.COLUMN_WISE, ShardingType.GRID} if problem.units[position].max_shards == 1 else set()
    if len(problem.units) > MOST_GRID_TABLES:
        left_out.add(ShardingType.GRID)
    return tuple(kind for kind in among if kind in problem.sharding_types[position] - left_out)


def _planned(problem: Problem, widths: Sequence[int], allowed: Sequence[Types]) -> Placement | InfeasibleError:
    """Run the planner once, with column shards of at least ``widths`` and these sharding types, for each unit."""
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: PLC0415
    from torchrec.distributed.planner import EmbeddingShardingPlanner  # noqa: PLC0415
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator  # noqa: PLC0415
    from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator  # noqa: PLC0415
    from torchrec.distributed.planner.stats import NoopEmbeddingStats  # noqa: PLC0415
    from torchrec.distributed.planner.storage_reservations import FixedPercentageStorageReservation  # noqa: PLC0415
    from torchrec.distributed.planner.types import PlannerError  # noqa: PLC0415

    request = problem.request
    topology = _topology(request, problem.memory.shard_capacity_bytes)
    constraints = {
        request.tables.tables[unit.tables[0]].name: _constraints(request, unit, width, types)
        for unit, width, types in zip(problem.units, widths, allowed, strict=True)
    }
    planner = EmbeddingShardingPlanner(
        topology=topology,
        batch_size=request.batch_size_per_device,
        enumerator=EmbeddingEnumerator(
            topology=topology,
            batch_size=request.batch_size_per_device,
            constraints=constraints,
            estimator=[EmbeddingPerfEstimator(topology=topology, constraints=constraints), _LedgerStorage(request)],
        ),
        # The capacity above is what the ledger leaves for shards: reserve and dense part are already taken off.
        storage_reservation=FixedPercentageStorageReservation(percentage=0.0),
        stats=NoopEmbeddingStats(),
        constraints=constraints,
    )
    try:
        planner.plan(_module(request), [EmbeddingBagCollectionSharder()])
    except PlannerError as error:
        reason = str(error).strip().splitlines()[0]
        return InfeasibleError(f"TorchRec's planner found no plan: {reason}; hint: use the neuroshard algorithm")
    # TorchRec 1.9 returns these by get_selected_options(), which 1.8 lacks.
    return _placement(problem, planner._best_plan)  # noqa: SLF001


def _require_supported(problem: Problem) -> None:
    """Raise InfeasibleError for what TorchRec's planner has no words for."""
    tables = problem.request.tables.tables
    group = next((unit for unit in problem.units if len(unit.tables) > 1), None)
    if group is not None:
        name = tables[group.tables[0]].name
        raise InfeasibleError(f"TorchRec's planner cannot co-locate tables, as {name!r} asks for; hint: drop the group")
    if problem.allowed is not None:
        raise InfeasibleError("TorchRec's planner cannot pin tables or leave out devices; hint: drop those constraints")
    sequence = next((table for table in tables if table.is_sequence), None)
    if sequence is not None:
        raise InfeasibleError(
            f"TorchRec's planner is asked for pooled tables alone here, and {sequence.name!r} is a sequence; "
            "hint: use the neuroshard algorithm"
        )
    if problem.memory.shard_capacity_bytes <= 0:
        raise InfeasibleError(
            "TorchRec's planner found no plan: no memory is left for shards; hint: lower memory.dense_bytes"
        )


def _topology(request: PlanRequest, shard_capacity_bytes: int) -> "Topology":
    from torchrec.distributed.planner.types import HardwareConfig, KernelConfig, TopologyFactory, TrainerConfig  # noqa: PLC0415

    topology = request.topology
    return TopologyFactory.create_topology(
        TrainerConfig(
            world_size=topology.num_devices,
            local_world_size=topology.devices_per_node,
            **({"pod_size": topology.nodes_per_domain} if topology.nodes_per_domain > 1 else {}),  # 1.8 has none
        ),
        HardwareConfig(
            hbm_cap_bytes=shard_capacity_bytes,
            hbm_mem_bw=topology.device.memory_bandwidth_bytes_per_second / MS_PER_SECOND,
            intra_host_bw=topology.intra_node.bandwidth_bytes_per_second / MS_PER_SECOND,
            inter_host_bw=topology.inter_node.bandwidth_bytes_per_second / MS_PER_SECOND,
        ),
        KernelConfig(compute_device="cuda"),
    )


def _constraints(request: PlanRequest, unit: Unit, width: int, types: Types) -> "ParameterConstraints":
    from torchrec.distributed.planner.types import ParameterConstraints  # noqa: PLC0415
    from torchrec.modules.embedding_configs import DataType as TorchRecDataType  # noqa: PLC0415

    table = request.tables.tables[unit.tables[0]]
    return ParameterConstraints(
        sharding_types=[kind.value for kind in types],
        compute_kernels=sorted({ComputeKernel.of(kind).value for kind in types}),
        min_partition=width,
        pooling_factors=[table.pooling_factor / table.num_features] * table.num_features,
        output_dtype=TorchRecDataType[request.memory.output_data_type.value],
    )


def _least_width(unit: Unit) -> int:
    """Return the fewest columns of a shard under the unit's constraints, a multiple of 4."""
    quads = -(-unit.num_columns // (unit.max_shards * DIM_MULTIPLE))
    return max(unit.min_shard_width, quads * DIM_MULTIPLE)


def _module(request: PlanRequest) -> "EmbeddingBagCollection":
    """Return the tables as a module without memory."""
    import torch  # noqa: PLC0415
    from torchrec.modules.embedding_configs import DataType as TorchRecDataType  # noqa: PLC0415
    from torchrec.modules.embedding_configs import EmbeddingBagConfig  # noqa: PLC0415
    from torchrec.modules.embedding_modules import EmbeddingBagCollection  # noqa: PLC0415

    configs = [
        EmbeddingBagConfig(
            name=table.name,
            num_embeddings=table.num_embeddings,
            embedding_dim=table.embedding_dim,
            feature_names=list(table.features),
            data_type=TorchRecDataType[table.data_type.value],
        )
        for table in request.tables.tables
    ]
    return EmbeddingBagCollection(tables=configs, device=torch.device("meta"))


class _LedgerStorage:
    """An estimator of TorchRec's kind that fills in the storage of shards from this planner's ledger."""

    def __init__(self, request: PlanRequest) -> None:
        self._ledger = memory_ledger(request)
        self._position = {table.name: index for index, table in enumerate(request.tables.tables)}

    def estimate(self, sharding_options: Sequence["ShardingOption"], sharder_data_map: object) -> None:  # noqa: ARG002 - torchrec's
        """Set ``storage`` of every shard of every option: all of it in device memory."""
        from torchrec.distributed.planner.types import Storage  # noqa: PLC0415

        for option in sharding_options:
            rows, columns = np.array([shard.size for shard in option.shards], dtype=np.int64).T
            tables = np.full(len(rows), self._position[option.name])
            family = FAMILIES.index(Family.of(ShardingType(option.sharding_type)))
            needed = self._ledger.shard_bytes(tables, rows, columns, family)
            for shard, num_bytes in zip(option.shards, needed.tolist(), strict=True):
                shard.storage = Storage(hbm=num_bytes, ddr=0)


def _placement(problem: Problem, options: Sequence["ShardingOption"]) -> Placement:
    position = {table.name: index for index, table in enumerate(problem.request.tables.tables)}
    unit_of = {unit.tables[0]: index for index, unit in enumerate(problem.units)}
    units: list[int] = []
    sizes: list[ShardSize] = []
    devices: list[int] = []
    for option in options:
        unit = unit_of[position[option.name]]
        family = FAMILIES.index(Family.of(ShardingType(option.sharding_type)))
        for shard in option.shards:
            units.append(unit)
            sizes.append(problem.row_block(unit, family, shard.size[1]))
            devices.append(shard.rank)
    return Placement(kinds=problem.kinds_of(units, sizes), devices=np.array(devices, dtype=np.int64))


def require_torchrec(what: str) -> None:
    """Import what TorchRec's planner consists of. Raises MissingPackageError that says what ``what`` needs."""
    try:
        import torchrec.distributed.embeddingbag  # noqa: PLC0415
        import torchrec.distributed.planner  # noqa: F401, PLC0415
    except (ImportError, OSError) as error:  # fbgemm-gpu without a driver fails to load its libraries: OSError
        raise MissingPackageError(
            f"{what} needs TorchRec, whose import failed ({error}); "
            f"hint: {install_hint('trainer')}, then {kernels_hint()}"
        ) from error
