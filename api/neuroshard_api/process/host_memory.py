"""What becomes of memory that a process frees. Embedding kernels on CPUs allocate their outputs again in every call.

By default glibc returns large blocks to the system on each free, and the next call pays for every page again: up to
twice the time of a lookup, in some calls and not in others. A measurement and the training that it is to predict must
see the same memory.
"""

import ctypes

_M_TRIM_THRESHOLD = -1  # of glibc's malloc.h
_M_MMAP_MAX = -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """Make the C library keep what is freed for the next allocation; the process stays as large as it ever was.

    The same as the environment variables ``MALLOC_MMAP_MAX_=0`` and ``MALLOC_TRIM_THRESHOLD_=2147483647``.

    Returns:
        Whether it does so from now on: False with a C library that knows no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, _NEVER))
