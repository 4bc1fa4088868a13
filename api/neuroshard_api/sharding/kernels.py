"""The training kernels of FBGEMM: the weights, outputs, optimizers, and widths of a row on each kind of device.

FBGEMM compiles its embedding kernels for fixed combinations of types and up to a width. Anything else is accepted until
the first step and fails there, or is computed wrongly, so documents, search, profiler, and trainer ask this table
first. The types of a kind of device combine freely, except for the pairs in ``Kernels.refused``. `make kernels`
compares the CUDA part with the symbols of the CUDA wheel, a test the CPU part with the installed kernels.
"""

import re
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

Release = tuple[int, int]
"""Major and minor version of FBGEMM."""

DIM_MULTIPLE = 4
"""FBGEMM's table-batched kernels read rows in vectors of four elements; every width is a multiple of it."""

WIDE_SUMS_SINCE: Release = (1, 7)
"""First release whose forward kernel pools rows of more than ``Kernels.max_pooled_width`` columns.

Source: FBGEMM pull request 5569; earlier ones return zeros for a part of the bags (TorchRec issue 3673).
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """Types and optimizers that can be trained, the usual one of each first."""

    weight_types: tuple[DataType, ...]
    output_types: tuple[DataType, ...]
    """Of the pooled embeddings and their gradients."""
    optimizers: tuple[Optimizer, ...]
    max_width: int | None
    """Most columns of a shard, of any table and in any sharding type. None: any number."""
    max_pooled_width: int | None
    """Most columns of a shard with pooling that every release computes rightly. None: any number."""
    refused: frozenset[tuple[Optimizer, DataType]] = frozenset()
    """Optimizers with weights of a type that their compiled kernel refuses in the first backward pass."""

    def types_with(self, optimizer: Optimizer | None) -> tuple[DataType, ...]:
        """Return the types of weights that are trained with an optimizer. None: with any."""
        return tuple(each for each in self.weight_types if (optimizer, each) not in self.refused)


TRAINING_KERNELS: Mapping[DeviceKind, Kernels] = {
    "cuda": Kernels(
        weight_types=(DataType.FP32, DataType.FP16),
        output_types=(DataType.FP32, DataType.FP16, DataType.BF16),
        optimizers=(Optimizer.ROWWISE_ADAGRAD, Optimizer.SGD, Optimizer.ADAGRAD, Optimizer.ADAM),
        max_width=2048,
        max_pooled_width=1024,
        refused=frozenset({(Optimizer.ADAM, DataType.FP16)}),
    ),
    "cpu": Kernels(
        weight_types=(DataType.FP32, DataType.FP16),
        output_types=(DataType.FP32, DataType.FP16),
        optimizers=(Optimizer.ROWWISE_ADAGRAD, Optimizer.SGD, Optimizer.ADAGRAD),
        max_width=None,
        max_pooled_width=None,
    ),
}
"""Source of types and optimizers: the symbols of fbgemm-gpu 1.9 and the kernels of fbgemm-gpu-cpu 1.9.

Source of widths: ``max_embedding_dim`` and ``legacy_max_embedding_dim`` of codegen/genscript/jinja_environment.py,
equal in FBGEMM 0.8 to 1.8. All CUDA kernels of training refuse rows wider than the first: with pooling forward
(embedding_forward_split_template.cu), without it, dense, and of host memory backward (embedding_backward_split_
template.cu). Above the second, the forward kernel with pooling is another one, which WIDE_SUMS_SINCE repaired.

