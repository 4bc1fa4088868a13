"""Published rules that place tables by rows and as copies, restricted to what TorchRec runs. Searches nothing.

==============  =======================================================================================================
rule            placement
==============  =======================================================================================================
all by rows     every table row_wise
all by node     every table table_row_wise, node after node (HugeCTR: uniform, table_row_wise, round_robin)
copies, nodes   the smallest tables data_parallel, the others table_row_wise, each on the least loaded node
EMBark's        the smallest data_parallel; of the others the costliest is halved until none costs more than an even
                share; placed greedily, by columns on devices or as grid_shard on nodes
==============  =======================================================================================================

EMBark's cost of a table is (lookups per sample + RATIO) x columns (RecSys 2024). A rule that leaves a number free,
which is how many tables are copied, gets the one that costs least. Tables that may not be placed as a rule says, such
as those with fewer rows than devices, are copied, or else whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from neuroshard_api.sharding import ShardingType
from neuroshard_api.tables import DIM_MULTIPLE
from neuroshard_costs.shards import COLUMNS, GRADIENT_BYTES, NODE_ROWS, REPLICATED, ROWS
from neuroshard_planner.problem.problem import Placement, Problem
from neuroshard_planner.search.local_search import merged
from neuroshard_planner.search.sharding_options import even_widths

RATIO = 60.0  # memory over network bandwidth of a DGX H100, as published
MOST_COPIED_BYTES = 64 * 2**20  # gradient of a table


class _Builder:
    """A placement in the making."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._kinds: list[int] = []
        self._devices: list[int] = []
        self.memory = np.zeros(problem.num_devices, dtype=np.int64)

    def add(self, unit: int, family: int, width: int, devices: Sequence[int]) -> None:
        """Put a block of columns of a unit on devices."""
        problem = self._problem
        (kind,) = problem.kinds_of([unit], [problem.row_block(unit, family, width)]).tolist()
        self._kinds += [kind] * len(devices)
        self._devices += devices
        self.memory[list(devices)] += problem.kinds.memory_bytes[kind]

    def placement(self) -> Placement | None:
        """Return the placement; None where it does not fit."""
        placed = merged(
            self._problem,
            Placement(kinds=np.array(self._kinds, dtype=np.int64), devices=np.array(self._devices, dtype=np.int64)),
        )
        return placed if self._problem.fits(placed) else None


class Rules:
    """The rules for one problem whose tables may have all types."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        tables = problem.request.tables.tables
        topology = problem.request.topology
        self._all = list(range(problem.num_devices))
        self._nodes = [
            list(range(first, first + topology.devices_per_node))
            for first in range(0, problem.num_devices, topology.devices_per_node)
        ]
        self._columns = [table.embedding_dim for table in tables]
        self._cost = [(table.pooling_factor + RATIO) * table.embedding_dim for table in tables]
        gradient_bytes = [GRADIENT_BYTES * table.num_embeddings * table.embedding_dim for table in tables]
        self._by_size = sorted(
            (unit for unit in range(len(tables)) if gradient_bytes[unit] <= MOST_COPIED_BYTES),
            key=lambda unit: gradient_bytes[unit],
        )

    def placements(self) -> Mapping[str, Callable[[], Iterator[Placement | None]]]:
        """Return the placements that each rule leaves to choose from; None for those that do not fit."""
        found: dict[str, Callable[[], Iterator[Placement | None]]] = {"all by rows": self._all_by_rows}
        if len(self._nodes) > 1:
            found |= {"all by node": self._all_by_node, "copies, nodes": self._copies_and_nodes}
        return found | {"EMBark's": self._halved}

    def _all_by_rows(self) -> Iterator[Placement | None]:
        builder = _Builder(self._problem)
        for unit, width in enumerate(self._columns):
            if not self._or_else(builder, unit, ShardingType.ROW_WISE):
                builder.add(unit, ROWS, width, self._all)
        yield builder.placement()

    def _all_by_node(self) -> Iterator[Placement | None]:
        builder = _Builder(self._problem)
        for unit, width in enumerate(self._columns):
            if not self._or_else(builder, unit, ShardingType.TABLE_ROW_WISE):
                builder.add(unit, NODE_ROWS, width, self._nodes[unit % len(self._nodes)])
        yield builder.placement()

    def _copies_and_nodes(self) -> Iterator[Placement | None]:
        for count in range(len(self._by_size) + 1):
            yield self._greedy(set(self._by_size[:count]), NODE_ROWS, most_blocks=1)

    def _halved(self) -> Iterator[Placement | None]:
        for family in (COLUMNS, NODE_ROWS) if len(self._nodes) > 1 else (COLUMNS,):
            places = len(self._all) if family == COLUMNS else len(self._nodes)
            for count in range(len(self._by_size) + 1):
                yield self._greedy(set(self._by_size[:count]), family, most_blocks=places)

    def _greedy(self, copied: set[int], family: int, *, most_blocks: int) -> Placement | None:
        """Copy some tables, halve the costliest others, and place each block where the cost is least."""
        places = [[device] for device in self._all] if family == COLUMNS else self._nodes
        builder = _Builder(self._problem)
        blocks: list[tuple[float, int, int]] = []
        kind = ShardingType.TABLE_WISE if family == COLUMNS else ShardingType.TABLE_ROW_WISE
        left = [unit for unit in range(len(self._columns)) if unit not in copied]
        for unit in copied:
            builder.add(unit, REPLICATED, self._columns[unit], self._all)
        left = [unit for unit in left if not self._or_else(builder, unit, kind)]
        share = sum(self._cost[unit] for unit in left) / len(places)
        for unit in left:
            count = 1
            while (
                2 * count <= most_blocks
                and self._columns[unit] // (2 * count) >= DIM_MULTIPLE
                and self._cost[unit] / count > share
            ):
                count *= 2
            blocks += [(self._cost[unit] / count, unit, width) for width in even_widths(self._columns[unit], count)]
        load = np.zeros(len(places))
        for cost, unit, width in sorted(blocks, key=lambda block: (-block[0], block[1])):
            place = int(load.argmin())
            load[place] += cost
            builder.add(unit, family, width, places[place])
        return builder.placement()

    def _or_else(self, builder: _Builder, unit: int, kind: ShardingType) -> bool:
        """Place a table that may not have a type: as a copy, or else whole; return whether it was one."""
        types = self._problem.sharding_types[unit]
        if kind in types:
            return False
        if ShardingType.DATA_PARALLEL in types:
            builder.add(unit, REPLICATED, self._columns[unit], self._all)
        else:
            builder.add(unit, COLUMNS, self._columns[unit], [int(builder.memory.argmin())])
        return True
