"""Training samples drawn from documented distributions and timed by a device simulator. Trains nothing.

A compute sample is a set of shards on one device; a column slice differs from a table in its width alone, so shards
are drawn like tables. Sets come in two kinds, so that both the corners of the input space and the densely populated
part of it are covered:

====================  =========================================  =====================================================
quantity              wide set (60 %)                            model-like set (40 %)
====================  =========================================  =====================================================
shards                95 %: log-uniform 1..64; 5 %: 64..512      the same
samples               log-uniform 2^5..2^22                      2^8..2^20, powers of two
features per table    80 %: 1; 20 %: log-uniform 1..64           90 %: 1; 10 %: log-uniform 1..16
optimizer             uniform over the four                      the same
rows                  log-uniform 1..4e9                         70 %: log-uniform 1..1e5; 30 %: 1e5..1e9
lookups per bag       75 %: log-uniform 0.05..200;               70 %: exactly 1; 30 %: log-uniform 0.1..100
                      25 %: 1e-4..0.05 (shards of some rows)
columns               one law per shard: 4..512 log-uniform      one power of two in 8..256 per set; 30 % of shards are
                      and rounded to a multiple of 4, or 8, ...  slices of half or a quarter of it, 10 % multiples of 4
data type             75 % of sets one type, others mixed        70 % of sets FP32, else one type per set
output type           60 % of sets 4 bytes, else 2               the same
reuse                 75 %: Zipf exponent uniform 0..2;          90 %: Zipf exponent of the set (0.6..1.4) +- 0.2;
                      25 %: a histogram of geometric tail        10 %: a histogram of geometric tail
====================  =========================================  =====================================================

A table has one lookup at least. A network learns the device time of one call; where a set mixes data types, it learns
what its calls take less the fixed time of all but the first.
Sets may exceed the device's memory: the search asks for whole tables before it cuts them.

A communication sample is one all-to-all: 2..1,024 devices (log-uniform; 1, 2, 4, 8 or 16 per node, or one node of up to
72), links of the device's preset (half of the samples) or with a log-uniform bandwidth within 5 GB/s..2 TB/s inside and
1..500 GB/s between nodes and latencies of 0.5..50 us, mean columns log-uniform 4..2^17, largest / mean - 1 log-uniform
1e-3 up to the number of devices or 64 (10 %: balanced), batch per device log-uniform from 32 up to a global batch of
2^23 or what fits the device's memory, 1, 2 or 4 bytes.
"""

from dataclasses import dataclass, fields

import numpy as np
from neuroshard_api.documents.bundle import Range
from neuroshard_api.documents.presets import DevicePreset
from neuroshard_api.documents.tables import REUSE_BINS

from neuroshard_costs.features import Collectives
from neuroshard_costs.reuse.shard_arrays import rescaled_counts, zipf_counts
from neuroshard_costs.shards import COLUMNS, DATA_TYPES, OPTIMIZERS, FloatArray, IndexArray, ShardArrays
from neuroshard_costs.simulator.communication import NetworkColumns
from neuroshard_costs.simulator.compute import DEVICE_SECONDS, call_times
from neuroshard_costs.simulator.device import DeviceSimulator

MAX_ROWS = 4e9
MAX_POOLING = 200.0
MIN_POOLING = 1e-4
MAX_FEATURES = 64
MAX_COLUMNS = 512
MAX_SHARDS = 512
MIN_BATCH, MAX_BATCH = 2**5, 2**22
MAX_DEVICES = 1024
MAX_MEAN_DIM_SUM = 2.0**17
MAX_LOAD = 64.0

COMPUTE_VALIDITY = {
    "num_embeddings": Range(low=1, high=MAX_ROWS),
    "embedding_dim": Range(low=4, high=MAX_COLUMNS),
    "pooling_factor": Range(low=MIN_POOLING, high=MAX_POOLING),
    "bytes_per_element": Range(low=1, high=4),
    "output_bytes_per_element": Range(low=2, high=4),
    "num_features": Range(low=1, high=MAX_FEATURES),
    "global_batch_size": Range(low=MIN_BATCH, high=MAX_BATCH),
    "tables_per_device": Range(low=1, high=MAX_SHARDS),
}
"""What compute samples cover, in the words of the request."""

