"""From records to the arrays that cost models are fitted to. Fits nothing."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from neuroshard_api.documents.bundle import Range
from neuroshard_api.documents.records import CommunicationSample, ComputeSample, ProfileRecord
from neuroshard_api.documents.tables import DataType

from neuroshard_costs.features import Collectives
from neuroshard_costs.pretrain.datasets import ComputeSamples
from neuroshard_costs.reuse.shard_arrays import sample_shards
from neuroshard_costs.shards import BYTES_PER_ELEMENT, FloatArray, ShardArrays


@dataclass(frozen=True, kw_only=True, slots=True)
class Transfers:
    """Measured all-to-alls of one direction."""

    collectives: Collectives
    max_dim_sum: FloatArray
    """[n]"""
    times_ms: FloatArray
    """[n] of the device that starts last: it waits for none."""

    def __len__(self) -> int:
        return len(self.times_ms)


def compute_samples(records: Sequence[ProfileRecord]) -> ComputeSamples:
    """Return the compute records as sets of shards. There must be one at least."""
    measured = [(record, record.compute) for record in records if record.compute is not None]
    sets = [sample_shards(sample) for _, sample in measured]
    return ComputeSamples(
        shards=ShardArrays(
            **{
                field.name: np.concatenate([getattr(each, field.name) for each in sets])
                for field in fields(ShardArrays)
            }
        ),
        set_index=np.repeat(np.arange(len(sets)), [len(each) for each in sets]),
        times_ms=np.array([[record.forward_ms, record.backward_ms] for record, _ in measured], dtype=np.float64),
        is_model_like=np.zeros(len(sets), dtype=bool),
    )


def transfers(records: Sequence[ProfileRecord], direction: Literal["forward", "backward"]) -> Transfers:
    """Return the communication records of one direction; there may be none."""
    found = [
        (record, record.communication)
        for record in records
        if record.communication is not None and record.communication.direction == direction
    ]

    def column(values: Sequence[float]) -> FloatArray:
        return np.array(values, dtype=np.float64)

    samples = [sample for _, sample in found]
    links = [sample.links for sample in samples]
    return Transfers(
        collectives=Collectives(
            mean_dim_sum=column([float(np.mean(sample.embedding_dim_sums)) for sample in samples]),
            batch_size_per_device=column([sample.batch_size_per_device for sample in samples]),
            bytes_per_element=column([sample.bytes_per_element for sample in samples]),
            num_nodes=column([sample.num_nodes for sample in samples]),
            devices_per_node=column([sample.devices_per_node for sample in samples]),
            intra_bandwidth=column([intra.bandwidth_bytes_per_second for intra, _ in links]),
            inter_bandwidth=column([inter.bandwidth_bytes_per_second for _, inter in links]),
            intra_latency=column([intra.latency_seconds for intra, _ in links]),
            inter_latency=column([inter.latency_seconds for _, inter in links]),
        ),
        max_dim_sum=column([max(sample.embedding_dim_sums) for sample in samples]),
        times_ms=column([_last_starter_ms(record, sample) for record, sample in found]),
    )


def compute_validity(samples: Sequence[ComputeSample]) -> dict[str, Range]:
    """Return the ranges that the samples cover, by the fields of the request."""
    tables = [table for sample in samples for table in sample.tables]
    return {
        "num_embeddings": _range([table.num_embeddings for table in tables]),
        "embedding_dim": _range([table.embedding_dim for table in tables]),
        "pooling_factor": _range([table.pooling_factor for table in tables]),
        "num_features": _range([table.num_features for table in tables]),
        "bytes_per_element": _range([BYTES_PER_ELEMENT[table.data_type] for table in tables]),
        "output_bytes_per_element": _range([BYTES_PER_ELEMENT[DataType.FP32]]),  # as all measured calls return
        "global_batch_size": _range([sample.batch_size for sample in samples]),
        "tables_per_device": _range([len(sample.tables) for sample in samples]),
    }


def transfer_validity(measured: Transfers) -> dict[str, Range]:
    """Return the ranges that the all-to-alls cover, by the fields of the request."""
    of = measured.collectives
    covered = {
        "num_devices": _range(of.num_nodes * of.devices_per_node),
        "mean_dim_sum": _range(of.mean_dim_sum),
        "bytes_per_element": _range(of.bytes_per_element),
        "exchange_bytes": _range(
            of.mean_dim_sum * of.batch_size_per_device * of.num_nodes * of.devices_per_node * of.bytes_per_element
        ),
    }
    levels = (
        ("intra_node", of.devices_per_node > 1, of.intra_bandwidth, of.intra_latency),
        ("inter_node", of.num_nodes > 1, of.inter_bandwidth, of.inter_latency),
    )
    for level, is_spanned, bandwidth, latency in levels:
        if is_spanned.any():
            covered[f"{level}.bandwidth_bytes_per_second"] = _range(bandwidth[is_spanned])
            covered[f"{level}.latency_seconds"] = _range(latency[is_spanned])
    return covered


def _range(values: Sequence[float] | FloatArray) -> Range:
    return Range(low=float(min(values)), high=float(max(values)))


def _last_starter_ms(record: ProfileRecord, sample: CommunicationSample) -> float:
    if sample.start_offsets_ms:
        return record.device_ms[int(np.argmax(sample.start_offsets_ms))]
    return max(record.device_ms)
