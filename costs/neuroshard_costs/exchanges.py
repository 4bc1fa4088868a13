"""The exchanges of a step: what a request sends in each, and what a cost model is asked for one. Prices none.

==================  ===================================================================================================
exchange            what travels
==================  ===================================================================================================
pooled embeddings   every column of every vector that tables cut by columns return forward, its gradient backward;
                    codecs may encode either
indices             the indices, their weights, and lengths of a table to each of its shards, forward only
reductions          parts of pooled sums, of tables cut by rows; gradients of replicated tables
==================  ===================================================================================================
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self, TypeVar

import numpy as np
from neuroshard_api.documents.bundle import CollectionParts
from neuroshard_api.documents.communication import WIRE_FORMATS, WireType
from neuroshard_api.documents.dense_profile import DensePass, DensePasses
from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.documents.tables import Table
from neuroshard_api.documents.topology import Topology
from neuroshard_api.sharding.kinds import Family

from neuroshard_costs.codec_passes import scaling_ms
from neuroshard_costs.host import HostTimes, HostWork
from neuroshard_costs.shards import (
    BYTES_PER_ELEMENT,
    INDEX_BYTES,
    LENGTH_BYTES,
    WEIGHT_BYTES,
    FloatArray,
    IndexArray,
)
from neuroshard_costs.simulator.codecs import wider_copy_seconds
from neuroshard_costs.simulator.communication import DIRECTIONS

MS_PER_SECOND = 1000.0
_COLUMN_BYTES = 4  # per sample, of the FP32 pooled columns that stand for the bytes of indices

_Counts = TypeVar("_Counts", FloatArray, IndexArray)


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """All-to-alls of one mean load; they differ in the load of the fullest device alone."""

    topology: Topology
    """The devices and their links."""
    batch_size_per_device: int
    """Samples that each device keeps."""
    mean_dim_sum: float | FloatArray
    """Columns of all shards over the number of devices; an array for several exchanges, which broadcasts."""
    bytes_per_element: float
    """Of a column of a sample on the wire."""

    @property
    def num_bytes(self) -> float | FloatArray:
        """Bytes that the mean device exchanges in one direction."""
        num_samples = self.topology.num_devices * self.batch_size_per_device
        return self.mean_dim_sum * num_samples * self.bytes_per_element

    def times_ms(self, max_dim_sums: FloatArray, costs: "TransferModel") -> FloatArray:
        """Return [..., 2] forward and backward milliseconds (see TransferModel)."""
        return costs.transfer_ms(max_dim_sums, self)


@dataclass(frozen=True, kw_only=True, slots=True)
class PooledExchange:
    """Both all-to-alls of pooled embeddings and their gradients, each with a type of its own on the wire."""

    forward: Exchange
    backward: Exchange
    codecs: tuple[WireType | None, WireType | None] = (None, None)
    """Types that codecs make, forward and backward. None: values travel in the type of the kernels' output."""

    @property
    def mean_dim_sum(self) -> float | FloatArray:
        """Columns of all shards over the number of devices."""
        return self.forward.mean_dim_sum

    def of_mean(self, mean_dim_sum: float | FloatArray) -> Self:
        """Return the same all-to-alls with other columns of the mean device."""
        return replace(
            self,
            forward=replace(self.forward, mean_dim_sum=mean_dim_sum),
            backward=replace(self.backward, mean_dim_sum=mean_dim_sum),
        )

    def times_ms(self, max_dim_sums: FloatArray, costs: "TransferModel") -> FloatArray:
        """Return [..., 2] forward and backward milliseconds, what codecs add included (see TransferModel)."""
        times = costs.transfer_ms(max_dim_sums, self.forward)
        if self.backward.bytes_per_element != self.forward.bytes_per_element:
            times = np.stack((times[..., 0], costs.transfer_ms(max_dim_sums, self.backward)[..., 1]), axis=-1)
        return times + self.codec_ms(max_dim_sums, costs) if any(self.codecs) else times

    def codec_ms(self, max_dim_sums: FloatArray, costs: "TransferModel") -> FloatArray:
        """Return [..., 2] milliseconds that codecs add; 0 on a single device.

        forward    the fullest device encodes its columns of all samples | all decode all columns of their samples
        backward   all encode all columns of their samples | the fullest device decodes its columns of all samples

        All columns of a device's samples are as many values as the mean device has of all samples. FP16 gradients are
        scaled as well.
        """
        topology = self.forward.topology
        columns = np.asarray(max_dim_sums, dtype=np.float64)
        added = np.zeros((*columns.shape, 2))
        if topology.num_devices == 1:
            return added
        for index, (direction, exchange) in enumerate(zip(DIRECTIONS, (self.forward, self.backward), strict=True)):
            kind = self.codecs[index]
            if kind is not None:
                num_samples = float(topology.num_devices * exchange.batch_size_per_device)
                fullest = num_samples * columns
                mean = np.broadcast_to(num_samples * exchange.mean_dim_sum, columns.shape)
                passes = (fullest, mean) if direction == "forward" else (mean, fullest)
                added[..., index] = costs.codec_ms(kind, *passes) + MS_PER_SECOND * wider_copy_seconds(
                    topology.device,
                    max_dim_sum=columns,
                    mean_dim_sum=exchange.mean_dim_sum,
                    num_devices=float(topology.num_devices),
                    batch_size_per_device=float(exchange.batch_size_per_device),
                    bytes_per_element=exchange.bytes_per_element,
                    direction=direction,
                )
                if direction == "backward":
                    added[..., index] += scaling_ms(kind, *passes, device=topology.device)
        return added