COMMUNICATION_VALIDITY = {
    "num_devices": Range(low=2, high=MAX_DEVICES),
    "mean_dim_sum": Range(low=4, high=MAX_MEAN_DIM_SUM),
    "intra_node.bandwidth_bytes_per_second": Range(low=5e9, high=2e12),
    "intra_node.latency_seconds": Range(low=5e-7, high=5e-5),
    "inter_node.bandwidth_bytes_per_second": Range(low=1e9, high=5e11),
    "inter_node.latency_seconds": Range(low=5e-7, high=5e-5),
}
"""What communication samples cover."""

_MODEL_LIKE = 0.4
_FEW_LOOKUPS = 0.05  # per bag: below lie shards of some of a table's rows
_TYPE_SHARES = (0.5, 0.15, 0.15, 0.2)  # in the order of DATA_TYPES
_MODEL_TYPE_SHARES = (0.7, 0.1, 0.1, 0.1)
_CHUNK_SHARDS = 8192  # bounds the memory of the Zipf grid


@dataclass(frozen=True, kw_only=True, slots=True)
class ComputeSamples:
    """Sets of shards with their times."""

    shards: ShardArrays
    """Of all sets, one set after the other."""
    set_index: IndexArray
    """[shards] the set each belongs to, rising."""
    times_ms: FloatArray
    """[sets, 2] forward and backward device time, less the fixed time of all calls but the first."""
    is_model_like: np.ndarray
    """[sets]"""

    def __len__(self) -> int:
        return len(self.times_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class CommunicationSamples:
    """All-to-alls with their times."""

    collectives: Collectives
    max_dim_sum: FloatArray
    """[n]"""
    times_ms: FloatArray
    """[n, 2] forward and backward."""

    def __len__(self) -> int:
        return len(self.times_ms)


def compute_samples(preset: DevicePreset, *, num_samples: int, seed: int) -> ComputeSamples:
    """Draw sets of shards and time them."""
    random = np.random.default_rng([seed, 0])
    model_like = random.random(num_samples) < _MODEL_LIKE
    many = random.random(num_samples) < 0.05  # noqa: PLR2004 - see the table above
    low, high = np.where(many, 64, 1), np.where(many, MAX_SHARDS, 64)
    sizes = np.round(_log_uniform(random, low, high)).astype(np.int64)
    set_index = np.repeat(np.arange(num_samples), sizes)
    wide = _wide_shards(random, set_index, num_samples)
    models = _model_like_shards(random, set_index, num_samples)
    chosen = model_like[set_index]
    drawn = _DrawnShards(
        **{
            field.name: np.where(chosen, getattr(models, field.name), getattr(wide, field.name))
            for field in fields(_DrawnShards)
        }
    )
    shards = _with_reuse(random, drawn)
    calls = call_times(preset.device, shards, set_index, num_samples)
    times = 1000.0 * (calls.device_seconds - (calls.num_calls - 1)[:, None] * DEVICE_SECONDS)
    return ComputeSamples(shards=shards, set_index=set_index, times_ms=times, is_model_like=model_like)


def communication_samples(preset: DevicePreset, *, num_samples: int, seed: int) -> CommunicationSamples:
    """Draw all-to-alls and time them in both directions."""
    random = np.random.default_rng([seed, 1])
    wanted = _log_uniform(random, np.full(num_samples, 2), MAX_DEVICES)
    one_node = (random.random(num_samples) < 0.2) & (wanted <= 72)  # noqa: PLR2004 - see the text above
    per_node = np.where(one_node, np.round(wanted), random.choice([1.0, 2.0, 4.0, 8.0, 8.0, 16.0], num_samples))
    num_nodes = np.clip(np.round(wanted / per_node), np.where(per_node == 1, 2.0, 1.0), MAX_DEVICES / per_node)
    usual = random.random(num_samples) < 0.5  # noqa: PLR2004
    intra, inter = preset.intra_node, preset.inter_node

    def link(usual_value: float, low: float, high: float) -> FloatArray:
        return np.where(usual, usual_value, _log_uniform(random, np.full(num_samples, low), high))

    mean_dim_sum = _log_uniform(random, np.full(num_samples, 4.0), MAX_MEAN_DIM_SUM)
    bytes_per_element = random.choice([1.0, 2.0, 4.0], num_samples)
    most_samples = np.minimum(2 * MAX_BATCH, preset.device.memory_bytes / (mean_dim_sum * bytes_per_element))
    collectives = Collectives(
        mean_dim_sum=mean_dim_sum,
        batch_size_per_device=np.round(
            _log_uniform(random, np.full(num_samples, 32.0), np.maximum(most_samples / (num_nodes * per_node), 33.0))
        ),
        bytes_per_element=bytes_per_element,
        num_nodes=num_nodes,
        devices_per_node=per_node,
        intra_bandwidth=link(intra.bandwidth_bytes_per_second, 5e9, 2e12),
        inter_bandwidth=link(inter.bandwidth_bytes_per_second, 1e9, 5e11),
        intra_latency=link(intra.latency_seconds, 5e-7, 5e-5),
        inter_latency=link(inter.latency_seconds, 5e-7, 5e-5),
    )
    surplus = _log_uniform(random, np.full(num_samples, 1e-3), np.minimum(num_nodes * per_node, MAX_LOAD) - 1)
    surplus[random.random(num_samples) < 0.1] = 0.0  # noqa: PLR2004
    max_dim_sum = collectives.mean_dim_sum * (1 + surplus)
    simulator = DeviceSimulator(preset.device)
    network = NetworkColumns(
        num_nodes=num_nodes,
        devices_per_node=per_node,
        intra_bandwidth_bytes_per_second=collectives.intra_bandwidth,
        intra_latency_seconds=collectives.intra_latency,
        inter_bandwidth_bytes_per_second=collectives.inter_bandwidth,
        inter_latency_seconds=collectives.inter_latency,
    )
    times = [
        simulator.communication_ms(
            network,
            max_dim_sum=max_dim_sum,
            mean_dim_sum=collectives.mean_dim_sum,
            batch_size_per_device=collectives.batch_size_per_device,
            bytes_per_element=collectives.bytes_per_element,
            direction=direction,
        )
        for direction in ("forward", "backward")
    ]
    return CommunicationSamples(collectives=collectives, max_dim_sum=max_dim_sum, times_ms=np.stack(times, axis=1))


@dataclass(frozen=True, kw_only=True, slots=True)
class _DrawnShards:
    """Shards before their reuse is known."""

    num_rows: FloatArray
    num_columns: FloatArray
    bags: FloatArray
    lookups: FloatArray
    data_type: IndexArray
    output_bytes_per_element: FloatArray
    optimizer: IndexArray
    zipf_exponent: FloatArray
    is_measured: np.ndarray


def _wide_shards(random: np.random.Generator, set_index: IndexArray, num_sets: int) -> _DrawnShards:
    count = len(set_index)
    mixed = (random.random(num_sets) < 0.25)[set_index]  # noqa: PLR2004
    multiple = random.choice([4.0, 8.0, 16.0, 32.0], count)
    columns = np.maximum(np.round(_log_uniform(random, np.full(count, 4.0), MAX_COLUMNS) / multiple), 1) * multiple
    set_type, own_type = (random.choice(len(DATA_TYPES), size, p=_TYPE_SHARES) for size in (num_sets, count))
    batch = np.round(_log_uniform(random, np.full(num_sets, MIN_BATCH), MAX_BATCH))[set_index]
    bags = batch * _features(random, count, 0.2, MAX_FEATURES)
    few = random.random(count) < 0.25  # noqa: PLR2004
    low, high = np.where(few, MIN_POOLING, _FEW_LOOKUPS), np.where(few, _FEW_LOOKUPS, MAX_POOLING)
    return _DrawnShards(
        num_rows=np.round(_log_uniform(random, np.ones(count), MAX_ROWS)),
        num_columns=columns,
        bags=bags,
        lookups=np.maximum(bags * _log_uniform(random, low, high), 1.0),
        data_type=np.where(mixed, own_type, set_type[set_index]),
        output_bytes_per_element=_output_bytes(random, num_sets)[set_index],
        optimizer=random.integers(len(OPTIMIZERS), size=num_sets)[set_index],
        zipf_exponent=random.uniform(0.0, 2.0, count),
        is_measured=random.random(count) < 0.25,  # noqa: PLR2004
    )


def _model_like_shards(random: np.random.Generator, set_index: IndexArray, num_sets: int) -> _DrawnShards:
    count = len(set_index)
    large = random.random(count) < 0.3  # noqa: PLR2004
    rows = np.round(_log_uniform(random, np.where(large, 1e5, 1.0), np.where(large, 1e9, 1e5)))
    many_hot = random.random(count) < 0.3  # noqa: PLR2004
    table_columns = (2.0 ** random.integers(3, 9, size=num_sets))[set_index]
    cut = random.choice([1.0, 2.0, 4.0], count, p=[0.7, 0.2, 0.1])
    odd = random.random(count) < 0.1  # noqa: PLR2004
    columns = np.where(odd, 4.0 * random.integers(1, 65, size=count), np.maximum(table_columns / cut, 4.0))
    centre = random.uniform(0.6, 1.4, num_sets)[set_index]
    batch = np.exp2(random.integers(8, 21, size=num_sets).astype(np.float64))[set_index]
    bags = batch * _features(random, count, 0.1, 16)
    pooling = np.where(many_hot, _log_uniform(random, np.full(count, 0.1), 100.0), 1.0)
    return _DrawnShards(
        num_rows=rows,
        num_columns=columns,
        bags=bags,
        lookups=np.maximum(bags * pooling, 1.0),
        data_type=random.choice(len(DATA_TYPES), num_sets, p=_MODEL_TYPE_SHARES)[set_index],
        output_bytes_per_element=_output_bytes(random, num_sets)[set_index],
        optimizer=random.integers(len(OPTIMIZERS), size=num_sets)[set_index],
        zipf_exponent=centre + random.uniform(-0.2, 0.2, count),
        is_measured=random.random(count) < 0.1,  # noqa: PLR2004
    )


def _features(random: np.random.Generator, count: int, share: float, most: int) -> FloatArray:
    """Draw the number of features of each table: more than one for this share of them."""
    several = random.random(count) < share
    return np.where(several, np.round(_log_uniform(random, np.ones(count), most)), 1.0)


def _output_bytes(random: np.random.Generator, num_sets: int) -> FloatArray:
    return random.choice([4.0, 2.0], num_sets, p=[0.6, 0.4])


def _with_reuse(random: np.random.Generator, drawn: _DrawnShards) -> ShardArrays:
    """Give every shard the reuse that its Zipf exponent or a drawn histogram implies."""
    lookups = drawn.lookups
    counts = np.empty((len(lookups), REUSE_BINS))
    derived = np.flatnonzero(~drawn.is_measured)
    for start in range(0, len(derived), _CHUNK_SHARDS):
        chunk = derived[start : start + _CHUNK_SHARDS]
        counts[chunk] = zipf_counts(drawn.num_rows[chunk], lookups=lookups[chunk], exponents=drawn.zipf_exponent[chunk])
    measured = np.flatnonzero(drawn.is_measured)
    counts[measured] = rescaled_counts(
        _histograms(random, lookups[measured]), num_rows=drawn.num_rows[measured], lookups=lookups[measured], ratio=1.0
    )
    touched = counts.sum(axis=1)
    return ShardArrays(
        num_rows=drawn.num_rows,
        num_columns=drawn.num_columns,
        bags=drawn.bags,
        lookups=lookups,
        data_type=drawn.data_type,
        family=np.full_like(drawn.data_type, COLUMNS),  # a call of another family takes as long
        output_bytes_per_element=drawn.output_bytes_per_element,
        optimizer=drawn.optimizer,
        reuse_histogram=counts / touched[:, None],
        unique_rows=np.minimum(touched, np.minimum(drawn.num_rows, lookups)),
    )


def _histograms(random: np.random.Generator, lookups: FloatArray) -> FloatArray:
    """Draw histograms like the published ones: a geometric tail with jitter, no bin beyond the table's lookups."""
    bins = np.arange(REUSE_BINS)
    decay = random.uniform(0.1, 2.5, len(lookups))[:, None]
    shares = np.exp(-decay * bins + random.normal(0.0, 0.5, (len(lookups), REUSE_BINS)))
    shares[bins > np.log2(np.maximum(lookups, 1.0))[:, None]] = 0.0
    histograms: FloatArray = shares / shares.sum(axis=1, keepdims=True)
    return histograms


def _log_uniform(random: np.random.Generator, low: FloatArray | IndexArray, high: FloatArray | float) -> FloatArray:
    drawn: FloatArray = np.exp(random.uniform(np.log(low), np.log(high)))
    return drawn
