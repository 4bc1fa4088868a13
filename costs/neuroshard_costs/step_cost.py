"""The objective: from the levels of devices to the milliseconds of a step. The only place that knows its formula.

A device has levels: its compute in each pass, and its traffic in every collective. The largest level of each kind over
the devices of a placement is its peak, and a step's cost follows from the peaks alone:

    compute = peak forward + peak backward
    inputs  = time of the exchange of indices at its peak
    cost    = compute + exposed inputs + dense updates + fixed + times of all other collectives at their peaks

A collective that no shard of a placement takes part in costs nothing. Inputs are exposed whole where the trainer runs
one step after the other, and on CPUs, where the cores that compute also send. Elsewhere a pipeline sends the indices of
the next batch while this one computes: then only what exceeds the compute is exposed. The links are busy with one
exchange at a time. What is fixed is the same for all placements: the expansion of repeated lists, and the calls of
kernels of further collections.

An all-to-all of pooled columns depends on its mean too, which is not a peak. The mean is taken as an even share of all
tables, or as the peak where that is less because tables of other families take no part. That is exact where all tables
are cut by columns, and elsewhere above the truth by no more than the copies of the difference take.

The cost never falls when a peak rises. That, and that traffic adds up over shards, is all that search and bound assume.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Self

import numpy as np
from neuroshard_api.documents.request import ComputePeak, Pipeline, PlanRequest
from neuroshard_api.sharding.kinds import Family

from neuroshard_costs.arithmetic import geometric, weighted_sum
from neuroshard_costs.deduplication import expansion_ms, num_added_calls, sent_shares
from neuroshard_costs.exchanges import (
    PooledExchange,
    Reduction,
    TransferModel,
    encoded_exchange,
    index_exchange,
    least_index_bytes,
    pooled_exchange,
)
from neuroshard_costs.shards import BYTES_PER_ELEMENT, GRADIENT_BYTES, FloatArray

NUM_KNOTS = 256  # relative interpolation error of a collective's time is below 1e-3
NUM_LOW_KNOTS = 8  # below an even share, where tables of other families take no part
LOWEST_SHARE = 1 / 256  # of an even share, at the lowest knot
NUM_REDUCTION_KNOTS = 64  # concave between them: relative error below 1 %
NUM_SEQUENCE_KNOTS = 24
NUM_INDEX_KNOTS = 8
"""Each asks the network for another mean. Relative error against the networks' own times, over the bundles and three
public workloads on 2 to 128 devices: up to 1.5e-3 at 256 and more samples per device, and up to 7.1e-3 at 64."""
SMOOTHNESS_SQUARINGS = (
    4  # to the power 16, of the mean over devices; lower ones prefer plans of low mean and high maximum
)
MARGINAL_SHARE = 0.05  # of a peak, over which its marginal price is taken


class Collective(IntEnum):
    """Exchanges of a step, as positions in a vector of traffic."""

    POOLED_EMBEDDINGS = 0
    """Pooled columns of tables cut by columns, which a device sends forward, and whose gradients it receives."""
    INDICES = 1
    """Bytes of indices and lengths that a device receives: all of the tables that it has a shard of."""
    ROW_SUMS = 2
    """Pooled columns of row_wise tables, of which every device has partial sums: the same on all of them."""
    NODE_ROW_SUMS = 3
    """Pooled columns of table_row_wise and grid_shard tables, of which the devices of a node have partial sums."""
    GRADIENTS = 4
    """Bytes of the dense gradients of data_parallel tables: the same on all devices."""
    SEQUENCE_ROWS = 5
    """Columns of the rows that row_wise sequences return, those of the fullest block: the same on all devices."""


_BEYOND_COLUMNS = (Collective.ROW_SUMS, Collective.NODE_ROW_SUMS, Collective.GRADIENTS, Collective.SEQUENCE_ROWS)
"""The last collectives, of which plans by columns have none."""

_NAMES = {
    Collective.POOLED_EMBEDDINGS: "all-to-all of columns",
    Collective.ROW_SUMS: "reduce-scatter of rows",
    Collective.NODE_ROW_SUMS: "reduce-scatter of node_rows",
    Collective.GRADIENTS: "all-reduce of copies",
    Collective.SEQUENCE_ROWS: "all-to-all of rows",
}
"""Of the collectives whose two directions are one part of the cost."""

FORWARD, BACKWARD = 0, 1
TIMES = slice(0, 2)
"""Levels that are times: forward and backward milliseconds, or both together and 0 (see StepCost.passes)."""
TRAFFIC = slice(2, 2 + len(Collective))
"""Levels that are traffic, in the order of Collective."""
NUM_LEVELS = TRAFFIC.stop
_EACH = np.arange(len(Collective))


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCurve:
    """Times of an exchange as non-decreasing functions of its peak traffic, interpolated between knots.

    The networks are read once, and made monotone by their running maximum; hence evaluating a placement costs nothing.
    Without traffic there is no exchange. What is less than the first knot costs as much as that. Further collections,
    of groups without repeats, add calls: each costs what was measured of one, and no less than one with the least
    traffic.
    """

    knots: FloatArray
    """[k] traffic of the device with most, above 0."""
    forward: FloatArray
    """[k] milliseconds."""
    backward: FloatArray
    """[k] milliseconds."""
    both: FloatArray = field(init=False)
    """[k] milliseconds of both directions."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "both", self.forward + self.backward)

    @classmethod
    def of_times(cls, knots: FloatArray, times: FloatArray) -> Self:
        """Make [k, 2] times monotone."""
        forward, backward = np.maximum.accumulate(times, axis=0).T
        return cls(knots=knots, forward=forward, backward=backward)

    def below(self, knots: FloatArray, times: FloatArray) -> Self:
        """Return the same cost with further knots [k], below the others, and their times [k, 2]."""
        first = np.array([self.forward[0], self.backward[0]])
        forward, backward = np.minimum(np.maximum.accumulate(times, axis=0), first).T
        return replace(
            self,
            knots=np.concatenate((knots, self.knots)),
            forward=np.concatenate((forward, self.forward)),
            backward=np.concatenate((backward, self.backward)),
        )

    def plus(self, times: FloatArray) -> Self:
        """Return the cost with these forward and backward times [2] more at every traffic."""
        return replace(self, forward=self.forward + times[0], backward=self.backward + times[1])

    def directions_ms(self, peak: float) -> tuple[float, float]:
        """Return forward and backward times at a peak."""
        if peak <= 0:
            return 0.0, 0.0
        return float(np.interp(peak, self.knots, self.forward)), float(np.interp(peak, self.knots, self.backward))

    def total_ms(self, peak: FloatArray) -> FloatArray:
        """Return [...] the time of both directions at these peaks [...]."""
        total: FloatArray = np.interp(peak, self.knots, self.both)
        total *= peak > 0
        return total


