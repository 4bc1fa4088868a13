"""A process with all that it started, which is killed as the death of its node would."""

import subprocess

import psutil


def kill_family(process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    """Kill a process and all its descendants at once, and wait for it; nothing happens where it has ended."""
    if process.poll() is None:
        first = psutil.Process(process.pid)
        for each in (first, *first.children(recursive=True)):
            each.kill()
    process.wait()
