"""``python -m neuroshard_trainer.launch``: torchrun with the same arguments, and an exit code that says what happened.

torchrun itself ends with 1 whatever a process ended with. Here the code is that of the process that failed first, not
of those that failed because it was gone, nor of those that torchrun had to kill since they did not end when asked to; a
process that was killed otherwise counts as 128 + signal, as shells have it.
"""

import os
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from neuroshard_api.job.stage_commands import NODE_RANK_VARIABLE, SHUTDOWN_VARIABLE
from neuroshard_api.pod.place import NODES_BEFORE_VARIABLE
from neuroshard_api.process.collector import uncollected_imports
from neuroshard_api.process.exit_codes import ExitCode

from neuroshard_trainer.errors import missing_torchrec

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

CONSEQUENCES = (ExitCode.PEER_LOST, ExitCode.STOPPED)
"""How processes end because another one did."""
_PORT_IN_USE = re.compile("EADDRINUSE|address already in use", re.IGNORECASE)
_SIGNALLED = 128
_SAME_MOMENT_SECONDS = 1
"""What failed within it was seen together; torchrun kills 30 s later what does not end behind the first failure."""


def main(arguments: Sequence[str]) -> int:
    """Run the processes and return the exit code."""
    try:
        with uncollected_imports():
            import torch
            from torch.distributed import DistNetworkError, DistStoreError
            from torch.distributed.elastic.multiprocessing.api import SignalException
            from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
            from torch.distributed.elastic.rendezvous import RendezvousError
            from torch.distributed.run import parse_args, run
    except (ImportError, OSError) as error:
        sys.stderr.write(f"error: {missing_torchrec(error)}\n")
        return ExitCode.MISSING_PACKAGE
    _number_after_others()
    options = parse_args(list(arguments))  # type: ignore[no-untyped-call] # torch's
    if SHUTDOWN_VARIABLE in os.environ and not hasattr(options, "shutdown_timeout"):
        sys.stderr.write(
            f"warning: {SHUTDOWN_VARIABLE}={os.environ[SHUTDOWN_VARIABLE]} has no effect: torch {torch.__version__} "
            "kills its processes 30 s after SIGTERM"
            "; hint: for a longer checkpoint install a torch whose torchrun has --shutdown-timeout\n"
        )
    try:
        run(options)  # type: ignore[no-untyped-call] # torch's
    except ChildFailedError as error:
        return exit_code_of(error.failures)
    except SignalException as error:
        return _SIGNALLED + error.sigval
    except (DistNetworkError, DistStoreError, RendezvousError) as error:
        return _report_not_met(options.rdzv_endpoint or f"{options.master_addr}:{options.master_port}", error)
    except UnboundLocalError as error:  # of torch's timers, where a signal comes before they have begun
        if not isinstance(error.__context__, SignalException):
            raise
        return _SIGNALLED + error.__context__.sigval
    return ExitCode.OK


def _number_after_others() -> None:
    """Number this node after the nodes that come first: a pod's variables cannot add."""
    before = int(os.environ.get(NODES_BEFORE_VARIABLE, "0"))
    if before:
        os.environ[NODE_RANK_VARIABLE] = str(before + int(os.environ.get(NODE_RANK_VARIABLE, "0")))


def _report_not_met(endpoint: str, error: Exception) -> ExitCode:
    """Report why the nodes' launchers did not meet, and return the exit code.

    Only a port that is in use on this host is the input's fault. A node that is late, gone or not resolvable yet may be
    there at the next attempt.
    """
    reason = str(error.__cause__ or error).strip().splitlines()[0]
    if _PORT_IN_USE.search(f"{error} {error.__cause__}"):
        code, hint = ExitCode.INVALID_INPUT, "choose another port in spec.experimental.rendezvous.port"
    else:
        code = ExitCode.PEER_LOST
        hint = (
            "check that all workers start within spec.experimental.rendezvous.timeoutSeconds and that node 0 can be "
            "reached"
        )
    sys.stderr.write(f"error: the workers did not meet at {endpoint}: {reason}; hint: {hint}\n")
    return code


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
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # Torch's store may have threads left after node 0 died, and the interpreter's end would abort over them, with 134.
    os._exit(status)