def exchange_of_pooled(request: PlanRequest, costs: TransferModel) -> CollectiveCurve:
    """Return the cost of the two all-to-alls of pooled embeddings and gradients, by columns."""
    exchange, mean = encoded_exchange(request), _mean_sent_columns(request)
    total = mean * request.topology.num_devices
    knots, low = geometric(mean, max(total, mean + 1), NUM_KNOTS), mean * _low_shares()
    times, low_times = exchange.of_mean(mean).times_ms(knots, costs), exchange.of_mean(low).times_ms(low, costs)
    return CollectiveCurve.of_times(knots, times).below(low, low_times).plus(added_calls_ms(request, costs))


def added_calls_ms(request: PlanRequest, costs: TransferModel) -> FloatArray:
    """Return [2] what the all-to-alls of further collections take as calls, beyond their traffic."""
    columns = np.array([LOWEST_SHARE * _mean_sent_columns(request)])
    (least,) = encoded_exchange(request).of_mean(columns).times_ms(columns, costs)
    return _of_added(request, least, None if costs.added_collection is None else costs.added_collection.exchange_ms)


def added_compute_ms(request: PlanRequest, costs: TransferModel) -> FloatArray:
    """Return [2] what the kernels of further collections take as calls, as measured; 0 where they were not."""
    measured = costs.added_collection
    return np.zeros(2) if measured is None else num_added_calls(request) * np.array(measured.compute_ms)


