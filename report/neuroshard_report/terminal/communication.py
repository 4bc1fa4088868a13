"""What narrower types on the wire would give, for the terminal."""

from neuroshard_api.communication import Communication, WireAlternative, WireTypes
from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.quantities import format_ms
from neuroshard_report.terminal.tables import TextTable


def communication_table(decided: Communication) -> RenderableType:
    """Return what each permitted pair would make of the best plan with exact exchange."""
    table = TextTable(
        columns=("all-to-all in", "exchange ms", "codecs ms", "saves ms", "decision"),
        rows=(_exact(decided), *map(_row, decided.alternatives)),
        text_columns=(0, 4),
    )
    return table if decided.reason is None else Group(table, Text(f"not encoded: {decided.reason}"))


def _exact(decided: Communication) -> tuple[str, ...]:
    exchange = "-" if decided.exact_exchange_ms is None else format_ms(decided.exact_exchange_ms)
    return (WireTypes().text, exchange, format_ms(0.0), format_ms(0.0), "" if decided.reason is None else "chosen")


def _row(each: WireAlternative) -> tuple[str, ...]:
    numbers = (each.exchange_ms, each.codec_ms, each.saved_ms)
    return (each.text, *("-" if ms is None else format_ms(ms) for ms in numbers), each.refusal or "chosen")
