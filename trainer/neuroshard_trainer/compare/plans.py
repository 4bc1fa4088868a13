"""``torchrun ... -m neuroshard_trainer.compare.plans JOB --plans A B --out FILE``: a job under plans in turns."""

import sys
from collections.abc import Sequence
from pathlib import Path

from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_trainer.compare.compared import Compare, end, parser_of, write_compared


def main(arguments: Sequence[str]) -> ExitCode:
    """Compare, write the result from rank 0, and return the exit code."""
    parser = parser_of("plans", "Train a job under plans in turns.")
    parser.add_argument("--plans", type=Path, nargs="+", required=True, help="files with the plans")
    parser.add_argument("--rounds", type=int, default=10, help="rounds that count")
    parser.add_argument("--steps", type=int, default=10, help="steps of each round under each plan")
    options = parser.parse_args(arguments)

    def trained() -> Compare:
        from neuroshard_trainer.compare.job_comparison import compare

        return lambda job, data_dir, run_dir: compare(
            job, options.plans, data_dir=data_dir, run_dir=run_dir, rounds=options.rounds, steps=options.steps
        )

    return write_compared(options, trained)


if __name__ == "__main__":
    end(main(sys.argv[1:]))
