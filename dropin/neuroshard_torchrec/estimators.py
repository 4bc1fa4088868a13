"""Cost models in each other's places: NeuroShard's as TorchRec's estimator, and TorchRec's as three methods of ours.

The two planners ask different things. TorchRec adds up one number for each shard, whatever else is on its device, and
plans for the largest sum. NeuroShard asks what devices and exchanges cost as a whole. So a shard costs in TorchRec's
planner what it adds to a device with an even share of all tables; and in NeuroShard's planner devices cost the sum of
TorchRec's numbers.
"""

from collections.abc import Sequence

import numpy as np
import torch
from neuroshard_api.sharding.kinds import ComputeKernel, Family, ShardingType
from neuroshard_costs.exchanges import Exchange
from neuroshard_costs.shards import DATA_TYPES, FAMILIES, FloatArray, IndexArray, ShardArrays
from neuroshard_costs.step_cost import BACKWARD, FORWARD, Collective
from neuroshard_planner.problem.problem import Problem
from neuroshard_planner.problem.shard_kinds import ShardSize
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
from torchrec.distributed.planner.types import ParameterConstraints, Perf, ShardEstimator, ShardingOption
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.modules.embedding_configs import DataType, EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection

from neuroshard_torchrec.errors import DropInError
from neuroshard_torchrec.question import Question

_BY_COLUMNS = "table_column_wise"
"""TorchRec's name of blocks of columns on one node, which cost what column_wise ones do."""
_EXCHANGED_COLUMNS = 1024
"""Of the table whose exchange TorchRec is asked for; its times are proportional to them."""
_EXCHANGED_BYTES = 4
"""Per element of that table."""


class NeuroShardEstimator(ShardEstimator):  # type: ignore[misc] # torchrec has no types
    """Performance estimator for TorchRec's EmbeddingEnumerator, next to a storage estimator of TorchRec's.

    Compute is what a shard adds to a device with an even share of all tables. Of the exchange in which all devices have
    an even share it has as much time as it has columns; of the collectives that no table cut by columns takes part in,
    what it adds to one of its own size. The exchange of indices is in `input_dist_comms`, which TorchRec reports and
    does not plan by. A kernel that is neither fused nor, for data_parallel, dense costs infinitely much.

    Args:
        question: of the module that TorchRec's planner plans (see NeuroShardPlanner.estimator).
    """

    def __init__(self, question: Question) -> None:
        self._problem = Problem(question.request, question.devices.bundle)
        positions = {table.name: index for index, table in enumerate(question.request.tables.tables)}
        self._units = {place: positions[known_as] for known_as, place in question.tables.places.items()}
        problem, kinds = self._problem, self._problem.kinds
        even = kinds.representation[problem.whole].sum(axis=0, dtype=np.float64) / problem.num_devices
        self._even = even.astype(np.float32)

    def estimate(self, sharding_options: Sequence[ShardingOption], *_sharders: object, **_named: object) -> None:
        """Set `perf` of every shard of every option.

        Args:
            sharding_options: of tables of the module.
            _sharders: what TorchRec's estimators read fused_params from, by position or name, depending on its version.

        Raises:
            DropInError: an option is of a table that the module has not.
        """
        priced = [option for option in sharding_options if _family(option) is not None]
        keys = [self._key(option, int(shard.size[1])) for option in priced for shard in option.shards]
        perfs = iter(self._perfs(keys))
        for option in sharding_options:
            is_priced = _family(option) is not None
            for shard in option.shards:
                shard.perf = next(perfs) if is_priced else _unpriced()

    def _key(self, option: ShardingOption, num_columns: int) -> tuple[int, ShardSize]:
        unit = self._units.get((option.path, option.name))
        if unit is None:
            raise DropInError(
                f"table {option.name!r} at {option.path!r} is not in the module that the estimator was made for; "
                "hint: make it with the module that is planned"
            )
        family = _family(option)
        assert family is not None, "those without a price are left out"
        return unit, self._problem.row_block(unit, FAMILIES.index(family), num_columns)

    def _perfs(self, keys: Sequence[tuple[int, ShardSize]]) -> list[Perf]:
        if not keys:
            return []
        problem = self._problem
        kinds = problem.kinds_of([unit for unit, _ in keys], [size for _, size in keys])
        compute_ms = problem.compute_ms(self._even + problem.kinds.representation[kinds]).astype(np.float64)
        compute_ms = np.maximum(compute_ms - problem.compute_ms(self._even[None]), 0.0)
        return [
            self._perf(ms, traffic)
            for ms, traffic in zip(compute_ms.tolist(), problem.kinds.traffic[kinds], strict=True)
        ]

    def _perf(self, compute_ms: tuple[float, float], traffic: FloatArray) -> Perf:
        step_cost = self._problem.step_cost
        even = step_cost.least_traffic
        share = np.divide(traffic, even, out=np.zeros_like(traffic), where=even > 0)
        further = np.where(even > 0, 0.0, traffic)
        shared, once, twice = map(step_cost.directions_ms, (even, further, 2 * further))
        exchanges_ms = [
            sum(shared[each][way] * float(share[each]) for each in shared)
            + sum(twice[each][way] - once[each][way] for each in twice)
            for way in (FORWARD, BACKWARD)
        ]
        return Perf(
            fwd_compute=compute_ms[FORWARD],
            fwd_comms=exchanges_ms[FORWARD],
            bwd_compute=compute_ms[BACKWARD] + float(step_cost.dense_update_ms(traffic)),
            bwd_comms=exchanges_ms[BACKWARD],
            input_dist_comms=float(step_cost.indices_ms(even) * share[Collective.INDICES]),
        )


