"""Sizes in the sentences of the planner."""

GIB = 2**30


def gib(num_bytes: float) -> str:
    """Return bytes in GiB with two digits: ``74.83 GiB``."""
    return f"{num_bytes / GIB:,.2f} GiB"
