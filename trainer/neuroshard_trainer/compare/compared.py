"""What commands that compare trainings have in common: rank 0 writes the result, and errors are a line.

Processes that read data import the modules of these commands, so that this one imports nothing of torch.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

from neuroshard_api.documents.document import Document
from neuroshard_api.job.training_job import DLRMTrainingJob
from neuroshard_api.process.collector import uncollected_imports
from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_trainer.errors import require_torchrec
from neuroshard_trainer.measure.device_memory import use_expandable_segments

Compare = Callable[[DLRMTrainingJob, Path, Path], tuple[Document, bool]]
"""Takes the job, where relative paths of its data begin, and a folder for what it writes. Returns the result, and
whether this rank is to write it."""


def parser_of(command: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with what all of these commands take."""
    parser = argparse.ArgumentParser(prog=f"neuroshard_trainer.compare.{command}", description=description)
    parser.add_argument("job", type=Path, metavar="JOB", help="file with a DLRMTrainingJob")
    parser.add_argument("--data-dir", type=Path, help="where relative paths of spec.data begin; default: JOB's folder")
    parser.add_argument("--out", type=Path, required=True, help="file for the result")
    return parser


def write_compared(options: argparse.Namespace, compare: Callable[[], Compare]) -> ExitCode:
    """Compare, write the result from rank 0, and return the exit code.

    Args:
        options: of `parser_of`.
        compare: imports and returns what trains.
    """
    warnings.filterwarnings("ignore", module="torch")  # and torchrec: nothing that users can mend
    warnings.simplefilter("ignore", FutureWarning)
    try:
        require_torchrec()
        use_expandable_segments()
        with uncollected_imports():
            from neuroshard_trainer.files import write_file
            from neuroshard_trainer.job_file import read_job

            trained = compare()
        data_dir = options.data_dir or options.job.resolve().parent
        found, is_first = trained(read_job(options.job), data_dir, options.out.resolve().parent)
        if is_first:
            write_file(options.out, found.to_json())
    except ExpectedError as error:
        sys.stderr.write(f"error: rank {os.environ.get('RANK', '0')}: {error}\n")
        return error.exit_code
    return ExitCode.OK


def end(code: ExitCode) -> None:
    """End this process as the trainer does: threads of a group whose peers are gone may wait for them for ever."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
