"""The manifest of a bundle: what its cost networks are, where they come from, how far they can be trusted."""

from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.communication import EncodedType
from neuroshard_api.documents.counts import MAX_MILLISECONDS, Milliseconds, PositiveCount
from neuroshard_api.documents.document import Document, Value
from neuroshard_api.documents.topology import DeviceType, SpannedDevices, Topology
from neuroshard_api.sharding.kinds import Family

Source = Annotated[str, Field(pattern=r"^(measured|cpu|simulated):.+$", max_length=200)]
"""Where numbers come from: ``measured:<device>``, ``cpu:<model>`` or ``simulated:<device>``."""


BUNDLE_FOLDER = "bundle"
"""In the profiler's output: the bundle directory."""
NetworkName = Literal["compute", "forward_communication", "backward_communication"]
_UNSCALED = (1.0, 1.0)


class Range(Value):
    """A closed interval."""

    low: float
    high: float

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"low must not exceed high, found {self.low:g} and {self.high:g}")
        return self


class ErrorReport(Value):
    """Error of one network on samples it was not trained on."""

    num_samples: PositiveCount
    mse_ms2: Annotated[float, Field(ge=0)]
    """Mean squared error in square milliseconds."""
    mape: Annotated[float, Field(ge=0)]
    """Mean absolute error as a share of the true value: 0.03 is 3 %."""
    kendall_tau: Annotated[float, Field(ge=-1, le=1)]
    """Rank correlation of predicted and true values."""
    mape_by: dict[str, dict[str, float]] = Field(default_factory=dict)
    """The same by groups of samples, such as ``{"num_tables": {"1-2": 0.02, ...}}``."""


class Network(Value):
    """One network: its inputs by name and order, its shape, its range and its error."""

    name: NetworkName
    features: tuple[str, ...]
    """Inputs in the order of the first layer's columns."""
    hidden: tuple[PositiveCount, ...]
    """Widths of the hidden layers, from the input on."""
    validity: dict[str, Range]
    """Ranges the training samples covered, in the words and units of the request."""
    hold_out: ErrorReport


PositiveFactor = Annotated[float, Field(gt=0)]
PositiveMilliseconds = Annotated[float, Field(gt=0, le=MAX_MILLISECONDS)]


class Calibration(Value):
    """A rescaling of the networks to another machine, from few measurements."""

    source: Source
    """The machine that was measured."""
    num_records: PositiveCount
    compute_scale: tuple[float, float]
    """Exponent and factor of the rescaled compute time: factor * time ** exponent."""
    forward_communication_scale: tuple[float, float] = _UNSCALED
    backward_communication_scale: tuple[float, float] = _UNSCALED
    reduction_factors: dict[Family, tuple[PositiveFactor, PositiveFactor]] = Field(default_factory=dict)
    """Factors of the forward and backward collectives of the families that add up, whose times are the device
    simulator's. Empty: they are as simulated."""
    mape_before: Annotated[float, Field(ge=0)]
    mape_after: Annotated[float, Field(ge=0)]
    """Error over the records of all networks after rescaling, each record left out in turn (leave-one-out)."""
    mape_after_by: dict[NetworkName, Annotated[float, Field(ge=0)]] = Field(default_factory=dict)
    """The same for each rescaled network alone. Empty in older bundles: not known."""


class Launch(Value):
    """The cost of a kernel call on top of that of its tables; forward and backward."""

    device_ms: tuple[Milliseconds, Milliseconds] = (0.0, 0.0)
    """Device time of each call after a device's first, which the compute network's times include. 0 where the networks
    were fitted to measured calls."""
    host_ms: tuple[Milliseconds, Milliseconds] = (0.0, 0.0)
    """Time in which the host launches a call; counts where no pipeline lets the host run ahead. 0 on a CPU, where a
    call's time includes it."""
    host_source: Source | None = None
    """The machine that host_ms was measured on. If unset: it is assumed, or the bundle is of an earlier release."""


class ExpansionCost(Value):
    """What copying pooled embeddings to the samples that repeat a list takes, and summing their gradients up."""

    feature_ms: tuple[Milliseconds, Milliseconds]
    """Of each feature; forward and backward."""
    group_row_ms: tuple[Milliseconds, Milliseconds]
    """Of each sample of a group, on top."""
    byte_ms: tuple[Milliseconds, Milliseconds]
    """Of each copied byte, on top."""


class CodecTimes(Value):
    """What a codec's passes over the values of an exchange take; pairs are encoding and decoding."""

    type: EncodedType
    """On the wire."""
    pass_ms: tuple[Milliseconds, Milliseconds]
    """Of a pass over few values."""
    value_ms: tuple[Milliseconds, Milliseconds]
    """Of each value, on top."""


class MatrixTimes(Value):
    """What matrix products of the dense part take; pairs are forward and backward."""

    product_ms: tuple[Milliseconds, Milliseconds]
    """Of a product of few operations."""
    operation_ms: tuple[Milliseconds, Milliseconds]
    """Of each floating-point operation, on top."""


ReductionKind = Literal["all_gather", "reduce_scatter", "all_reduce"]


class ReductionGroup(SpannedDevices):
    """A collective of weights or gradients, and the devices that it spans."""

    kind: ReductionKind

    @property
    def key(self) -> tuple[ReductionKind, int, int]:
        """The collective and its devices, whatever their links were measured as."""
        return self.kind, self.num_nodes, self.devices_per_node


