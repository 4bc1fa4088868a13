"""The training kernels of FBGEMM: which weights, pooled outputs, and optimizers each kind of device has.

FBGEMM compiles its fused embedding kernels for fixed combinations of types. Any other combination is accepted until the
first step and fails there, so documents, profiler, and trainer ask this table first. The types of a kind of device
combine freely. `make kernels` compares the CUDA part with the symbols of the CUDA wheel, a test the CPU part with the
installed kernels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal


class DataType(StrEnum):
    """Element types; names as in TorchRec."""

    FP32 = "FP32"
    FP16 = "FP16"
    BF16 = "BF16"
    INT8 = "INT8"


class Optimizer(StrEnum):
    """The optimizer fused into the backward kernel; names as in FBGEMM's EmbOptimType."""

    SGD = "sgd"
    ROWWISE_ADAGRAD = "rowwise_adagrad"
    ADAGRAD = "adagrad"
    ADAM = "adam"


DeviceKind = Literal["cpu", "cuda"]
"""Kinds of devices, in torch's words."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """Types and optimizers that can be trained, the usual one of each first."""

    weight_types: tuple[DataType, ...]
    output_types: tuple[DataType, ...]
    """Of the pooled embeddings and their gradients."""
    optimizers: tuple[Optimizer, ...]


TRAINING_KERNELS: Mapping[DeviceKind, Kernels] = {
    "cuda": Kernels(
        weight_types=(DataType.FP32, DataType.FP16),
        output_types=(DataType.FP32, DataType.FP16, DataType.BF16),
        optimizers=(Optimizer.ROWWISE_ADAGRAD, Optimizer.SGD, Optimizer.ADAGRAD, Optimizer.ADAM),
    ),
    "cpu": Kernels(
        weight_types=(DataType.FP32, DataType.FP16),
        output_types=(DataType.FP32, DataType.FP16),
        optimizers=(Optimizer.ROWWISE_ADAGRAD, Optimizer.SGD, Optimizer.ADAGRAD),
    ),
}
"""Source: the symbols of fbgemm-gpu 1.9 and the kernels of fbgemm-gpu-cpu 1.9."""

FBGEMM_OPTIMIZERS: Mapping[Optimizer, str] = {
    Optimizer.SGD: "EXACT_SGD",
    Optimizer.ROWWISE_ADAGRAD: "EXACT_ROWWISE_ADAGRAD",
    Optimizer.ADAGRAD: "EXACT_ADAGRAD",
    Optimizer.ADAM: "ADAM",
}
"""Names of the members of EmbOptimType: the deterministic variant wherever FBGEMM has two."""


def trained_weights(data_type: DataType) -> DataType:
    """Return a type of weights that some device trains. Raises ValueError for another."""
    return _known(data_type, "weights", *(kernels.weight_types for kernels in TRAINING_KERNELS.values()))


def trained_output(data_type: DataType) -> DataType:
    """Return a type of pooled embeddings that some device trains. Raises ValueError for another."""
    return _known(data_type, "pooled embeddings", *(kernels.output_types for kernels in TRAINING_KERNELS.values()))


def kernel_problem(
    kind: DeviceKind,
    *,
    weight_types: Mapping[str, DataType] | None = None,
    output_type: DataType | None = None,
    optimizer: Optimizer | None = None,
) -> str | None:
    """Return the first reason why a device of this kind cannot train so. None: it can.

    Args:
        kind: of the device.
        weight_types: by table name.
        output_type: of pooled embeddings and their gradients.
        optimizer: of all tables.
    """
    kernels = TRAINING_KERNELS[kind]
    for name, data_type in (weight_types or {}).items():
        if data_type not in kernels.weight_types:
            return f"table {name!r}: {_missing(data_type, 'weights', kind, kernels.weight_types)}"
    if output_type is not None and output_type not in kernels.output_types:
        return f"output_data_type: {_missing(output_type, 'pooled embeddings', kind, kernels.output_types)}"
    if optimizer is not None and optimizer not in kernels.optimizers:
        return f"optimizer: {_missing(optimizer, 'tables', kind, kernels.optimizers)}"
    return None


def _known(data_type: DataType, what: str, *offered: Sequence[DataType]) -> DataType:
    known = [each for each in DataType if any(each in types for types in offered)]
    if data_type not in known:
        raise ValueError(
            f"FBGEMM has no training kernel for {what} of type {data_type} on any device; hint: use {_listed(known)}"
        )
    return data_type


def _missing(found: str, what: str, kind: DeviceKind, known: Sequence[str]) -> str:
    where = {"cpu": "CPUs", "cuda": "CUDA devices"}[kind]
    return f"FBGEMM has no training kernel with {found} for {what} on {where}; hint: use {_listed(known)}"


def _listed(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"
