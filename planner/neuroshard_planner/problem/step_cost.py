"""The objective: from the levels of devices to the milliseconds of a step. The only place that knows its formula.

A device has levels: its compute in each pass, and its traffic in every collective. The largest level of each kind over
the devices of a placement is its peak, and a step's cost follows from the peaks alone:

    compute = peak forward + peak backward
    inputs  = time of the exchange of indices at its peak
    cost    = compute + exposed inputs + time of the exchange of pooled embeddings and of gradients at its peak

Inputs are exposed whole where the trainer runs one step after the other. A pipeline sends the indices of the next batch
while this one computes: then only what exceeds the compute is exposed. The links are busy with one exchange at a time.

The cost never falls when a peak rises. That, and that traffic adds up over shards, is all that search and bound assume.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
from neuroshard_api.request import ComputePeak, Pipeline, PlanRequest
from neuroshard_costs.exchanges import TransferModel, index_exchange, least_index_bytes, pooled_exchange
from neuroshard_costs.shards import FloatArray

NUM_KNOTS = 256  # relative interpolation error of a collective's time is below 1e-3
NUM_INDEX_KNOTS = 8
"""Each asks the network for another mean. Relative error against the networks' own times, over the bundles and three
public workloads on 2 to 128 devices: up to 1.5e-3 at 256 and more samples per device, and up to 7.1e-3 at 64."""
SMOOTHNESS_POWER = 12  # of the mean over devices; lower ones prefer plans of low mean and high maximum
MARGINAL_SHARE = 0.05  # of a peak, over which its marginal price is taken


class Collective(IntEnum):
    """Exchanges of a step, as positions in a vector of traffic."""

    POOLED_EMBEDDINGS = 0
    """Pooled columns that a device sends forward, and whose gradients it receives backward."""
    INDICES = 1
    """Bytes of indices and lengths that a device receives: all of the tables that it has a shard of."""


FORWARD, BACKWARD = 0, 1
TIMES = slice(0, 2)
"""Levels that are times: forward and backward milliseconds, or both together and 0 (see StepCost.passes)."""
TRAFFIC = slice(2, 2 + len(Collective))
"""Levels that are traffic, in the order of Collective."""
NUM_LEVELS = TRAFFIC.stop


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCost:
    """Times of an exchange as non-decreasing functions of its peak traffic, interpolated between knots.

    The networks are read once, and made monotone by their running maximum; hence evaluating a placement costs nothing,
    and the time at the least peak bounds every placement from below.
    """

    knots: FloatArray
    """[k] traffic of the device with most, from the least that any placement has."""
    forward: FloatArray
    """[k] milliseconds."""
    backward: FloatArray
    """[k] milliseconds."""

    @classmethod
    def of_times(cls, knots: FloatArray, times: FloatArray) -> Self:
        """Make [k, 2] times monotone."""
        forward, backward = np.maximum.accumulate(times, axis=0).T
        return cls(knots=knots, forward=forward, backward=backward)

    def directions_ms(self, peak: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return [...] forward and backward times at these peaks [...]."""
        return np.interp(peak, self.knots, self.forward), np.interp(peak, self.knots, self.backward)

    def total_ms(self, peak: FloatArray) -> FloatArray:
        """Return [...] the time of both directions at these peaks [...]."""
        total: FloatArray = np.interp(peak, self.knots, self.forward + self.backward)
        return total


def exchange_of_pooled(request: PlanRequest, costs: TransferModel) -> CollectiveCost:
    """Return the cost of the two all-to-alls of pooled embeddings and gradients, by columns."""
    even = pooled_exchange(request)
    total = even.mean_dim_sum * request.topology.num_devices
    knots: FloatArray = np.geomspace(even.mean_dim_sum, max(total, even.mean_dim_sum + 1), NUM_KNOTS)
    return CollectiveCost.of_times(knots, costs.transfer_ms(knots, even))


def exchange_of_indices(request: PlanRequest, costs: TransferModel) -> CollectiveCost:
    """Return the cost of the all-to-all of indices, by bytes; it is not repeated backward.

    Every device sends the same and receives what its shards need, so that the device that receives most decides: the
    time is that of an exchange in which all devices have as much.
    """
    total = least_index_bytes(request)
    knots: FloatArray = np.geomspace(total / request.topology.num_devices, total * (1 + 1e-9), NUM_INDEX_KNOTS)
    exchanges = [index_exchange(request, num_bytes) for num_bytes in knots.tolist()]
    times = np.array([costs.transfer_ms(np.array([each.mean_dim_sum]), each)[0] for each in exchanges])
    times[:, BACKWARD] = 0.0
    return CollectiveCost.of_times(knots, times)


