"""What tests ask of other processes."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

TESTS = str(Path(__file__).parents[1])


def has_ended(pid: int) -> bool:
    """Return whether a process runs no more; one that nobody has asked for its status may still be in the table."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def printed_with_threads(code: str) -> set[str]:
    """Return the outputs of a program in two processes, one whose BLAS may take one thread and one with two.

    Each hashes text with a different seed. Both have the kernels for Haswell where OpenBLAS knows them: of those the
    digits depend on how rows are dealt out.
    """
    kernels = {"PYTHONPATH": os.pathsep.join([TESTS, *filter(None, sys.path)]), "OPENBLAS_CORETYPE": "Haswell"}
    numbers = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTHONHASHSEED")
    return {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **kernels, **dict.fromkeys(numbers, number)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for number in ("1", "2")
    }