class TorchRecCosts:
    """TorchRec's EmbeddingPerfEstimator as the three methods of `neuroshard_costs.own_costs.EmbeddingCosts`.

    A shard's demands are the forward and backward milliseconds that TorchRec gives a table of its rows, columns, bags,
    and lookups; those of a device are their sum. Exchanges cost what TorchRec gives the fullest device's columns: they
    depend on bytes and bandwidth alone.

    Args:
        topology: TorchRec's, whose bandwidths and processes count.
    """

    def __init__(self, topology: TorchRecTopology) -> None:
        self._topology = topology

    def demands(self, shards: ShardArrays) -> FloatArray:
        """Return [n, 2] forward and backward milliseconds of each shard."""
        samples = np.maximum(np.rint(shards.bags / self._topology.world_size), 1).astype(np.int64)
        perfs = self._perfs(
            sizes=np.stack((shards.num_rows, shards.num_columns), axis=1).astype(np.int64),
            samples=samples,
            lookups=shards.pooling_factor,
            data_types=[DataType[DATA_TYPES[code].value] for code in shards.data_type.tolist()],
        )
        return np.array([(each.fwd_compute, each.bwd_compute) for each in perfs])

    def compute_ms(self, sums: FloatArray) -> FloatArray:
        """Return the sums [..., 2] themselves."""
        return sums

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return [..., 2] milliseconds of the all-to-alls of embeddings and of their gradients."""
        (perf,) = self._perfs(
            sizes=np.array([[1, _EXCHANGED_COLUMNS]], dtype=np.int64),
            samples=np.array([exchange.batch_size_per_device], dtype=np.int64),
            lookups=np.ones(1),
            data_types=[DataType.FP32],
        )
        scale = exchange.bytes_per_element / (_EXCHANGED_BYTES * _EXCHANGED_COLUMNS)
        times: FloatArray = np.asarray(max_dim_sums)[..., None] * np.array([perf.fwd_comms, perf.bwd_comms]) * scale
        return times

    def _perfs(
        self, *, sizes: IndexArray, samples: IndexArray, lookups: FloatArray, data_types: Sequence[DataType]
    ) -> list[Perf]:
        """Return TorchRec's estimates for whole tables of [n, 2] rows and columns, and [n] samples of each device."""
        names = [f"t{index}" for index in range(len(sizes))]
        configs = [
            EmbeddingBagConfig(
                name=name, num_embeddings=rows, embedding_dim=columns, feature_names=[name], data_type=data_type
            )
            for name, (rows, columns), data_type in zip(names, sizes.tolist(), data_types, strict=True)
        ]
        constraints = {
            name: ParameterConstraints(
                sharding_types=[ShardingType.TABLE_WISE.value],
                compute_kernels=[ComputeKernel.FUSED.value],
                pooling_factors=[pooling_factor],
                batch_sizes=[batch_size],
            )
            for name, pooling_factor, batch_size in zip(names, lookups.tolist(), samples.tolist(), strict=True)
        }
        enumerator = EmbeddingEnumerator(
            topology=self._topology,
            batch_size=int(samples.max()),
            constraints=constraints,
            estimator=EmbeddingPerfEstimator(topology=self._topology, constraints=constraints),
        )
        module = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        found = {option.name: option.shards[0].perf for option in _options(enumerator, module)}
        return [found[name] for name in names]


def _options(enumerator: EmbeddingEnumerator, module: EmbeddingBagCollection) -> Sequence[ShardingOption]:
    options: Sequence[ShardingOption] = enumerator.enumerate(module, [EmbeddingBagCollectionSharder()])
    return options


def _family(option: ShardingOption) -> Family | None:
    """Return the family that an option is priced as. None: its type or its kernel has no price."""
    name = ShardingType.COLUMN_WISE.value if option.sharding_type == _BY_COLUMNS else option.sharding_type
    if name not in list(ShardingType):
        return None
    kind = ShardingType(name)
    return Family.of(kind) if option.compute_kernel == ComputeKernel.of(kind).value else None


def _unpriced() -> Perf:
    return Perf(fwd_compute=np.inf, fwd_comms=0.0, bwd_compute=0.0, bwd_comms=0.0)
