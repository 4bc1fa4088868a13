"""``torchrun ... -m neuroshard_trainer JOB --plan PLAN --run-dir DIR``: one process of a training."""

import argparse
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

from neuroshard_api.process.collector import uncollected_imports
from neuroshard_api.process.errors import ExpectedError
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_trainer.errors import missing_torchrec, require_torchrec
from neuroshard_trainer.measure.device_memory import use_expandable_segments


def main(arguments: Sequence[str]) -> ExitCode:
    """Train, tell what went wrong in one sentence, and return the exit code."""
    options = _parser().parse_args(arguments)
    rank = os.environ.get("RANK", "0")
    _log_own_lines(rank)
    try:
        _run(options)
    except ExpectedError as error:
        sys.stderr.write(f"error: rank {rank}: {error}\n")
        return error.exit_code
    except Exception:  # noqa: BLE001 - the one place where every error ends
        sys.stderr.write(f"error: rank {rank}: a bug of the trainer; please report what follows\n")
        traceback.print_exc()
        return ExitCode.INTERNAL_ERROR
    return ExitCode.OK


def _run(options: argparse.Namespace) -> None:
    require_torchrec()
    use_expandable_segments()
    try:
        with uncollected_imports():  # here, because --help and a wrong option need none of it
            from neuroshard_api.job.stage_commands import CHECKPOINTS_LOST_VARIABLE, READY_FILE_VARIABLE

            from neuroshard_trainer.job_file import read_job
            from neuroshard_trainer.ranks.tracing import TracedSteps
            from neuroshard_trainer.run import RunPaths, train, try_out
    except (ImportError, OSError) as error:
        raise missing_torchrec(error) from error

    job_file: Path = options.job
    job = read_job(job_file)
    ready_file = os.environ.get(READY_FILE_VARIABLE)
    places = RunPaths(
        plan_file=options.plan,
        run_dir=options.run_dir,
        data_dir=options.data_dir or job_file.resolve().parent,
        ready_file=Path(ready_file) if ready_file and os.environ.get("LOCAL_RANK") == "0" else None,
        keeps_checkpoints=CHECKPOINTS_LOST_VARIABLE not in os.environ,
    )
    if options.trial_steps is not None:
        try_out(job, places, steps=options.trial_steps, device=options.device)
        return
    steps = None if options.trace_steps is None else TracedSteps.parsed(options.trace_steps)
    train(job, places, device=options.device, metrics_port=options.metrics_port, traced_steps=steps)


def _log_own_lines(rank: str) -> None:
    """Log the lines of the trainer, from rank 0 all of them, and only errors of the libraries."""
    warnings.filterwarnings("ignore", module="torch")  # and torchrec: nothing that users can fix
    logging.basicConfig(level=logging.ERROR, format=f"%(asctime)s rank {rank}: %(message)s", stream=sys.stdout)
    logging.getLogger("torch").setLevel(logging.ERROR)
    logging.getLogger("neuroshard_trainer").setLevel(logging.INFO if rank == "0" else logging.WARNING)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="neuroshard_trainer",
        description="Train a recommendation model under a sharding plan; torchrun starts one process per device.",
    )
    parser.add_argument("job", type=Path, metavar="JOB", help="file with a DLRMTrainingJob")
    parser.add_argument("--plan", type=Path, required=True, help="file with the plan")
    parser.add_argument("--run-dir", type=Path, required=True, help="folder for checkpoints and reports")
    parser.add_argument("--data-dir", type=Path, help="where relative paths of spec.data begin; default: JOB's folder")
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="default: a GPU; the CPU where there is none, and neither the job nor the plan is for GPUs",
    )
    parser.add_argument("--metrics-port", type=int, help="port where rank 0 serves Prometheus; default: none")
    parser.add_argument(
        "--trial-steps",
        type=int,
        metavar="N",
        help="take N steps, or those of a minute, report their times in trial/ of --run-dir, save and evaluate "
        "nothing; default: train",
    )
    parser.add_argument(
        "--trace-steps", metavar="FIRST:END", help="steps of which rank 0 writes a trace; default: none"
    )
    return parser


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of a process group whose peers are gone may wait for them for ever; nothing is left to be done.
    os._exit(code)
