"""``torchrun ... -m neuroshard_trainer.compare_plans JOB --plans A B --out FILE``: a job under plans in turns.

Processes that read data import this module, so it imports nothing of torch.
"""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from neuroshard_api.collector import uncollected_imports
from neuroshard_api.exit_codes import ExitCode

from neuroshard_trainer.errors import TrainerError


def main(arguments: Sequence[str]) -> ExitCode:
    """Compare, write the result from rank 0, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="neuroshard_trainer.compare_plans", description="Train a job under plans in turns."
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="file with a DLRMTrainingJob")
    parser.add_argument("--plans", type=Path, nargs="+", required=True, help="files with the plans")
    parser.add_argument("--data-dir", type=Path, help="where relative paths of spec.data begin; default: JOB's folder")
    parser.add_argument("--rounds", type=int, default=10, help="rounds that count")
    parser.add_argument("--steps", type=int, default=10, help="steps of each round under each plan")
    parser.add_argument("--out", type=Path, required=True, help="file for the result")
    options = parser.parse_args(arguments)
    rank = os.environ.get("RANK", "0")
    warnings.filterwarnings("ignore", module="torch")  # and torchrec: nothing that users can mend
    warnings.simplefilter("ignore", FutureWarning)
    with uncollected_imports():
        from neuroshard_trainer.files import write_file
        from neuroshard_trainer.job_comparison import compare
        from neuroshard_trainer.job_file import read_job

    try:
        found, process = compare(
            read_job(options.job),
            options.plans,
            data_dir=options.data_dir or options.job.resolve().parent,
            run_dir=options.out.resolve().parent,
            rounds=options.rounds,
            steps=options.steps,
        )
        if process.is_first:
            write_file(options.out, found.to_json())
    except TrainerError as error:
        sys.stderr.write(f"error: rank {rank}: {error}\n")
        return error.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # as the trainer ends