@dataclass(frozen=True, kw_only=True, slots=True)
class Reduction:
    """Collectives in which devices add up what each has a part of, of one family but columns."""

    topology: Topology
    """The devices and their links."""
    family: Family
    """ROWS and NODE_ROWS add up pooled embeddings, REPLICATED gradients."""


class TransferModel(Protocol):
    """A cost model of exchanges."""

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return [..., 2] forward and backward milliseconds, from the last device's start on: without waiting.

        Non-decreasing in the columns of the fullest device; 0 on a single device.

        Args:
            max_dim_sums: [...] columns of the fullest device.
            exchange: everything else that decides the times.
        """

    def reduction_ms(self, num_bytes: FloatArray, reduction: Reduction) -> FloatArray:
        """Return [..., 2] forward and backward milliseconds of a family's collectives, copies included.

        Non-decreasing in the bytes; 0 on a single device.

        Args:
            num_bytes: [...] what is added up: on each device the partial sums of all samples, for NODE_ROWS on the
                devices of the fullest node; for REPLICATED the gradients of all rows.
            reduction: everything else that decides the times.
        """

    @property
    def waits_for_shards(self) -> bool:
        """Whether sharded units of the dense part wait for each of their collectives: then compute hides none."""

    def dense_update_ms(self, gradient_bytes: FloatArray) -> FloatArray:
        """Return [...] milliseconds in which a device goes through gradients of all rows of its replicated tables."""

    @property
    def added_collection(self) -> CollectionParts | None:
        """Measured milliseconds that a further collection of tables adds to a step. None: not measured."""

    def expansion_ms(self, num_features: int, num_rows: float, num_bytes: float) -> float:
        """Return milliseconds, forward and backward, of copying pooled embeddings to samples that repeat a list.

        Args:
            num_features: whose lists repeat.
            num_rows: samples of a device times groups of these features.
            num_bytes: of the features of these rows.
        """

    def codec_ms(self, kind: WireType, encoded: FloatArray, decoded: FloatArray) -> FloatArray:
        """Return milliseconds [...] of the passes of a codec around an exchange, without copies.

        Args:
            kind: type on the wire.
            encoded: [...] values on the device that encodes most.
            decoded: [...] values on the device that decodes most.
        """

    def matrices_ms(self, forward_flops: float, backward_flops: float) -> tuple[float, float]:
        """Return milliseconds, forward and backward, of the dense part's matrix products.

        Args:
            forward_flops: floating-point operations of the forward pass.
            backward_flops: of the backward pass.
        """

    def dense_other_ms(self, passes: DensePasses) -> float:
        """Return milliseconds of the dense part's passes besides the operations of matrix products."""

    def dense_traffic_ms(self, one: DensePass) -> float:
        """Return milliseconds of a pass of the dense part without products on the device, such as its optimizer's."""

    def host_times(self, work: HostWork) -> HostTimes:
        """Return the host's times of a step."""


def lookup_bytes(tables: Sequence[Table]) -> IndexArray:
    """Return [tables] the bytes of a lookup: its index, and its weight where there is one."""
    return np.array([INDEX_BYTES + WEIGHT_BYTES * bool(table.is_weighted) for table in tables], dtype=np.int64)


def index_bytes(lookups: _Counts, lists: _Counts, bytes_per_lookup: IndexArray | int = INDEX_BYTES) -> _Counts:
    """Return [n] the bytes that travel to shards with these [n] lookups and lists of lookups per step.

    Args:
        lookups: of all samples.
        lists: each has a length; features times samples.
        bytes_per_lookup: see lookup_bytes.
    """
    return bytes_per_lookup * lookups + LENGTH_BYTES * lists


def pooled_exchange(request: PlanRequest) -> Exchange:
    """Return the exchange of embeddings without codecs.

    It has k times the columns of a table that k features look up, or k lookups.
    """
    total = sum(table.embedding_dim * table.num_vectors for table in request.tables.tables)
    return Exchange(
        topology=request.topology,
        batch_size_per_device=request.batch_size_per_device,
        mean_dim_sum=total / request.topology.num_devices,
        bytes_per_element=BYTES_PER_ELEMENT[request.memory.output_data_type],
    )


def encoded_exchange(request: PlanRequest) -> PooledExchange:
    """Return the exchange of embeddings with the codecs that the request names."""
    exact = pooled_exchange(request)
    if request.wire is None:
        return PooledExchange(forward=exact, backward=exact)
    types = (request.wire.forward, request.wire.backward)
    forward, backward = (replace(exact, bytes_per_element=WIRE_FORMATS[kind].bytes_per_value) for kind in types)
    first, second = (None if kind is WireType.FP32 else kind for kind in types)
    return PooledExchange(forward=forward, backward=backward, codecs=(first, second))


def least_index_bytes(request: PlanRequest) -> float:
    """Return the bytes of all indices and lengths of a step where no table is split."""
    tables = request.tables.tables
    lookups = request.global_batch_size * np.array([table.pooling_factor for table in tables])
    lists = request.global_batch_size * np.array([float(table.num_features) for table in tables])
    return float(index_bytes(lookups, lists, lookup_bytes(tables)).sum())


def index_exchange(request: PlanRequest, num_bytes: float | FloatArray) -> Exchange:
    """Return the exchange of indices in which every device has this many bytes, as columns in FP32."""
    return Exchange(
        topology=request.topology,
        batch_size_per_device=request.batch_size_per_device,
        mean_dim_sum=num_bytes / (request.global_batch_size * _COLUMN_BYTES),
        bytes_per_element=_COLUMN_BYTES,
    )
