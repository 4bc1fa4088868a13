"""The objective: from the levels of devices to the milliseconds of a step. The only place that knows its formula.

A device has levels: its forward and backward time, and its traffic in every collective. The largest level of each kind
over the devices of a placement is its peak, and a step's cost follows from the peaks alone:

    cost = peak forward + peak backward + sum over collectives of (time of the collective at its peak traffic)

It never falls when a peak rises. That, and that traffic adds up over shards, is all that search and bound assume.
"""

from enum import IntEnum
from typing import Protocol

import numpy as np
from neuroshard_api.request import PlanRequest
from neuroshard_api.topology import Topology
from neuroshard_costs.shards import BYTES_PER_ELEMENT, FloatArray

NUM_KNOTS = 256  # relative interpolation error of a collective's time is below 1e-3
SMOOTHNESS_POWER = 12  # of the mean over devices; lower ones prefer plans of low mean and high maximum
MARGINAL_SHARE = 0.05  # of a peak, over which its marginal price is taken


class Collective(IntEnum):
    """Exchanges of a step, as positions in a vector of traffic."""

    POOLED_EMBEDDINGS = 0
    """Columns that a device sends forward, and whose gradients it receives backward."""


FORWARD, BACKWARD = 0, 1
TIMES = slice(0, 2)
"""Levels that are times: forward and backward milliseconds."""
TRAFFIC = slice(2, 2 + len(Collective))
"""Levels that are traffic, in the order of Collective."""
NUM_LEVELS = TRAFFIC.stop


class TransferModel(Protocol):
    """What the objective asks of a cost model."""

    def transfer_ms(
        self,
        max_dim_sums: FloatArray,
        *,
        mean_dim_sum: float,
        topology: Topology,
        batch_size_per_device: int,
        bytes_per_element: int,
    ) -> FloatArray:
        """Return [n, 2] forward and backward all-to-all times, without waiting."""


class TransferCost:
    """Forward plus backward all-to-all time as a non-decreasing function of the largest dimension sum.

    The communication networks are read once at knots between the mean and the sum of all columns, made monotone
    by their running maximum and interpolated; hence evaluating a placement costs nothing, and the value at the
    mean bounds every placement from below.
    """

    def __init__(self, request: PlanRequest, costs: TransferModel) -> None:
        total = sum(table.embedding_dim for table in request.tables.tables)
        self.mean = total / request.topology.num_devices
        """Columns of a device where all have the same."""
        self._knots: FloatArray = np.geomspace(self.mean, max(total, self.mean + 1), NUM_KNOTS)
        times = costs.transfer_ms(
            self._knots,
            mean_dim_sum=self.mean,
            topology=request.topology,
            batch_size_per_device=request.batch_size_per_device,
            bytes_per_element=BYTES_PER_ELEMENT[request.memory.output_data_type],
        )
        self._forward, self._backward = np.maximum.accumulate(times, axis=0).T
        self._total = self._forward + self._backward

    def total_ms(self, max_dim_sum: FloatArray | float) -> FloatArray:
        """Return forward plus backward time."""
        times: FloatArray = np.interp(max_dim_sum, self._knots, self._total)
        return times

    def directions_ms(self, max_dim_sum: float) -> tuple[float, float]:
        """Return the forward and the backward time."""
        return (
            float(np.interp(max_dim_sum, self._knots, self._forward)),
            float(np.interp(max_dim_sum, self._knots, self._backward)),
        )


class StepCost:
    """The objective of one request under one cost model."""

    def __init__(self, request: PlanRequest, costs: TransferModel) -> None:
        self._transfer = TransferCost(request, costs)
        self.least_traffic: FloatArray = np.array([self._transfer.mean])
        """[collectives] the peak traffic of a placement without uneven devices; no placement has less."""

    def total_ms(self, peaks: FloatArray) -> FloatArray:
        """Return [...] the cost of placements with these peaks [..., levels]."""
        total: FloatArray = peaks[..., FORWARD] + peaks[..., BACKWARD] + self.communication_ms(peaks[..., TRAFFIC])
        return total

    def communication_ms(self, traffic: FloatArray) -> FloatArray:
        """Return [...] the time of all collectives at this peak traffic [..., collectives]."""
        return self._transfer.total_ms(traffic[..., Collective.POOLED_EMBEDDINGS])

    def smooth_ms(self, levels: FloatArray) -> FloatArray:
        """Return [p] the cost of placements [p, devices, levels] with a power mean of both times in place of peaks."""
        both = levels[..., TIMES].sum(axis=2)
        most = both.max(axis=1, keepdims=True, initial=1e-30)
        mean = most[:, 0] * ((both / most) ** SMOOTHNESS_POWER).mean(axis=1) ** (1 / SMOOTHNESS_POWER)
        return self.with_compute_ms(mean, levels[..., TRAFFIC].max(axis=1))

    def with_compute_ms(self, compute_ms: FloatArray, traffic: FloatArray) -> FloatArray:
        """Return [...] the cost of forward and backward together [...] and peak traffic [..., collectives]."""
        peaks = np.zeros((*compute_ms.shape, NUM_LEVELS))
        peaks[..., FORWARD] = compute_ms
        peaks[..., TRAFFIC] = traffic
        return self.total_ms(peaks)

    def directions_ms(self, traffic: FloatArray) -> tuple[float, float]:
        """Return the time of the forward and of the backward all-to-all at this peak traffic [collectives]."""
        return self._transfer.directions_ms(float(traffic[Collective.POOLED_EMBEDDINGS]))

    def prices(self, peaks: FloatArray, *, least_steps: FloatArray) -> FloatArray:
        """Return [levels] milliseconds of the step for one unit more of each peak [levels].

        Args:
            peaks: of a placement.
            least_steps: [collectives] traffic over which a price is taken at least.
        """
        prices = np.ones(NUM_LEVELS)
        traffic = peaks[TRAFFIC]
        steps = np.maximum(least_steps, MARGINAL_SHARE * traffic)
        for collective in Collective:
            more = traffic.copy()
            more[collective] += steps[collective]
            added = float(self.communication_ms(more) - self.communication_ms(traffic))
            prices[TRAFFIC][collective] = added / steps[collective]
        return prices
