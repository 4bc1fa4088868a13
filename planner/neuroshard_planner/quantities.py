"""Sizes in the sentences of the planner."""

GIB = 2**30
_TIB = 2**40


def size(num_bytes: float) -> str:
    """Return bytes in GiB with two digits, and from 1 TiB on in TiB: ``74.83 GiB``, ``22.14 TiB``."""
    return f"{num_bytes / _TIB:,.2f} TiB" if num_bytes >= _TIB else gib(num_bytes)


def gib(num_bytes: float) -> str:
    """Return bytes in GiB with two digits, however many: a remedy must not be rounded down."""
    return f"{num_bytes / GIB:,.2f} GiB"