Source of the refused pair: without its counter of rows, Adam's autograd function hands the kernel an empty tensor of
the weights' type (``get_optional_optim_tensor`` of embedding_split_host_pt2_autograd_template.cpp), and the kernel
accepts none but FP32 there ("Expected tensor 'row_counter_dev' to have scalar type Float, but found Half"). The lines
are the same in FBGEMM 1.6 to 1.8 and on its main branch of August 2026. On an H200, 10 of 10 samples with FBGEMM 1.6
failed so, whatever their rows.
"""

_DEVICES: Mapping[DeviceKind, str] = {"cpu": "CPUs", "cuda": "CUDA devices"}

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


def widest_shard(kind: DeviceKind, *, has_pooling: bool, release: Release | None = None) -> int | None:
    """Return the most columns of a shard that a device's kernels compute rightly. None: any number.

    Args:
        kind: of the device.
        has_pooling: whether a fused kernel pools the table's rows; those of sequences and of copies do not.
        release: of FBGEMM. None: any.
    """
    kernels = TRAINING_KERNELS[kind]
    is_repaired = release is not None and release >= WIDE_SUMS_SINCE
    return kernels.max_pooled_width if has_pooling and not is_repaired else kernels.max_width


def width_problem(kind: DeviceKind, width: int, *, has_pooling: bool = False, release: Release | None) -> str | None:
    """Return the reason why a device of this kind computes no shard of that many columns. None: it does.

    Args:
        kind: of the device.
        width: columns of the shard.
        has_pooling: whether a fused kernel pools the table's rows.
        release: of FBGEMM. None: the newest.
    """
    if width % DIM_MULTIPLE:
        return f"must be a multiple of {DIM_MULTIPLE}, found {width}"
    most = TRAINING_KERNELS[kind].max_width
    if most is not None and width > most:
        return f"has {width:,} columns, and FBGEMM's CUDA kernels take at most {most:,}; hint: cut it by columns"
    most = None if release is None else widest_shard(kind, has_pooling=has_pooling, release=release)
    if most is not None and width > most:
        return (
            f"has {width:,} columns, of which FBGEMM {_version(release)} returns zeros where it pools more than "
            f"{most:,} on CUDA devices; hint: use FBGEMM {_version(WIDE_SUMS_SINCE)} or newer, or cut it by columns"
        )
    return None


def release_of(version: str) -> Release | None:
    """Return major and minor version of a release of FBGEMM such as "1.9.0+cu130". None: it names none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return None if found is None else (int(found[1]), int(found[2]))


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
        optimizer: of all these tables.
    """
    kernels = TRAINING_KERNELS[kind]
    for name, data_type in (weight_types or {}).items():
        if data_type not in kernels.weight_types:
            return f"table {name!r}: {_missing(data_type, 'weights', kind, kernels.weight_types)}"
    if output_type is not None and output_type not in kernels.output_types:
        return f"output_data_type: {_missing(output_type, 'pooled embeddings', kind, kernels.output_types)}"
    if optimizer is not None and optimizer not in kernels.optimizers:
        return f"optimizer: {_missing(optimizer, 'tables', kind, kernels.optimizers)}"
    for name, data_type in (weight_types or {}).items():
        if optimizer is not None and (optimizer, data_type) in kernels.refused:
            others = [each for each in kernels.optimizers if (each, data_type) not in kernels.refused]
            return (
                f"table {name!r}: FBGEMM's kernel with {optimizer} refuses weights of type {data_type} on "
                f"{_DEVICES[kind]}; hint: use {_listed(kernels.types_with(optimizer))}, or {_listed(others)}"
            )
    return None


def _known(data_type: DataType, what: str, *offered: Sequence[DataType]) -> DataType:
    known = [each for each in DataType if any(each in types for types in offered)]
    if data_type not in known:
        raise ValueError(
            f"FBGEMM has no training kernel for {what} of type {data_type} on any device; hint: use {_listed(known)}"
        )
    return data_type


def _missing(found: str, what: str, kind: DeviceKind, known: Sequence[str]) -> str:
    return f"FBGEMM has no training kernel with {found} for {what} on {_DEVICES[kind]}; hint: use {_listed(known)}"


def _version(release: Release | None) -> str:
    return "" if release is None else ".".join(map(str, release))


def _listed(values: Sequence[str]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} or {values[-1]}"
