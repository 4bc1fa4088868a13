"""Bundles: directories of a manifest and the weights of the three cost networks. Reads and writes them, trains none."""

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np
from neuroshard_api.documents.bundle import BUNDLE_FOLDER, BundleManifest, CollectionParts, NetworkName, Range
from neuroshard_api.documents.communication import WireType
from neuroshard_api.documents.dense_profile import DensePass, DensePasses
from neuroshard_api.documents.document import COMPRESSED_SUFFIX, DocumentError, read_bytes
from neuroshard_api.documents.request import Pipeline, PlanRequest
from neuroshard_api.documents.topology import DeviceType, Topology
from neuroshard_api.process.hints import without_hint
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors

from neuroshard_costs.arithmetic import power
from neuroshard_costs.codec_passes import codec_ms
from neuroshard_costs.errors import BundleDamagedError, BundleNotFoundError, BundleVersionError
from neuroshard_costs.exchanges import (
    Exchange,
    Reduction,
    encoded_exchange,
    index_exchange,
    least_index_bytes,
)
from neuroshard_costs.expansion import expansion_ms
from neuroshard_costs.features import (
    COMMUNICATION_FEATURES,
    COMPUTE_FEATURES,
    FEATURE_VERSION,
    NUM_CALL_COUNTS,
    Collectives,
    Float32Array,
    call_counts,
    compute_features,
)
from neuroshard_costs.host import HostTimes, HostWork, host_times
from neuroshard_costs.levels import exchange_link
from neuroshard_costs.measured_reductions import with_measured
from neuroshard_costs.networks import CommunicationNetwork, ComputeNetwork, Weights
from neuroshard_costs.shards import BYTES_PER_ELEMENT, NUM_CALLS, FloatArray, IndexArray, ShardArrays
from neuroshard_costs.simulator.compute import overlapped
from neuroshard_costs.simulator.dense import matrices_ms, other_ms, traffic_ms
from neuroshard_costs.simulator.device import DeviceSimulator

MANIFEST_FILE = "manifest.json"
WEIGHTS_FILE = "weights.safetensors"
NETWORK_FEATURES: dict[NetworkName, tuple[str, ...]] = {
    "compute": COMPUTE_FEATURES,
    "forward_communication": COMMUNICATION_FEATURES,
    "backward_communication": COMMUNICATION_FEATURES,
}
"""The networks of every bundle, in the manifest's order, with the inputs of each."""

LEAST_WARP_SHARE = 0.25
"""Share of a warp that a bag takes in calls of narrow tables alone."""

_REMAKE = "make the bundle again with `neuroshard pretrain`"


_LEVELS = ("intra_node", "inter_node")


