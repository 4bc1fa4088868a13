"""The job's file as the trainer's commands read it."""

from pathlib import Path

from neuroshard_api.documents.document import DocumentError, read_data
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.errors import InputError


def read_job(path: Path) -> DLRMTrainingJob:
    """Return the job in a file. Raises InputError."""
    try:
        return DLRMTrainingJob.from_data(read_data(path), where=str(path))
    except DocumentError as error:
        raise InputError(str(error)) from error
