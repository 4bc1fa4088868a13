"""A process with all that it started, which is killed as the death of its node would."""

import contextlib
import subprocess

import psutil

_MOST_SECONDS = 10.0
"""What the end of killed descendants is waited for: of a GPU's, the driver releases the memory."""


def kill_family(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Kill a process and all its descendants at once, and wait for them; nothing happens where it has ended."""
    family: list[psutil.Process] = []
    if process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            first = psutil.Process(process.pid)
            family = [first, *first.children(recursive=True)]
        for each in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()
    psutil.wait_procs(family[1:], timeout=_MOST_SECONDS)