@dataclass(frozen=True, kw_only=True, slots=True)
class CostBundle:
    """The cost models of one kind of device, with their manifest; a calibration is already applied."""

    manifest: BundleManifest
    compute: ComputeNetwork
    forward_communication: CommunicationNetwork
    backward_communication: CommunicationNetwork

    def represent(self, shards: ShardArrays) -> FloatArray:
        """Return [n, R + NUM_CALL_COUNTS]: demands of shards, and what they add to the counts of calls; both add up."""
        return np.concatenate((self.compute.demands(compute_features(shards)), call_counts(shards)), axis=1)

    def compute_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:
        """Return [..., 2]: forward and backward milliseconds of devices with these sums of representations.

        Both never fall when shards are added. A device makes a call per family and data type that occurs on it; one
        without shards costs 0.

        Args:
            sums: [..., R + NUM_CALL_COUNTS].
            pipeline: without one the host's launch of each call counts where it takes longer than the device.
        """
        counts = sums[..., -NUM_CALL_COUNTS:] > 0
        calls = counts[..., :NUM_CALLS].sum(axis=-1)[..., None]
        return self._calls_ms(sums, _warp_share(sums), calls, pipeline)

    def lanes(self, representations: FloatArray) -> FloatArray:
        """Return [n]: the share of a warp that all bags of a device with one of these shards take at least."""
        return _warp_share(representations)

    def least_demands(self, representations: FloatArray, *, lanes: float = 0.0) -> FloatArray:
        """Return [n, R + 2]: what n shards demand where no other shard on their devices is wider, and its lanes.

        A wider one gives all bags of its device more lanes, which only adds. ``lanes`` is what some other shard on all
        of these devices gives them (see `lanes`).
        """
        spare = 1 - np.maximum(_warp_share(representations), lanes)
        least = np.delete(representations, np.s_[self.compute.num_demands : NUM_CALLS - NUM_CALL_COUNTS], axis=1)
        least[:, : self.compute.num_demands] *= 1 - self.compute.lane_share * spare[:, None]
        return least

    def least_ms(self, sums: FloatArray, *, pipeline: Pipeline) -> FloatArray:
        """Return [..., 2]: milliseconds that no device whose shards have these sums of least demands goes below.

        Non-decreasing and convex in the sums, after a calibration whose exponent is below 1 a non-decreasing function
        of that; so the largest over several devices is not less than the time of their mean, forward and backward each
        for itself.
        """
        return self._calls_ms(sums, 1.0, np.ones((*sums.shape[:-1], 1), dtype=np.int64), pipeline)

    def tangent_ms(self, sums: FloatArray, *, num_calls: int) -> tuple[FloatArray, FloatArray] | None:
        """Return times [2] at these sums [R + 2] of least demands and slopes [2, R + 2]; None: not convex.

        With a pipeline or without, no device with this number of calls goes below this tangent of least demands.
        """
        if not self.is_convex:
            return None
        times, own = self.compute.tangent_ms(sums[: self.compute.num_demands])
        times += (num_calls - 1) * np.array(self.manifest.launch.device_ms)
        if self.manifest.calibration is not None:
            exponent, factor = self.manifest.calibration.compute_scale
            own *= (factor * exponent * power(times, exponent - 1))[:, None]
            times = factor * power(times, exponent)
        slopes = np.zeros((2, len(sums)))
        slopes[:, : self.compute.num_demands] = own
        return times, slopes

    def _calls_ms(
        self, sums: FloatArray, warp_share: FloatArray | float, calls: IndexArray, pipeline: Pipeline
    ) -> FloatArray:
        """Return the times of devices that make that many calls [..., 1]; the network's time holds the first."""
        times = self.compute.times_ms(sums[..., : self.compute.num_demands], warp_share)
        times += np.maximum(calls - 1, 0) * np.array(self.manifest.launch.device_ms)
        if self.manifest.calibration is not None:  # it was fitted to device time; the host's launches keep theirs
            exponent, factor = self.manifest.calibration.compute_scale
            times = factor * power(times, exponent)
        if pipeline is Pipeline.NONE:
            times = overlapped(np.stack([times, calls * np.array(self.manifest.launch.host_ms)]))
        times *= calls > 0
        return times

    @property
    def is_convex(self) -> bool:
        """Whether both compute times are convex in the sums: a calibration's exponent below 1 bends them."""
        calibration = self.manifest.calibration
        return calibration is None or calibration.compute_scale[0] >= 1

    def transfer_ms(self, max_dim_sums: FloatArray, exchange: Exchange) -> FloatArray:
        """Return [..., 2] forward and backward milliseconds (see TransferModel)."""
        collectives = Collectives.of_exchange(exchange)
        columns = np.asarray(max_dim_sums, dtype=np.float64)
        times = [
            network.transfer_ms(columns.ravel(), collectives).reshape(columns.shape)
            for network in (self.forward_communication, self.backward_communication)
        ]
        if (calibration := self.manifest.calibration) is not None:
            scales = (calibration.forward_communication_scale, calibration.backward_communication_scale)
            times = [factor * power(time, exponent) for time, (exponent, factor) in zip(times, scales, strict=True)]
        return np.stack(times, axis=-1)

    def reduction_ms(self, num_bytes: FloatArray, reduction: Reduction) -> FloatArray:
        """Return [..., 2] forward and backward milliseconds (see TransferModel)."""
        simulated = DeviceSimulator(self.manifest.device).reduction_ms(num_bytes, reduction)
        times = with_measured(simulated, num_bytes, reduction, self.manifest.reductions)
        calibration = self.manifest.calibration
        if calibration is None or reduction.family not in calibration.reduction_factors:
            return times
        scaled: FloatArray = times * np.array(calibration.reduction_factors[reduction.family])
        return scaled

    @property
    def waits_for_shards(self) -> bool:
        """Whether they were measured over gloo, whose calls by `fully_shard` return when they are done."""
        return self.manifest.device.is_cpu and bool(self.manifest.reductions)

    def dense_update_ms(self, gradient_bytes: FloatArray) -> FloatArray:
        """Return [...] milliseconds (see TransferModel)."""
        return DeviceSimulator(self.manifest.device).dense_update_ms(gradient_bytes)

    @property
    def added_collection(self) -> CollectionParts | None:
        """Milliseconds (see TransferModel)."""
        return self.manifest.added_collection

    def expansion_ms(self, num_features: int, num_rows: float, num_bytes: float) -> float:
        """Return milliseconds (see TransferModel)."""
        return expansion_ms(
            num_features, num_rows, num_bytes, device=self.manifest.device, measured=self.manifest.expansion
        )

    def codec_ms(self, kind: WireType, encoded: FloatArray, decoded: FloatArray) -> FloatArray:
        """Return milliseconds (see TransferModel)."""
        return codec_ms(kind, encoded, decoded, device=self.manifest.device, measured=self.manifest.codecs)

    def matrices_ms(self, forward_flops: float, backward_flops: float) -> tuple[float, float]:
        """Return milliseconds (see TransferModel)."""
        return matrices_ms(forward_flops, backward_flops, device=self.manifest.device, measured=self.manifest.matrices)

    def dense_other_ms(self, passes: DensePasses) -> float:
        """Return milliseconds (see TransferModel)."""
        return other_ms(passes, device=self.manifest.device, measured=self.manifest.matrices)

    def dense_traffic_ms(self, one: DensePass) -> float:
        """Return milliseconds (see TransferModel)."""
        return traffic_ms(one, device=self.manifest.device)

    def host_times(self, work: HostWork) -> HostTimes:
        """Return milliseconds (see TransferModel)."""
        return host_times(work, device=self.manifest.device, launch=self.manifest.launch)

    def device_problem(self, device: DeviceType) -> str | None:
        """Return the fault of pricing a device of another product with these models. None: it is the same one."""
        if self.manifest.is_of(device):
            return None
        own = self.manifest.device.product
        return f"topology.device: is {device.product!r}, the cost models of {self.manifest.name} are of {own!r}"

    def validity_warnings(self, request: PlanRequest) -> tuple[str, ...]:
        """Return a sentence for another device, and for every quantity that the networks were not trained for.

        Each names the field and, for tables, the table that is furthest outside.
        """
        compute, communication = (self.manifest.networks[index].validity for index in (0, 1))
        judged = _judged_tables(request, compute)
        if request.topology.num_devices > 1:
            judged += _judged_exchanges(request, communication)
        fitted = [level for level in _LEVELS if f"{level}.bandwidth_bytes_per_second" in communication]
        uncovered = [
            f"topology.{level}: no exchange over it was among those that the cost models of {self.manifest.name} were "
            "fitted to; its cost is extrapolated"
            for level in _levels(request.topology)
            if fitted and level not in fitted
        ]
        other = self.device_problem(request.topology.device)
        device = () if other is None else (f"{other}; the costs are those of that device",)
        return (*device, *_warnings(self.manifest.name, judged), *uncovered)


