"""What tests ask of other processes."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil

TESTS = str(Path(__file__).parents[1])


def has_ended(pid: int) -> bool:
    """Return whether a process runs no more; one that nobody has asked for its status may still be in the table."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


_LOOPS: list[str] = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
"""NumPy's, of this processor."""
_WIDE = (("SkylakeX", 2),) if any("V4" in each or "AVX512" in each for each in _LOOPS) else ()
_KERNELS = (*_WIDE, ("Prescott", 1), ("Haswell", 1), ("Zen", 2), ("Sandybridge", 2))
"""OpenBLAS's kernels that this processor has the instructions of, and threads of it."""
_NO_FUSED_LIBM = "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX512F"


def printed_on_processors(code: str, *, kinds: int = len(_KERNELS)) -> set[str]:
    """Return the outputs of a program in processes that compute as on other kinds of processors.

    What depends on the processor is exchanged: BLAS's kernels and threads; NumPy's loops, every second process has no
    more than the baseline; and the functions of libm, which have no fused operations there. Each hashes text with
    another seed.
    """
    found: set[str] = set()
    for number, (kernels, threads) in enumerate(_KERNELS[:kinds]):
        chosen = {
            "PYTHONPATH": os.pathsep.join([TESTS, *filter(None, sys.path)]),
            "OPENBLAS_CORETYPE": kernels,
            "PYTHONHASHSEED": str(number),
            **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
        }
        if number % 2:
            chosen |= {"NPY_DISABLE_CPU_FEATURES": " ".join(_LOOPS), "GLIBC_TUNABLES": _NO_FUSED_LIBM}
        found.add(
            subprocess.run(
                [sys.executable, "-c", code], env=os.environ | chosen, capture_output=True, text=True, check=True
            ).stdout
        )
    return found
