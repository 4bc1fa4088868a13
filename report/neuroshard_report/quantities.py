"""Numbers as people read them: counts, times in ms, shares in percent. Formats, never computes."""

_COUNT_UNITS = ("", "K", "M", "G", "T")


def format_count(number: float) -> str:
    """Return decimal units with three digits: ``40_000_000`` is ``40M``; whole numbers below 100,000 stay whole."""
    if number < 100_000 and number == int(number):  # noqa: PLR2004 - five digits are read at a glance
        return f"{int(number):,}"
    return _scaled(number, 1000, _COUNT_UNITS)


def format_devices(count: int) -> str:
    """Return a number of devices in words."""
    return "1 device" if count == 1 else f"{count} devices"


def format_ms(milliseconds: float) -> str:
    """Return milliseconds without the unit, to three digits or a thousandth: ``12.3``, ``0.042``, ``1,234``."""
    if milliseconds >= 1000:  # noqa: PLR2004
        return f"{milliseconds:,.0f}"
    if milliseconds >= 100:  # noqa: PLR2004
        return f"{milliseconds:.0f}"
    if milliseconds >= 10:  # noqa: PLR2004
        return f"{milliseconds:.1f}"
    return f"{milliseconds:.2f}" if milliseconds >= 1 else f"{milliseconds:.3f}"


def format_percent(share: float) -> str:
    """Return a share as percent with three digits at most: ``0.1234`` is ``12.3 %``."""
    percent = 100 * share
    return f"{percent:.0f} %" if abs(percent) >= 99.95 else f"{percent:.1f} %"  # noqa: PLR2004 - rounds to 100


def _scaled(number: float, base: int, units: tuple[str, ...]) -> str:
    value = float(number)
    unit = 0
    while value >= base - 0.5 and unit < len(units) - 1:
        value /= base
        unit += 1
    digits = 0 if unit == 0 or value >= 99.95 else 1  # noqa: PLR2004 - rounds to 100
    text = f"{value:,.{digits}f}"
    return f"{text.removesuffix('.0')}{units[unit]}"
