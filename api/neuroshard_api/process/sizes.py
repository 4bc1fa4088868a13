"""Sizes in messages and reports: bytes in the unit that fits them. Formats, reads nothing."""

import math

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BASE = 1024


def format_bytes(number: float, *, digits: int = 3) -> str:
    """Return bytes in the largest unit that leaves a whole part: ``1536`` is ``1.5 KiB``.

    Args:
        number: bytes.
        digits: most that are shown, of which at least two are before the point or the point's own place: 3 for what is
            read at a glance, 4 where two sizes are compared.
    """
    value, unit = _scaled(number)
    text = f"{value:,.{_decimals(value, unit, digits)}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {_UNITS[unit]}"


def rounded_up(number: float, *, digits: int = 4) -> int:
    """Return bytes that are at least this many, and that ``format_bytes`` shows exactly: a remedy must suffice."""
    value, unit = _scaled(number)
    steps, unit_bytes = 10.0 ** _decimals(value, unit, digits), float(_BASE) ** unit
    return math.ceil(math.ceil(value * steps) / steps * unit_bytes)


def _scaled(number: float) -> tuple[float, int]:
    value, unit = float(number), 0
    while value >= _BASE - 0.5 and unit < len(_UNITS) - 1:
        value /= _BASE
        unit += 1
    return value, unit


def _decimals(value: float, unit: int, digits: int) -> int:
    """Return the digits after the point: fewer the more are before it, and none of single bytes."""
    if unit == 0:
        return 0
    most = digits - 2
    return next((most - more for more in range(most) if round(value, most - more) < 10 ** (2 + more)), 0)
