"""What narrower types of pooled embeddings and of gradients would give, for the terminal."""

from collections.abc import Sequence

from neuroshard_api.documents.communication import CommunicationPlan, WireAlternative, WireTypes
from neuroshard_api.documents.gradient_exchange import GradientAlternative, GradientDecision, GradientType
from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.quantities import format_ms
from neuroshard_report.terminal.tables import TextTable


def narrow_tables(
    communication: CommunicationPlan | None, gradients: GradientDecision | None
) -> Sequence[RenderableType]:
    """Return the tables of the decisions that had alternatives, each after an empty line."""
    tables: list[RenderableType] = []
    if communication is not None and communication.alternatives:
        tables += [Text(), communication_table(communication)]
    if gradients is not None and gradients.alternatives:
        tables += [Text(), gradients_table(gradients)]
    return tables


def communication_table(decided: CommunicationPlan) -> RenderableType:
    """Return the table of the prices of a step in each permitted pair, on the best placement that is known for it.

    Exchange and rest are the step. The rest differs where the placement is another than that of the exact plan.
    """
    table = TextTable(
        columns=("all-to-all in", "exchange ms", "of it codecs ms", "rest ms", "step ms", "saves ms", "decision"),
        rows=(_exact(decided), *(_row(decided, each) for each in decided.alternatives)),
        text_columns=(0, 6),
    )
    return table if decided.reason is None else Group(table, Text(f"not encoded: {decided.reason}"))


def gradients_table(decided: GradientDecision) -> RenderableType:
    """Return the table of prices of the dense part's gradient exchange in each permitted type."""
    is_exact = decided.chosen is GradientType.FP32
    exposed = "-" if decided.exact_exposed_ms is None else format_ms(decided.exact_exposed_ms)
    exact = (GradientType.FP32.value, exposed, format_ms(0.0), format_ms(0.0), "chosen" if is_exact else "")
    table = TextTable(
        columns=("gradients in", "exposed ms", "codecs ms", "saves ms", "decision"),
        rows=(exact, *map(_gradient_row, decided.alternatives)),
        text_columns=(0, 4),
    )
    return table if decided.reason is None else Group(table, Text(f"not encoded: {decided.reason}"))


def _gradient_row(each: GradientAlternative) -> tuple[str, ...]:
    numbers = (each.exposed_ms, each.codec_ms, each.saved_ms)
    return (each.type.value, *("-" if ms is None else format_ms(ms) for ms in numbers), each.refusal or "chosen")


def _exact(decided: CommunicationPlan) -> tuple[str, ...]:
    numbers = _of_step(decided.exact_exchange_ms, 0.0, decided.exact_ms)
    return (WireTypes().text, *numbers, format_ms(0.0), "" if decided.reason is None else "chosen")


def _row(decided: CommunicationPlan, each: WireAlternative) -> tuple[str, ...]:
    numbers = _of_step(each.exchange_ms, each.codec_ms, decided.step_ms(each))
    saved = "-" if each.saved_ms is None else format_ms(each.saved_ms)
    return (each.text, *numbers, saved, each.refusal or "chosen")


def _of_step(exchange_ms: float | None, codec_ms: float | None, step_ms: float | None) -> tuple[str, ...]:
    """Return exchange, codecs, the rest of the step, and the step; a dash for what is not known."""
    rest_ms = None if exchange_ms is None or step_ms is None else step_ms - exchange_ms
    return tuple("-" if ms is None else format_ms(ms) for ms in (exchange_ms, codec_ms, rest_ms, step_ms))