def _of_added(request: PlanRequest, least: FloatArray, measured: tuple[float, float] | None) -> FloatArray:
    """Return [2] the exchange of all further collections, each at least as measured and as one with little traffic."""
    if request.topology.num_devices == 1:
        return np.zeros(2)
    each = least if measured is None else np.maximum(least, measured)
    return num_added_calls(request) * each


def sent_exchange(request: PlanRequest) -> PooledExchange:
    """Return the exchange of pooled embeddings, of groups in the grouped form those of distinct lists alone."""
    return encoded_exchange(request).of_mean(_mean_sent_columns(request))


def _mean_sent_columns(request: PlanRequest) -> float:
    tables = request.tables.tables
    columns = np.array([table.embedding_dim * table.num_vectors for table in tables])
    return float(weighted_sum(columns, sent_shares(request))) / request.topology.num_devices


def exchange_of_indices(request: PlanRequest, costs: TransferModel) -> CollectiveCurve:
    """Return the cost of the all-to-all of indices, by bytes; it is not repeated backward.

    Every device sends the same and receives what its shards need, so that the device that receives most decides: the
    time is that of an exchange in which all devices have as much.
    """
    total = least_index_bytes(request)
    knots = geometric(total / request.topology.num_devices, total * (1 + 1e-9), NUM_INDEX_KNOTS)
    low: FloatArray = knots[0] * _low_shares()
    exchange = index_exchange(request, np.concatenate((low, knots)))
    both_ways = exchange.times_ms(np.asarray(exchange.mean_dim_sum), costs)
    low_times, times = np.split(both_ways * np.array([1.0, 0.0]), [len(low)])
    measured = None if costs.added_collection is None else (costs.added_collection.indices_ms, 0.0)
    added = _of_added(request, low_times[0], measured)
    return CollectiveCurve.of_times(knots, times).below(low, low_times).plus(added)


def exchange_of_sequence_rows(request: PlanRequest, costs: TransferModel) -> CollectiveCurve:
    """Return the cost of the two all-to-alls of row_wise sequences, by columns: lookups of a block times their width.

    Every device has a block of each such table. The time is that of an exchange in which all devices have as much as
    the fullest.
    """
    total = sum(table.embedding_dim * table.num_vectors for table in request.tables.tables if table.is_sequence)
    if not total:
        return CollectiveCurve(knots=np.ones(1), forward=np.zeros(1), backward=np.zeros(1))
    least = LOWEST_SHARE * total / request.topology.num_devices
    knots = geometric(least, total, NUM_SEQUENCE_KNOTS)
    exchange = replace(pooled_exchange(request), mean_dim_sum=knots)
    return CollectiveCurve.of_times(knots, exchange.times_ms(knots, costs))


def reduction_of(family: Family, request: PlanRequest, costs: TransferModel) -> CollectiveCurve:
    """Return the cost of the collectives in which a family's tables are added up, by columns or gradient bytes."""
    tables = request.tables.tables
    if family is Family.REPLICATED:
        traffic_bytes = 1
        most = 1.0 * GRADIENT_BYTES * sum(table.num_embeddings * table.embedding_dim for table in tables)
    else:
        traffic_bytes = request.global_batch_size * BYTES_PER_ELEMENT[request.memory.output_data_type]
        most = sum(table.embedding_dim * table.num_vectors for table in tables)
    knots = geometric(1.0, max(most, 2), NUM_REDUCTION_KNOTS)
    return CollectiveCurve.of_times(
        knots, costs.reduction_ms(knots * traffic_bytes, Reduction(topology=request.topology, family=family))
    )


def _low_shares() -> FloatArray:
    """Return ascending shares of an even load, all below 1."""
    return geometric(LOWEST_SHARE, 1.0, NUM_LOW_KNOTS + 1)[:-1]


