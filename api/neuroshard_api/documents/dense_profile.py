"""The dense part of a model as it was counted: parameters, work and memory of each unit. Counts, never times."""

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from neuroshard_api.documents.counts import MAX_MEMORY_BYTES, Count, PositiveCount
from neuroshard_api.documents.dense_layout import MAX_UNITS, ModulePath
from neuroshard_api.documents.document import Document, Value
from neuroshard_api.documents.tables import DataType, Table

Bytes = Annotated[int, Field(ge=0, le=MAX_MEMORY_BYTES)]


class DenseOperator(Value):
    """A module below a unit that owns parameters itself, with all modules below it. It can be gathered alone."""

    module: ModulePath
    """Path below the unit."""
    num_parameters: PositiveCount
    largest_tensor_parameters: PositiveCount
    """Parameters of the largest of its tensors."""
    forward_flops: Count
    """Floating-point operations of matrix products in one forward pass."""
    backward_flops: Count
    forward_bytes: Bytes
    """Highest memory of its forward pass, above that where the unit's forward pass begins."""
    backward_bytes: Bytes
    """Memory where its backward pass begins, above the same. As in the unit's own numbers, the output and its gradient
    count together."""
    transient_bytes: Bytes
    """Highest memory of its backward pass above its beginning; the gradient of its largest tensor is in it."""
    sharded_transient_bytes: Bytes | None = None
    """The same where gradients stay allocated once they are computed, as in a sharded unit. If unset: was not counted,
    as in older profiles and where a unit changes its inputs in place; then transient_bytes and the gradients of all
    tensors but the largest."""
    left_bytes: Bytes
    """Memory where its backward pass ends, counted as where it begins."""


class DensePass(Value):
    """Operations of one pass of the whole dense part, or of its optimizer. Views and empty tensors are none."""

    operations: Count
    """Each launches a kernel on a GPU, products included."""
    products: Count
    """Matrix products."""
    moved_bytes: Bytes
    """Read and written by all operations but products, and by batches of products: the matrices of one sample are so
    small that memory bounds them, such as those of pairs of features."""


class DensePasses(Value):
    """The operations of a step of the dense part."""

    forward: DensePass
    backward: DensePass
    optimizer: DensePass
    num_tensors: Count
    """Tensors of parameters, which autograd and DistributedDataParallel handle one by one."""

    @property
    def num_operations(self) -> int:
        """Operations of a step."""
        return self.forward.operations + self.backward.operations + self.optimizer.operations


class DenseMatrices(Value):
    """Weight matrices of a dense part that was not counted. Its time is at least that of a product with each."""

    num_matrices: PositiveCount
    num_parameters: PositiveCount
    """Of all of them."""
    largest: Annotated[tuple[ModulePath, ...], Field(min_length=1, max_length=3)]
    """Names of the largest ones in the model, for messages."""

    @property
    def is_shortened(self) -> bool:
        """Whether there are more than the named ones."""
        return self.num_matrices > len(self.largest)

    def passes(self, batch_size: int) -> tuple[float, float, DensePasses]:
        """Return the floating-point operations of both passes over a batch, and their products.

        A backward pass multiplies twice: for the gradient of the weights, and for that of the input.
        """
        forward_flops = 2.0 * batch_size * self.num_parameters
        products = DensePasses(
            forward=DensePass(operations=self.num_matrices, products=self.num_matrices, moved_bytes=0),
            backward=DensePass(operations=2 * self.num_matrices, products=2 * self.num_matrices, moved_bytes=0),
            optimizer=DensePass(operations=0, products=0, moved_bytes=0),
            num_tensors=self.num_matrices,
        )
        return forward_flops, 2 * forward_flops, products


