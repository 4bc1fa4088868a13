"""How torch's allocator is configured by a process's environment."""

from collections.abc import Mapping

ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Settings of torch's allocator; the second is the older name, and counts where the first is not set."""
EXPANDABLE_SEGMENTS = "expandable_segments:True"
"""Lets the allocator grow its segments, which leaves smaller gaps where the sizes of tensors vary."""


def has_expandable_segments(environment: Mapping[str, str | None]) -> bool | None:
    """Return whether the allocator's segments grow. None: the environment does not configure the allocator."""
    given = [environment[name] for name in ALLOCATOR_VARIABLES if name in environment]
    if not given:
        return None
    settings = [each.strip().lower() for each in (given[0] or "").split(",")]
    return EXPANDABLE_SEGMENTS.lower() in settings