class StepCost:
    """The objective of one request under one cost model."""

    def __init__(self, request: PlanRequest, costs: TransferModel) -> None:
        self._pooled = exchange_of_pooled(request, costs)
        self._indices = exchange_of_indices(request, costs)
        self._costs = {
            Collective.POOLED_EMBEDDINGS: self._pooled,
            Collective.ROW_SUMS: reduction_of(Family.ROWS, request, costs),
            Collective.NODE_ROW_SUMS: reduction_of(Family.NODE_ROWS, request, costs),
            Collective.GRADIENTS: reduction_of(Family.REPLICATED, request, costs),
            Collective.SEQUENCE_ROWS: exchange_of_sequence_rows(request, costs),
        }
        self._dense_update_ms = float(costs.dense_update_ms(np.array(1.0)))
        self.expansion_ms = expansion_ms(request, costs)
        """Of repeated lists, forward and backward."""
        self.added_compute_ms = added_compute_ms(request, costs)
        """[2] Of further collections, forward and backward."""
        self.fixed_ms = self.expansion_ms + float(self.added_compute_ms.sum())
        """What no placement changes."""
        self.hides_inputs = request.pipeline is not Pipeline.NONE and not request.topology.device.is_cpu
        """Whether of the exchange of indices only what takes longer than the compute counts."""
        self.joins_passes = request.compute_peak is ComputePeak.JOINT
        """Whether the slowest sum of both passes counts, instead of the slowest of each."""
        self.has_sequences = any(table.is_sequence for table in request.tables.tables)
        self.least_traffic: FloatArray = np.zeros(len(Collective))
        """[collectives] the peak traffic of an even placement by columns without splits; none by columns has less."""
        self.least_traffic[Collective.POOLED_EMBEDDINGS] = self._pooled.knots[NUM_LOW_KNOTS]
        self.least_traffic[Collective.INDICES] = self._indices.knots[NUM_LOW_KNOTS]

    def collective(self, collective: Collective) -> CollectiveCurve:
        """Return the cost of one collective."""
        return self._indices if collective is Collective.INDICES else self._costs[collective]

    def passes(self, times: FloatArray) -> FloatArray:
        """Return [..., 2] the compute levels of devices with these [..., 2] forward and backward times."""
        if not self.joins_passes:
            return times
        both = np.zeros_like(times)
        both[..., FORWARD] = times.sum(axis=-1)
        return both

    def total_ms(self, peaks: FloatArray, further_ms: Sequence[FloatArray] | None = None) -> FloatArray:
        """Return [...] the cost of placements with these peaks [..., levels]; ``further_ms`` is that of the peaks."""
        compute = peaks[..., FORWARD] + peaks[..., BACKWARD]
        traffic = peaks[..., TRAFFIC]
        total: FloatArray = compute + self._exposed_ms(traffic, compute) + self.pooled_ms(traffic)
        if self.fixed_ms:
            total += self.fixed_ms
        for added in self.further_ms(traffic) if further_ms is None else further_ms:
            total += added
        return total

    def further_ms(self, traffic: FloatArray) -> Sequence[FloatArray]:
        """Return the parts [...] of the cost that no shard by columns has, at peak traffic [..., collectives]."""
        if not traffic[..., _BEYOND_COLUMNS[0] :].any():
            return ()
        is_in_use: list[bool] = np.logical_or.reduce(traffic.reshape(-1, len(Collective)), axis=0).tolist()
        used = [collective for collective in _BEYOND_COLUMNS if is_in_use[collective]]
        parts = [self._costs[collective].total_ms(traffic[..., collective]) for collective in used]
        return [*parts, self.dense_update_ms(traffic)] if is_in_use[Collective.GRADIENTS] else parts

    def parts_ms(self, peaks: FloatArray) -> Mapping[str, float]:
        """Return the parts of the cost of a placement with these peaks [levels], which sum to it; none that is 0."""
        traffic = peaks[TRAFFIC]
        parts = {
            "forward compute": float(peaks[FORWARD]),
            "backward compute": float(peaks[BACKWARD]),
            "indices": float(self.input_ms(peaks)),
            **{_NAMES[each]: sum(times) for each, times in self.directions_ms(traffic).items()},
            "dense update": float(self.dense_update_ms(traffic)),
            "fixed": self.fixed_ms,
        }
        if self.joins_passes:
            parts["compute"] = parts.pop("forward compute") + parts.pop("backward compute")
        return {name: ms for name, ms in parts.items() if ms}

    def input_ms(self, peaks: FloatArray) -> FloatArray:
        """Return [...] what the exchange of indices adds to a step with these peaks [..., levels]."""
        return self._exposed_ms(peaks[..., TRAFFIC], peaks[..., FORWARD] + peaks[..., BACKWARD])

    def _exposed_ms(self, traffic: FloatArray, compute_ms: FloatArray) -> FloatArray:
        """Return [...] what the exchange of indices adds at this peak traffic [..., collectives] and compute [...]."""
        inputs = self.indices_ms(traffic)
        if not self.hides_inputs:
            return inputs
        exposed: FloatArray = np.maximum(inputs - compute_ms, 0.0)
        return exposed

    def indices_ms(self, traffic: FloatArray) -> FloatArray:
        """Return [...] the time of the exchange of indices at this peak traffic [..., collectives], hidden or not."""
        return self._indices.total_ms(traffic[..., Collective.INDICES])

    def pooled_ms(self, traffic: FloatArray) -> FloatArray:
        """Return [...] the time of both all-to-alls of pooled embeddings at this peak traffic [..., collectives]."""
        return self._pooled.total_ms(traffic[..., Collective.POOLED_EMBEDDINGS])

    def dense_update_ms(self, traffic: FloatArray) -> FloatArray:
        """Return [...] the time of updates of all rows of replicated tables at this peak traffic [..., collectives]."""
        ms: FloatArray = self._dense_update_ms * traffic[..., Collective.GRADIENTS]
        return ms

    def directions_ms(self, traffic: FloatArray) -> Mapping[Collective, tuple[float, float]]:
        """Return forward and backward time of every collective in use, but indices, at this peak traffic."""
        return {
            collective: cost.directions_ms(float(traffic[collective]))
            for collective, cost in self._costs.items()
            if traffic[collective] > 0
        }

    def smooth_ms(self, levels: FloatArray) -> FloatArray:
        """Return [p] the cost of placements [p, devices, levels] with a power mean of both passes in place of peaks."""
        both = levels[..., TIMES].sum(axis=2)
        most = both.max(axis=1, keepdims=True, initial=1e-30)
        shares = both / most
        for _ in range(SMOOTHNESS_SQUARINGS):
            shares *= shares
        root = shares.mean(axis=1)
        for _ in range(SMOOTHNESS_SQUARINGS):
            root = np.sqrt(root)
        return self.with_compute_ms(most[:, 0] * root, levels[..., TRAFFIC].max(axis=1))

    def with_compute_ms(self, compute_ms: FloatArray, traffic: FloatArray) -> FloatArray:
        """Return [...] the cost of both passes together [...] and peak traffic [..., collectives]."""
        peaks = np.zeros((*compute_ms.shape, NUM_LEVELS))
        peaks[..., FORWARD] = compute_ms
        peaks[..., TRAFFIC] = traffic
        return self.total_ms(peaks)

    def prices(self, peaks: FloatArray) -> FloatArray:
        """Return [..., levels] milliseconds of the step for one unit more of each peak [..., levels].

        A unit of compute counts whole even where it hides indices: less of both is always better.
        """
        step = np.maximum(MARGINAL_SHARE * peaks[..., TRAFFIC], self.least_traffic / 100)
        step[step == 0] = 1.0  # the first of a collective pays its launch
        points = np.repeat(peaks[..., None, :], 1 + len(Collective), axis=-2)
        points[..., _EACH + 1, _EACH + TRAFFIC.start] += step
        total = self.total_ms(points)
        prices = np.ones_like(peaks)
        prices[..., TRAFFIC] = (total[..., 1:] - total[..., :1]) / step
        return prices