class ReductionTimes(ReductionGroup):
    """What a collective of weights or gradients takes on the devices that were measured, by bytes."""

    num_bytes: Annotated[tuple[PositiveCount, ...], Field(min_length=1)]
    """Of the whole buffer on each device, ascending."""
    times_ms: Annotated[tuple[PositiveMilliseconds, ...], Field(min_length=1)]
    """Of each, copies included; none is below the one before."""

    @model_validator(mode="after")
    def _one_time_of_each(self) -> Self:
        if len(self.times_ms) != len(self.num_bytes):
            raise ValueError(f"times_ms: must have {len(self.num_bytes)} entries, found {len(self.times_ms)}")
        if any(second <= first for first, second in pairwise(self.num_bytes)):
            raise ValueError("num_bytes: must ascend")
        if any(second < first for first, second in pairwise(self.times_ms)):
            raise ValueError("times_ms: must not fall")
        return self

    def is_of(self, topology: Topology) -> bool:
        """Whether these are the devices of a topology: as many, over the same links."""
        if topology.rack is not None:  # a measured collective has two links
            return False
        return (self.num_nodes, self.devices_per_node) == (topology.num_nodes, topology.devices_per_node) and all(
            getattr(self, level) == getattr(topology, level) for level in self.spanned_levels
        )


class CollectionParts(Value):
    """Milliseconds of the parts of a step that a collection of tables takes; pairs are forward and backward."""

    indices_ms: Milliseconds
    """Of the exchange of indices."""
    compute_ms: tuple[Milliseconds, Milliseconds]
    exchange_ms: tuple[Milliseconds, Milliseconds]
    """Of pooled embeddings, and of their gradients."""


class BundleManifest(Document):
    """``manifest.json`` of a bundle directory; the weights lie next to it in ``weights.safetensors``."""

    schema_name: ClassVar[str] = "bundle-manifest/v1"

    schema_version: Literal["bundle-manifest/v1"] = "bundle-manifest/v1"
    name: Annotated[str, Field(min_length=1, max_length=128)]
    source: Source
    device: DeviceType
    feature_version: PositiveCount
    """Version of the planner's feature code that the networks were trained with."""
    networks: Annotated[tuple[Network, ...], Field(min_length=3, max_length=3)]
    weights_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    compute_source: Source | None = None
    """What the compute network was fitted to. None: ``source``, as the other networks."""
    training: dict[str, str | int | float] = Field(default_factory=dict)
    """Settings and library versions of the training run, for people."""
    launch: Launch = Launch.model_construct()
    expansion: ExpansionCost | None = None
    """None: not measured; then it is priced as memory traffic."""
    codecs: tuple[CodecTimes, ...] = ()
    """Measured types, each once. A type that is not there is priced as memory traffic."""
    matrices: MatrixTimes | None = None
    """If unset: not measured; then matrix products have an assumed rate."""
    reductions: tuple[ReductionTimes, ...] = ()
    """Measured collectives of weights and gradients, each once for its devices. Others are priced as the device
    simulator's."""
    added_collection: CollectionParts | None = None
    """Measured cost of a further collection of tables, beyond that of its tables. If unset: its exchanges are priced as
    those with the least traffic, its compute as nothing."""
    calibration: Calibration | None = None

    @model_validator(mode="after")
    def _each_network_once(self) -> Self:
        names = [network.name for network in self.networks]
        if len(set(names)) != len(names):
            raise ValueError(f"networks[].name: each network must be there once, found {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _each_codec_once(self) -> Self:
        types = [codec.type for codec in self.codecs]
        if len(set(types)) != len(types):
            raise ValueError(f"codecs[].type: each type must be there once, found {', '.join(types)}")
        return self

    @model_validator(mode="after")
    def _each_reduction_once(self) -> Self:
        found = [each.key for each in self.reductions]
        again = next((each for each in found if found.count(each) > 1), None)
        if again is not None:
            kind, nodes, devices = again
            raise ValueError(f"reductions[]: {kind} over {nodes} x {devices} devices must be there once")
        return self

    def is_of(self, device: DeviceType) -> bool:
        """Whether the cost models price this device: another of the same product, whatever its memory, is the same."""
        return self.device.product == device.product

    @property
    def families(self) -> frozenset[Family]:
        """Return the families whose collectives are priced from where those of pooled embeddings are.

        Networks know the collectives of tables by columns alone. Of others a profile measures the reductions, and
        neither the exchange of indices of blocks nor the optimizer's passes over copies: they count where a calibration
        by steps has factors of them.
        """
        if _is_simulated(self.source) and self.calibration is None:
            return frozenset(Family)
        measured = () if self.calibration is None else self.calibration.reduction_factors
        return frozenset({Family.COLUMNS, *measured})

    def measured_mape(self, name: NetworkName) -> float | None:
        """Return the error of a network's times on measurements that it was not fitted to.

        None: only the error against the simulator is known, or, in older bundles, that of all networks together.
        """
        calibration = self.calibration
        if calibration is not None and getattr(calibration, f"{name}_scale") != _UNSCALED:
            return None if _is_simulated(calibration.source) else calibration.mape_after_by.get(name)
        fitted_to = (self.compute_source or self.source) if name == "compute" else self.source
        own = next(network for network in self.networks if network.name == name)
        return None if _is_simulated(fitted_to) else own.hold_out.mape


def _is_simulated(source: str) -> bool:
    return source.startswith("simulated:")
