"""A variant's part of a set's checkpoint, as a checkpoint of the variant's own job: the same tensors by other names.

One process reads and writes it: the variant's tables and their optimizer's state must fit into the host's memory.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.job.continuation import continuation_facts
from neuroshard_api.job.stage_commands import CHECKPOINTS_FOLDER
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.job.variants import expanded, inline_tables, tables_of_variant
from neuroshard_api.process.errors import InputError, StorageError
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from neuroshard_trainer.data.drift import with_statistics
from neuroshard_trainer.files import storage_error, write_file
from neuroshard_trainer.model.variant_model import own_name, variant_of
from neuroshard_trainer.state.checkpoint import newest_whole, save_alone

JOB_FILE = "job.json"
"""The variant's own job, next to the checkpoints of its part."""


def take_out(job: DLRMTrainingJob, plan: GivenPlan, run_dir: Path, out: Path, *, variant: str) -> Path:
    """Write a variant's part of the newest whole checkpoint, and its own job, and return the checkpoint's folder.

    Args:
        job: with variants.
        plan: that the set was trained under.
        run_dir: of the set's trainer.
        out: a run directory of the trainer, in which the variant's job resumes under a plan for it.
        variant: its name.

    Raises:
        InputError: the job has no such variant, it has diverged, or there is no checkpoint.
        StorageError: the checkpoint cannot be read, or the new one not be written.
    """
    jobs = expanded(job)
    if variant not in jobs:
        raise InputError(f"--variant: is {variant!r}, and the job has {', '.join(jobs) or 'no variants'}")
    found = newest_whole(run_dir / CHECKPOINTS_FOLDER)
    if found is None:
        raise InputError(f"{run_dir / CHECKPOINTS_FOLDER}: holds no whole checkpoint; hint: train first")
    folder, manifest = found
    tables = with_statistics(plan.request.tables, inline_tables(job)).tables
    own_tables = tables_of_variant(tables, variant)
    of_set = continuation_facts(job, tables)
    signature = {field: value for field, value in manifest.signature.items() if field not in of_set}
    own = manifest.model_copy(
        update={
            "signature": {**continuation_facts(jobs[variant], own_tables), **signature},
            "table_widths": {each.name: manifest.table_widths[f"{variant}:{each.name}"] for each in own_tables},
        }
    )
    tensors = _tensors(folder, variant)
    require_finite(tensors, variant)
    path = save_alone(out / CHECKPOINTS_FOLDER, tensors, own)
    try:
        write_file(out / JOB_FILE, jobs[variant].to_json())
    except OSError as error:
        raise storage_error(out / JOB_FILE, error) from error
    return path


def require_finite(tensors: Mapping[str, torch.Tensor], variant: str) -> None:
    """Do nothing for a variant that has not diverged. Raises InputError.

    Args:
        tensors: of its checkpoint.
        variant: its name.
    """
    if not all(bool(each.isfinite().all()) for each in tensors.values()):
        raise InputError(f"variant {variant!r} has diverged: its weights are not finite; hint: name another one")


def _tensors(folder: Path, variant: str) -> dict[str, torch.Tensor]:
    """Return a variant's tensors of a checkpoint by the names that they have in one of its own job."""
    reader = FileSystemReader(folder)
    try:
        stored = reader.read_metadata().state_dict_metadata
        state = {
            name: torch.empty(found.size, dtype=found.properties.dtype)
            for name, found in stored.items()
            if isinstance(found, TensorStorageMetadata) and variant_of(name) == variant
        }
        state_dict_loader.load(state, storage_reader=FileSystemReader(folder), no_dist=True)
    except (CheckpointException, OSError) as error:
        raise StorageError(f"{folder}: cannot be read: {error}; hint: take another checkpoint") from error
    # A table's optimizer state has the table's name a second time.
    again = re.compile(rf"\.{re.escape(variant)}:")
    return {again.sub(".", own_name(name)): tensor for name, tensor in state.items()}