class StepCost:
    """The objective of one request under one cost model."""

    def __init__(self, request: PlanRequest, costs: TransferModel) -> None:
        self._pooled = exchange_of_pooled(request, costs)
        self._indices = exchange_of_indices(request, costs)
        self._hides_inputs = request.pipeline is not Pipeline.NONE
        self.joins_passes = request.compute_peak is ComputePeak.JOINT
        """Whether the slowest sum of both passes counts, instead of the slowest of each."""
        self.least_traffic: FloatArray = np.array([self._pooled.knots[0], self._indices.knots[0]])
        """[collectives] the peak traffic of an even placement without splits; no placement has less."""

    def passes(self, times: FloatArray) -> FloatArray:
        """Return [..., 2] the compute levels of devices with these [..., 2] forward and backward times."""
        if not self.joins_passes:
            return times
        both = np.zeros_like(times)
        both[..., FORWARD] = times.sum(axis=-1)
        return both

    def total_ms(self, peaks: FloatArray) -> FloatArray:
        """Return [...] the cost of placements with these peaks [..., levels]."""
        compute = peaks[..., FORWARD] + peaks[..., BACKWARD]
        total: FloatArray = compute + self.input_ms(peaks) + self.pooled_ms(peaks[..., TRAFFIC])
        return total

    def input_ms(self, peaks: FloatArray) -> FloatArray:
        """Return [...] what the exchange of indices adds to a step with these peaks [..., levels]."""
        inputs = self._indices.total_ms(peaks[..., TRAFFIC][..., Collective.INDICES])
        if not self._hides_inputs:
            return inputs
        exposed: FloatArray = np.maximum(inputs - (peaks[..., FORWARD] + peaks[..., BACKWARD]), 0.0)
        return exposed

    def pooled_ms(self, traffic: FloatArray) -> FloatArray:
        """Return [...] the time of both exchanges of pooled embeddings at this peak traffic [..., collectives]."""
        return self._pooled.total_ms(traffic[..., Collective.POOLED_EMBEDDINGS])

    def directions_ms(self, traffic: FloatArray) -> tuple[float, float]:
        """Return the forward and backward time of the pooled embeddings at this peak traffic [collectives]."""
        forward, backward = self._pooled.directions_ms(traffic[Collective.POOLED_EMBEDDINGS])
        return float(forward), float(backward)

    def smooth_ms(self, levels: FloatArray) -> FloatArray:
        """Return [p] the cost of placements [p, devices, levels] with a power mean of both passes in place of peaks."""
        both = levels[..., TIMES].sum(axis=2)
        most = both.max(axis=1, keepdims=True, initial=1e-30)
        mean = most[:, 0] * ((both / most) ** SMOOTHNESS_POWER).mean(axis=1) ** (1 / SMOOTHNESS_POWER)
        return self.with_compute_ms(mean, levels[..., TRAFFIC].max(axis=1))

    def with_compute_ms(self, compute_ms: FloatArray, traffic: FloatArray) -> FloatArray:
        """Return [...] the cost of both passes together [...] and peak traffic [..., collectives]."""
        peaks = np.zeros((*compute_ms.shape, NUM_LEVELS))
        peaks[..., FORWARD] = compute_ms
        peaks[..., TRAFFIC] = traffic
        return self.total_ms(peaks)

    def prices(self, peaks: FloatArray) -> FloatArray:
        """Return [levels] milliseconds of the step for one unit more of each peak [levels].

        A unit of compute counts whole even where it hides indices: less of both is always better.
        """
        step = np.maximum(MARGINAL_SHARE * peaks[TRAFFIC], self.least_traffic / 100)
        points = np.tile(peaks, (1 + len(step), 1))
        points[1:, TRAFFIC] += np.diag(step)
        total = self.total_ms(points)
        prices = np.ones(NUM_LEVELS)
        prices[TRAFFIC] = (total[1:] - total[0]) / step
        return prices
