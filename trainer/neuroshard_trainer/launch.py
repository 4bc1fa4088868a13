"""``python -m neuroshard_trainer.launch``: torchrun with the same arguments, and an exit code that says what happened.

torchrun itself ends with 1 whatever a process ended with. Here the code is that of the process that failed first, not
of those that failed because it was gone, nor of those that torchrun had to kill since they did not end when asked to; a
process that was killed otherwise counts as 128 + signal, as shells have it.
"""

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from neuroshard_api.exit_codes import ExitCode

from neuroshard_trainer.errors import MissingPackageError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

CONSEQUENCES = (ExitCode.PEER_LOST, ExitCode.STOPPED)
"""How processes end because another one did."""
_SIGNALLED = 128
_SAME_MOMENT_SECONDS = 1
"""What failed within it was seen together; torchrun kills 30 s later what does not end behind the first failure."""


def main(arguments: Sequence[str]) -> int:
    """Run the processes and return the exit code."""
    try:
        from torch.distributed import DistNetworkError
        from torch.distributed.elastic.multiprocessing.api import SignalException
        from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
        from torch.distributed.elastic.rendezvous import RendezvousError
        from torch.distributed.run import parse_args, run
    except (ImportError, OSError) as error:
        sys.stderr.write(f"error: {MissingPackageError.of(error)}\n")
        return ExitCode.MISSING_PACKAGE
    options = parse_args(list(arguments))  # type: ignore[no-untyped-call] # torch's
    try:
        run(options)  # type: ignore[no-untyped-call] # torch's
    except ChildFailedError as error:
        return exit_code_of(error.failures)
    except SignalException as error:
        return _SIGNALLED + error.sigval
    except (DistNetworkError, RendezvousError) as error:
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        sys.stderr.write(
            f"error: the processes cannot meet at {options.rdzv_endpoint or options.master_port}: {reason}; "
            "is the port taken? Name another in spec.rendezvous.port, and check that the first node can be reached\n"
        )
        return ExitCode.INVALID_INPUT
    return ExitCode.OK


def exit_code_of(failures: "Mapping[int, ProcessFailure]") -> int:
    """Return the exit code of the process that failed first of itself, or else of the first that failed."""
    in_order = sorted(failures.values(), key=lambda failure: failure.timestamp)
    first = in_order[0].timestamp
    codes = [
        _SIGNALLED - failure.exitcode if failure.exitcode < 0 else failure.exitcode
        for failure in in_order
        if failure.exitcode != -signal.SIGKILL or failure.timestamp - first <= _SAME_MOMENT_SECONDS
    ]
    return next((code for code in codes if code not in CONSEQUENCES), codes[0])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