def _warp_share(sums: FloatArray) -> FloatArray:
    """Return [...] the share of a warp that each bag takes of calls with these [..., R + NUM_CALL_COUNTS] sums."""
    above = sums[..., NUM_CALLS - NUM_CALL_COUNTS :] > 0
    share: FloatArray = np.where(above[..., 1], 1.0, np.where(above[..., 0], 0.5, LEAST_WARP_SHARE))
    return share


def load_bundle(path: Path) -> CostBundle:
    """Read a bundle directory. Raises BundleError: which file, what is wrong with it, what to try."""
    manifest = _read_manifest(path)
    if manifest.feature_version != FEATURE_VERSION:
        raise BundleVersionError(
            f"{path / MANIFEST_FILE}: feature_version is {manifest.feature_version}, this release computes features of "
            f"version {FEATURE_VERSION}; hint: {_REMAKE}"
        )
    for network, (name, features) in zip(manifest.networks, NETWORK_FEATURES.items(), strict=True):
        if network.name != name or network.features != features:
            raise BundleVersionError(
                f"{path / MANIFEST_FILE}: networks: found {network.name!r} with {len(network.features)} features where "
                f"{name!r} with {len(features)} features of this release's names was expected; hint: {_REMAKE}"
            )
    weights = _read_weights(path / WEIGHTS_FILE, manifest.weights_sha256)
    try:
        return CostBundle(
            manifest=manifest,
            compute=ComputeNetwork.from_weights(part_of(weights, "compute")),
            forward_communication=CommunicationNetwork.from_weights(part_of(weights, "forward_communication")),
            backward_communication=CommunicationNetwork.from_weights(part_of(weights, "backward_communication")),
        )
    except ValueError as error:
        raise BundleDamagedError(f"{path / WEIGHTS_FILE}: {error}; hint: {_REMAKE}") from error


