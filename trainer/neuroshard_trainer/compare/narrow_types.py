"""``torchrun ... -m neuroshard_trainer.compare.narrow_types JOB --plan PLAN --out FILE``: narrow and exact types."""

import sys
from collections.abc import Sequence
from pathlib import Path

from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_trainer.compare.compared import Compare, end, parser_of, write_compared


def main(arguments: Sequence[str]) -> ExitCode:
    """Compare, write the result from rank 0, and return the exit code."""
    parser = parser_of("narrow_types", "Train a job in pairs, with a plan's narrow types and exactly.")
    parser.add_argument("--plan", type=Path, required=True, help="file with the plan")
    parser.add_argument("--seeds", type=int, default=3, help="pairs, each with a seed of its own")
    parser.add_argument("--steps", type=int, help="steps of each training; default: the job's")
    options = parser.parse_args(arguments)

    def trained() -> Compare:
        from neuroshard_trainer.compare.accuracy import compare_accuracy

        return lambda job, data_dir, run_dir: compare_accuracy(
            job, options.plan, data_dir=data_dir, run_dir=run_dir, seeds=options.seeds, steps=options.steps
        )

    return write_compared(options, trained)


if __name__ == "__main__":
    end(main(sys.argv[1:]))