class DenseUnit(Value):
    """A module of the dense part, or several equal ones that follow one another. Sizes are those of one of them."""

    module: ModulePath
    """Path of the module in the model; of the first one where it repeats."""
    repeats: PositiveCount = 1
    """Equal modules that follow one another."""
    further_modules: Annotated[tuple[ModulePath, ...], Field(min_length=1, max_length=MAX_UNITS)] | None = None
    """Paths of the equal modules after the first. If unset: there is none, or the profile is older and does not say."""
    num_parameters: Count
    largest_tensor_parameters: Count | None = None
    """Parameters of the largest of its tensors. If unset: the profile is older and does not say; then all of them."""
    data_type: DataType = DataType.FP32
    """Type of the parameters."""
    forward_flops: Count
    """Floating-point operations of matrix products in one forward pass."""
    backward_flops: Count
    activation_bytes: Bytes
    """Memory that a forward pass leaves allocated for the backward pass, the output included."""
    input_bytes: Bytes
    """Tensors that the module is called with."""
    unkept_input_bytes: Bytes | None = None
    """The part of the memory of its inputs that is gone before the backward pass; a checkpointed unit keeps it. If
    unset: the profile is older and does not say; then none."""
    output_bytes: Bytes
    """Tensors that it returns."""
    transient_bytes: Bytes
    """Highest memory of the forward or the backward pass above what is allocated at the pass's upper end."""
    sharded_transient_bytes: Bytes | None = None
    """The same where gradients stay allocated once they are computed, as in a sharded unit. If unset: was not counted,
    as in older profiles and where a unit changes its inputs in place; then transient_bytes and the gradients of all
    tensors but the largest."""
    operators: Annotated[tuple[DenseOperator, ...], Field(min_length=2, max_length=MAX_UNITS)] | None = None
    """Operators in the order of the forward pass; other parameters are the module's own. If unset: the unit cannot be
    split, since it has one operator or none, or the profile is older and does not say."""

    @property
    def own_parameters(self) -> int:
        """Parameters that are in none of its operators."""
        return self.num_parameters - sum(each.num_parameters for each in self.operators or ())

    @model_validator(mode="after")
    def _operators_are_parts(self) -> Self:
        named = [each.module for each in self.operators or ()]
        again = next((name for index, name in enumerate(named) if name in named[:index]), None)
        if again is not None:
            raise ValueError(f"operators: {again!r} is there twice; hint: name each module once")
        if self.own_parameters < 0:
            raise ValueError(
                f"operators: have {self.num_parameters - self.own_parameters:,} parameters together, more than the "
                f"{self.num_parameters:,} of the unit; hint: count the dense part again"
            )
        return self

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of the equal modules that are known: ``repeats``, or the first alone in an older profile."""
        return (self.module, *(self.further_modules or ()))


class DenseProfile(Document):
    """The dense part of one model at one batch size, replicated on every device."""

    schema_name: ClassVar[str] = "dense-profile/v1"

    schema_version: Literal["dense-profile/v1"] = "dense-profile/v1"
    batch_size_per_device: Annotated[int, Field(ge=1, le=2**24)]
    """Samples per device and step; activations are proportional to it."""
    features_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """Hash of the features that the tables are looked up by and of their widths: ``features_sha256(tables)``."""
    signature: Annotated[dict[str, str], Field(max_length=64)] = Field(default_factory=dict)
    """Settings that decide the dense part, by field path, as JSON text. Empty for a model of your own."""
    optimizer: Annotated[str, Field(min_length=1, max_length=128)]
    """Class of the dense part's optimizer, such as ``Adam``."""
    multi_tensor: bool = True
    """Whether the optimizer updates all parameters in one call (torch's ``foreach``), as it does on a GPU."""
    torch_version: Annotated[str, Field(pattern=r"^\d+\.\d+[^\s]{0,64}$")]
    """Version of torch whose trackers counted."""
    input_bytes: Bytes
    """Dense features of one batch."""
    weights_bytes: Bytes
    """Parameters and buffers."""
    gradient_bytes: Bytes
    """Gradients, which live from step to step in the buckets of DistributedDataParallel."""
    optimizer_state_bytes: Bytes
    working_bytes: Bytes
    """Activations and temporary tensors at the moment of a step when they need most. Received pooled embeddings and
    their gradient are in it where they are alive at that moment."""
    passes_working_bytes: Bytes | None = None
    """The part of working_bytes that forward and backward need at their highest moment. If unset: the profile is older
    and does not say; then working_bytes."""
    optimizer_working_bytes: Bytes | None = None
    """Temporary tensors of the optimizer's step at their highest. If unset: the profile is older and does not say; then
    working_bytes."""
    passes: DensePasses | None = None
    """If unset: the profile is older and does not say; then only matrix products have a price."""
    units: Annotated[tuple[DenseUnit, ...], Field(max_length=4096)]
    """In the order of the forward pass."""

    @property
    def total_bytes(self) -> int:
        """Memory of the dense part on every device, at the most."""
        return self.weights_bytes + self.gradient_bytes + self.optimizer_state_bytes + self.working_bytes

    @property
    def num_parameters(self) -> int:
        """Parameters of all units."""
        return sum(unit.repeats * unit.num_parameters for unit in self.units)

    def mismatches(self, *, batch_size_per_device: int, tables: Iterable[Table]) -> list[str]:
        """Return the reasons why the profile is not of this batch size and these tables; none if it fits."""
        problems = []
        if self.batch_size_per_device != batch_size_per_device:
            problems.append(
                f"was counted for {self.batch_size_per_device:,} samples per device, the request has "
                f"{batch_size_per_device:,}; hint: count it again"
            )
        if self.features_sha256 != features_sha256(tables):
            problems.append("was counted for tables with other features or widths; hint: count it again")
        return problems

    def other_settings(self, signature: dict[str, str]) -> list[str]:
        """Return a sentence for each setting of a job that differs from what was counted."""
        return [
            f"was counted with {field} = {self.signature.get(field, 'unset')}, the job has {value}"
            for field, value in signature.items()
            if self.signature.get(field) != value
        ]


def features_sha256(tables: Iterable[Table]) -> str:
    """Return a hash of all features and their widths, in the order of the tables: what the dense part receives."""
    features = [[feature, table.embedding_dim] for table in tables for feature in table.features]
    return hashlib.sha256(json.dumps(features).encode()).hexdigest()
