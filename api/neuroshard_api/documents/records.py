"""Records of the profiler: one measured (or simulated) kernel or collective each."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.bundle import CollectionParts, ReductionGroup, Source
from neuroshard_api.documents.communication import EncodedType
from neuroshard_api.documents.counts import MAX_MILLISECONDS, Count, PositiveCount
from neuroshard_api.documents.document import Document, Value
from neuroshard_api.documents.tables import Optimizer, Table
from neuroshard_api.documents.topology import Link, SpannedDevices

MAX_FAILURE_CHARACTERS = 1000


class ComputeSample(Value):
    """A fused embedding kernel over several tables on one device."""

    tables: Annotated[tuple[Table, ...], Field(min_length=1)]
    batch_size: PositiveCount
    """Samples of the global batch: what the kernel serves."""
    optimizer: Optimizer
    reuse_batch_size: PositiveCount = 65536
    """Batch at which the tables' reuse histograms were measured."""


class ExpansionSample(Value):
    """Copies of a group's pooled embeddings to the samples that repeat a list, and the sums of their gradients."""

    batch_size: PositiveCount
    """Samples of the device."""
    num_features: PositiveCount
    embedding_dim: PositiveCount
    """Columns of each feature."""
    factor: PositiveCount
    """Consecutive samples with one list."""


class CodecSample(Value):
    """Values in FP32 that a codec encodes to a type on the wire, and decodes again."""

    type: EncodedType
    batch_size: PositiveCount
    """Samples."""
    num_columns: PositiveCount
    """Of each sample."""

    @property
    def num_values(self) -> int:
        """Values of all samples."""
        return self.batch_size * self.num_columns


class MatrixSample(Value):
    """A linear layer in FP32 (TF32 on GPUs): its output, and in backward the gradients of inputs and weights."""

    batch_size: PositiveCount
    """Samples of the device."""
    num_inputs: PositiveCount
    num_outputs: PositiveCount

    @property
    def forward_flops(self) -> int:
        """Floating-point operations of the output; those of both gradients are twice as many."""
        return 2 * self.batch_size * self.num_inputs * self.num_outputs


class CollectionSample(Value):
    """Tables that are trained as one collection, and as two of half of them each."""

    batch_size_per_device: PositiveCount
    num_tables: PositiveCount
    """Each on one device, in turn."""
    embedding_dim: PositiveCount
    """Columns of each table."""
    pooling_factor: PositiveCount
    """Lookups of a list."""


class ReductionSample(ReductionGroup):
    """One collective of weights or gradients in FP32, with the copies that trainings make around it."""

    num_bytes: PositiveCount
    """Of the whole buffer: gathered, scattered, or added up on each device."""

    @model_validator(mode="after")
    def _between_devices(self) -> Self:
        if self.num_devices == 1:
            raise ValueError("num_nodes: must be 2 or more where devices_per_node is 1: one device has no collective")
        return self


class CommunicationSample(SpannedDevices):
    """One all-to-all over all devices."""

    direction: Literal["forward", "backward"]
    batch_size_per_device: PositiveCount
    bytes_per_element: Annotated[int, Field(ge=1, le=4)]
    embedding_dim_sums: Annotated[tuple[Count, ...], Field(min_length=2)]
    """Columns on each device."""
    start_offsets_ms: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """When each device enters the collective; empty means all at once."""

    @model_validator(mode="after")
    def _one_entry_per_device(self) -> Self:
        lengths = {"embedding_dim_sums": len(self.embedding_dim_sums)}
        if self.start_offsets_ms:
            lengths["start_offsets_ms"] = len(self.start_offsets_ms)
        for field, length in lengths.items():
            if length != self.num_devices:
                raise ValueError(
                    f"{field}: must have one entry for each of the {self.num_devices} devices, found {length}"
                )
        return self

    @property
    def links(self) -> tuple[Link, Link]:
        """The link inside a node and the one between nodes; a level that is not spanned has the other's numbers."""
        intra, inter = self.intra_node or self.inter_node, self.inter_node or self.intra_node
        assert intra is not None, "two devices span a level"
        assert inter is not None, "two devices span a level"
        return intra, inter


Pair = tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]]


class LaunchTimes(Value):
    """Forward and backward milliseconds of one table set, called in three ways."""

    one_call_ms: Pair
    """One call, of a device that the host keeps busy."""
    two_calls_ms: Pair
    """Two calls back to back, of half the tables each, of a device that the host keeps busy."""
    alone_ms: Pair | None = None
    """One call of an idle device, which waits for the host to launch it. None: the device is the host."""


