"""A trained model as one process serves it: whole tables from a checkpoint of many shards, as they are or quantized.

    checkpoint of N ranks --> whole_state --> served_model --> quantized
                              plain state dict                TorchScript with TorchRec's quantized tables
    folder of an export --> exported_model, exported_script

Everything is in the memory of the host: the model must fit into it once, and the quantized tables next to it. The
served model looks up all lists, whichever form of deduplication it was trained in: checkpoints have the same tensors in
all.
"""

import warnings
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from pickle import UnpicklingError

import torch
from neuroshard_api.documents.tables import Table
from neuroshard_api.job.exported_model import ExportedModel
from neuroshard_api.job.model import Model
from neuroshard_api.process.errors import InputError, StorageError
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torchrec.fx.tracer import symbolic_trace
from torchrec.inference.modules import quantize_inference_model

from neuroshard_trainer.model.dlrm import RecommendationModel
from neuroshard_trainer.model.variant_model import own_name, variant_of

MODEL_FILE = "model.pt"
"""Plain state dict of an export."""
QUANTIZED_FILE = "quantized.pt"
"""TorchScript of an export."""
DESCRIPTION_FILE = "model.json"
"""The description of an export."""
_MODEL_PREFIX = "model."
"""Of the names of the model's tensors in a checkpoint."""
_LEAF_MODULES = ["IntNBitTableBatchedEmbeddingBagsCodegen"]
"""What torch.fx must not trace into, as TorchRec's own predict modules have it."""


class QuantizedType(StrEnum):
    """Element type of quantized tables; INT8 and INT4 have a scale and a bias per row."""

    INT8 = "INT8"
    INT4 = "INT4"
    FP16 = "FP16"


_TORCH_TYPES = {
    QuantizedType.INT8: torch.qint8,
    QuantizedType.INT4: torch.quint4x2,
    QuantizedType.FP16: torch.float16,
}


def whole_state(folder: Path, *, variant: str | None = None) -> dict[str, torch.Tensor]:
    """Return the model's tensors of a checkpoint by their names in the model, tables whole.

    Args:
        folder: a checkpoint.
        variant: whose tensors alone are read, with the names that they have in its own job. None: all are.

    Raises:
        StorageError: the checkpoint cannot be read.
    """
    reader = FileSystemReader(folder)
    try:
        stored = reader.read_metadata().state_dict_metadata
        state = {
            name: torch.empty(found.size, dtype=found.properties.dtype)
            for name, found in stored.items()
            if name.startswith(_MODEL_PREFIX)
            and isinstance(found, TensorStorageMetadata)
            and (variant is None or variant_of(name) == variant)
        }
        state_dict_loader.load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    except (CheckpointException, OSError) as error:
        raise StorageError(f"{folder}: cannot be read: {error}; hint: export another checkpoint") from error
    plain = {name.removeprefix(_MODEL_PREFIX): tensor for name, tensor in state.items()}
    return plain if variant is None else {own_name(name): tensor for name, tensor in plain.items()}


def served_model(model: Model, tables: Sequence[Table], state: dict[str, torch.Tensor]) -> RecommendationModel:
    """Return the model on the CPU with these tensors, which it takes over; its forward needs no process group.

    Args:
        model: the job's.
        tables: the plan's.
        state: as ``whole_state`` returns it.

    Raises:
        InputError: the tensors are of another model.
    """
    served = RecommendationModel(model, tables)
    expected = {name: tuple(tensor.shape) for name, tensor in served.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in state.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            saved, wanted = (shapes.get(name, "missing") for shapes in (found, expected))
            raise InputError(
                f"parameter {name} is {saved} in the checkpoint and {wanted} in the job's model; "
                "hint: give the job and the plan that it was trained by"
            )
    served.load_state_dict(state, assign=True)
    return served.eval()


def exported_description(folder: Path) -> ExportedModel:
    """Return the description of an export. Raises DocumentError: there is none, or it is of another release."""
    return ExportedModel.read(folder / DESCRIPTION_FILE)


def exported_model(folder: Path, description: ExportedModel) -> RecommendationModel:
    """Return the model of an export on the CPU.

    Raises:
        StorageError: the tensors cannot be read.
        InputError: they are of another model.
    """
    file = folder / MODEL_FILE
    try:
        state = torch.load(file, weights_only=True)
    except (OSError, RuntimeError, UnpicklingError) as error:
        raise _unreadable(file, error) from error
    return served_model(description.model, description.tables, state)


def exported_script(folder: Path, description: ExportedModel) -> torch.jit.ScriptModule:
    """Return the quantized model of an export.

    Raises:
        InputError: there is none.
        StorageError: it cannot be read.
    """
    if description.quantized_type is None:
        raise InputError(f"{folder}: has no {QUANTIZED_FILE}; hint: export with --quantized INT8")
    file = folder / QUANTIZED_FILE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about TorchScript's age: TorchRec's quantized modules need it
            script: torch.jit.ScriptModule = torch.jit.load(str(file))  # type: ignore[no-untyped-call] # torch's
    except (OSError, RuntimeError, ValueError) as error:
        raise _unreadable(file, error) from error
    return script


def _unreadable(file: Path, error: Exception) -> StorageError:
    return StorageError(f"{file}: cannot be read ({str(error).splitlines()[0]}); hint: export the model again")


def quantized(model: RecommendationModel, kind: QuantizedType) -> torch.jit.ScriptModule:
    """Return the model with TorchRec's quantized tables, in TorchScript; the dense part stays FP32.

    Args:
        model: is changed: its tables become the quantized ones.
        kind: of the tables' elements.
    """
    inference = quantize_inference_model(model, quantization_dtype=_TORCH_TYPES[kind])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about annotations in TorchRec's own modules
        script = torch.jit.script(symbolic_trace(inference, leaf_modules=_LEAF_MODULES))
    assert isinstance(script, torch.jit.ScriptModule), "a module was given"
    return script
