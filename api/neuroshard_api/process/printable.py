"""Text that others wrote, as logs and names in files, in a form that a terminal shows and does not obey."""

_KEPT = "\n\t"
_SHOWN = {
    code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"  # noqa: PLR2004 - bytes
    for code in (
        *(each for each in range(0x20) if chr(each) not in _KEPT),
        *range(0x7F, 0xA0),
        *(0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)),  # lines, and orders of reading
    )
}


def printable(text: str) -> str:
    r"""Return text whose control characters are shown as ``\x1b``; ends of lines and tabs stay."""
    return text.replace("\r\n", "\n").translate(_SHOWN)