class CollectionTimes(Value):
    """Parts of a step of one set of tables: means over devices, medians over steps."""

    one: CollectionParts
    """As one collection."""
    two: CollectionParts
    """As two collections, both together."""


_KINDS = ("compute", "communication", "launch", "expansion", "codec", "matrix", "reduction", "collections")
"""Fields of a record that hold a sample."""


class ProfileRecord(Document):
    """One line of a records file."""

    schema_name: ClassVar[str] = "profile-record/v1"

    schema_version: Literal["profile-record/v1"] = "profile-record/v1"
    source: Source
    method: PositiveCount = 1
    """Version of the profiler's way of measuring; times of different versions do not compare. If unset: 1, that of
    releases whose records had none."""
    compute: ComputeSample | None = None
    communication: CommunicationSample | None = None
    launch: ComputeSample | None = None
    """Tables whose call was timed in several ways."""
    expansion: ExpansionSample | None = None
    """Copies to repeated lists."""
    codec: CodecSample | None = None
    """Values that were encoded and decoded."""
    matrix: MatrixSample | None = None
    """A linear layer."""
    reduction: ReductionSample | None = None
    """A collective of weights or gradients."""
    collections: CollectionSample | None = None
    """Tables as one collection and as two. Exactly one of compute, communication, launch, expansion, codec,
    matrix, reduction, and collections is given."""
    forward_ms: Annotated[float, Field(gt=0)] | None = None
    """Compute, expansion, and matrix: median forward time. Codec: median time of encoding."""
    backward_ms: Annotated[float, Field(gt=0)] | None = None
    """Compute, expansion, and matrix: median backward time, of compute with the fused optimizer. Codec: median time of
    decoding."""
    launch_times: LaunchTimes | None = None
    """Launch: medians of each way of calling."""
    collection_times: CollectionTimes | None = None
    """Collections: parts of a step with one collection and with two."""
    device_ms: tuple[Annotated[float, Field(ge=0)], ...] = ()
    """Communication and reduction: median time of each device from its own start to its end."""
    spread: Annotated[float, Field(ge=0)] = 0.0
    """Interquartile range of the repeats as a share of the median."""
    num_repeats: PositiveCount = 1
    out_of_memory: bool = False
    """The sample did not fit the device; no times are given."""
    failure: Annotated[str, Field(min_length=1, max_length=MAX_FAILURE_CHARACTERS)] | None = None
    """First line of the error of a kernel that refused the sample or failed; no times are given. None: no error."""
    disturbance: Annotated[str, Field(min_length=1, max_length=MAX_FAILURE_CHARACTERS)] | None = None
    """What makes the times those of another device: a slowed device, or one that waited for its host. A fit leaves such
    records out where enough others remain. If unset: nothing does."""
    elapsed_seconds: Annotated[float, Field(ge=0)] | None = None
    """Time spent on the file's measurements when this one ended, over all runs that wrote it. None: not known."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Driver, libraries and clocks, for people."""

    @model_validator(mode="after")
    def _one_sample(self) -> Self:
        given = self._kinds
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise ValueError(f"must hold exactly one of {', '.join(_KINDS)}, found {found}")
        return self

    @property
    def _kinds(self) -> list[str]:
        return [name for name in _KINDS if getattr(self, name) is not None]

    @property
    def kind(self) -> str:
        """Field of the sample."""
        return self._kinds[0]

    @model_validator(mode="after")
    def _time_of_each_device(self) -> Self:
        if self.reduction is not None and self.is_usable:
            devices, found = self.reduction.num_devices, self.device_ms
            if len(found) != devices:
                raise ValueError(
                    f"device_ms: must have one entry for each of the {devices} devices, found {len(found)}"
                )
            odd = next((each for each in found if not 0 < each <= MAX_MILLISECONDS), None)
            if odd is not None:
                raise ValueError(f"device_ms: must be above 0 and at most {MAX_MILLISECONDS:g} (found {odd:g})")
        return self

    @property
    def missing_times(self) -> tuple[str, ...]:
        """Fields of times that a usable record of a codec, a linear layer, or an expansion lacks."""
        if not self.is_usable or (self.codec or self.matrix or self.expansion) is None:
            return ()
        return tuple(name for name in ("forward_ms", "backward_ms") if getattr(self, name) is None)

    @property
    def is_usable(self) -> bool:
        """Whether there are times."""
        return not self.out_of_memory and self.failure is None