def save_bundle(
    path: Path, manifest: BundleManifest, weights: Weights, *, extras: Mapping[str, bytes] | None = None
) -> BundleManifest:
    """Write a bundle directory, replacing one that is there, and return the manifest with the weights' hash.

    The directory appears whole or not at all. Equal contents give equal bytes.

    Args:
        path: the directory; its parent is made if need be.
        manifest: its weights_sha256 is replaced.
        weights: arrays named ``<network>.<array>``.
        extras: more files by name, for people.
    """
    data = save_safetensors({name: np.ascontiguousarray(weights[name]) for name in sorted(weights)})
    manifest = manifest.model_copy(update={"weights_sha256": hashlib.sha256(data).hexdigest()})
    path.parent.mkdir(parents=True, exist_ok=True)
    extras = extras or {}
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as scratch:
        fresh = Path(scratch) / "bundle"
        fresh.mkdir()
        (fresh / WEIGHTS_FILE).write_bytes(data)
        (fresh / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
        for name, content in extras.items():
            (fresh / name).write_bytes(content)
        if path.exists():
            path.rename(Path(scratch) / "old")
        fresh.rename(path)
    return manifest


def bundle_at(place: Path) -> CostBundle:
    """Load the bundle of a directory, or of the profile that it holds, or the bundled one of a device of that name.

    Raises:
        BundleError: as load_bundle.
    """
    is_device = not place.exists() and str(place) in bundled_names()
    if is_device:
        return bundled_bundle(str(place))
    own = place / BUNDLE_FOLDER
    return load_bundle(own if (own / MANIFEST_FILE).exists() else place)


def bundled_bundle(device_name: str) -> CostBundle:
    """Load the bundle that comes with the planner for a device preset. Raises BundleError, listing what is there."""
    root = bundled_root()
    names = bundled_names()
    if device_name not in names:
        there = ", ".join(names) or "none"
        raise BundleNotFoundError(
            f"no built-in cost models for the device {device_name!r}, only for: {there}; "
            "hint: choose one of them, make one with `neuroshard pretrain` and give its directory, or take those of "
            f"the nearest device: --bundle {names[0] if names else 'DIRECTORY'}"
        )
    return load_bundle(root / device_name)


def bundled_names() -> tuple[str, ...]:
    """Return the devices that bundles come with, sorted."""
    root = bundled_root()
    return tuple(sorted(path.parent.name for path in root.glob(f"*/{MANIFEST_FILE}")))


def bundled_root() -> Path:
    """Return the directory of the bundles that come with the planner."""
    return Path(str(files("neuroshard_costs"))) / "bundles"


def read_weights(path: Path) -> dict[str, Float32Array]:
    """Return the weights of a bundle directory by their full names. Raises BundleError."""
    return _read_weights(path / WEIGHTS_FILE, _read_manifest(path).weights_sha256)


def _levels(topology: Topology) -> tuple[str, ...]:
    """Return the links that the topology uses."""
    return ("intra_node",) * (topology.devices_per_domain > 1) + ("inter_node",) * (topology.num_domains > 1)


class _Judged(NamedTuple):
    """A number of a request that a network may not have been trained for."""

    path: str
    """The field, for people; of tables with the name in brackets."""
    quantity: str
    """As the manifest's ranges name it."""
    value: float
    ranges: Mapping[str, Range]


def _judged_tables(request: PlanRequest, ranges: Mapping[str, Range]) -> list[_Judged]:
    """Return the quantities of the tables and of the calls that look them up."""
    tables = request.tables.tables
    output_bytes = BYTES_PER_ELEMENT[request.memory.output_data_type]
    tables_per_device = len(tables) / request.topology.num_devices
    return [
        *(
            _Judged(f"tables[{table.name}].{field}", field, getattr(table, field), ranges)
            for field in ("num_embeddings", "embedding_dim", "pooling_factor", "num_features")
            for table in tables
        ),
        *(
            _Judged(f"tables[{table.name}].bytes_per_element", "bytes_per_element", size, ranges)
            for table, size in zip(tables, (BYTES_PER_ELEMENT[table.data_type] for table in tables), strict=True)
        ),
        _Judged("output_bytes_per_element", "output_bytes_per_element", output_bytes, ranges),
        _Judged("global_batch_size", "global_batch_size", request.global_batch_size, ranges),
        _Judged("tables_per_device", "tables_per_device", tables_per_device, ranges),
    ]


def _judged_exchanges(request: PlanRequest, ranges: Mapping[str, Range]) -> list[_Judged]:
    """Return the quantities of both exchanges where all devices have as much, and of the links that they pass."""
    topology, encoded = request.topology, encoded_exchange(request)
    exchanges = {
        "pooled_embeddings": encoded.forward,
        "indices": index_exchange(request, least_index_bytes(request) / topology.num_devices),
    }
    judged = [_Judged("topology.num_devices", "num_devices", topology.num_devices, ranges)]
    for name, exchange in exchanges.items():
        judged += [
            _Judged(f"{name}.mean_dim_sum", "mean_dim_sum", float(exchange.mean_dim_sum), ranges),
            _Judged(f"{name}.exchange_bytes", "exchange_bytes", float(exchange.num_bytes), ranges),
        ]
    for wire_bytes in dict.fromkeys((encoded.forward.bytes_per_element, encoded.backward.bytes_per_element)):
        judged.append(_Judged("wire_bytes_per_element", "bytes_per_element", wire_bytes, ranges))
    links = {"intra_node": topology.intra_node, "inter_node": exchange_link(topology)}
    for level in _levels(topology):
        for field in ("bandwidth_bytes_per_second", "latency_seconds"):
            value = getattr(links[level], field)
            judged.append(_Judged(f"topology.{level}.{field}", f"{level}.{field}", value, ranges))
    return judged


def _warnings(bundle: str, judged: Sequence[_Judged]) -> tuple[str, ...]:
    """Return one sentence per quantity that is outside its range; of tables, the one furthest outside is named."""
    worst: dict[str, tuple[float, int, str]] = {}
    for path, quantity, value, ranges in judged:
        limits = ranges.get(quantity)
        if limits is None or limits.low <= value <= limits.high:
            continue
        excess = max(limits.low / max(value, 1e-30), value / limits.high)
        field = path.split("]")[-1]
        found, count, sentence = worst.get(field, (0.0, 0, ""))
        if excess > found:
            sentence = (
                f"{path}: is {value:,.6g}, outside {limits.low:,.6g} to {limits.high:,.6g} that the cost models of "
                f"{bundle} were trained for"
            )
        worst[field] = (max(excess, found), count + 1, sentence)
    return tuple(
        sentence + (f" (so are {count - 1} more tables)" if count > 1 else "") + "; its cost is extrapolated"
        for _, count, sentence in worst.values()
    )


def _stored(file: Path) -> Path:
    """Return the file of this name, or the compressed one where there is only that: a large bundle's ConfigMap."""
    compressed = file.with_name(f"{file.name}{COMPRESSED_SUFFIX}")
    return compressed if compressed.is_file() and not file.is_file() else file


def _read_manifest(path: Path) -> BundleManifest:
    file = _stored(path / MANIFEST_FILE)
    if not file.is_file():
        raise BundleNotFoundError(
            f"{path}: is not a bundle, {MANIFEST_FILE} is missing"
            f"; hint: give the directory that `neuroshard pretrain` made"
        )
    try:
        return BundleManifest.read(file)
    except DocumentError as error:
        kind = BundleVersionError if "schema_version" in error.problems[0] else BundleDamagedError
        raise kind(f"{without_hint(str(error))}; hint: {_REMAKE}") from error


def _read_weights(file: Path, sha256: str) -> dict[str, Float32Array]:
    file = _stored(file)
    if not file.is_file():
        raise BundleNotFoundError(f"{file}: does not exist; hint: copy the bundle's directory whole, or {_REMAKE}")
    try:
        data = read_bytes(file)
    except DocumentError as error:
        raise BundleDamagedError(f"{without_hint(str(error))}; hint: copy the bundle again, or {_REMAKE}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise BundleDamagedError(
            f"{file}: has the SHA-256 {found[:12]}..., the manifest says {sha256[:12]}...: the file was changed or cut "
            f"off; hint: copy the bundle again, or {_REMAKE}"
        )
    try:
        return load_safetensors(data)
    except (SafetensorError, ValueError) as error:
        raise BundleDamagedError(f"{file}: is not a whole safetensors file ({error}); hint: {_REMAKE}") from error


def part_of(weights: Weights, network: str) -> dict[str, Float32Array]:
    """Return one network's weights, by their names within it."""
    prefix = f"{network}."
    return {name.removeprefix(prefix): array for name, array in weights.items() if name.startswith(prefix)}
