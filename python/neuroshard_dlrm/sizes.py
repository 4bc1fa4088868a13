"""Sizes of memory as people type them: ``70GiB``, ``40GB``, ``1.5TiB``. Reads text, nothing else."""

import re

from neuroshard_api.process.failures import CommandError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
"""Bytes of each unit in capitals; Ki, Mi, ... are Kubernetes' words."""


def parse_bytes(text: str, *, option: str) -> int:
    """Return whole bytes. Raises CommandError, naming the option, for anything that is not a size."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if found is None or found[2].upper() not in _UNITS:
        raise CommandError(f"{option}: {text!r} is not a size; hint: write a number and a unit, such as 70GiB or 40GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])
