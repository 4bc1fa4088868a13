"""What a plan sends in narrow types, and what that gives, in a line."""

from neuroshard_api.documents.communication import CommunicationPlan, WireTypes
from neuroshard_api.documents.gradient_exchange import GradientDecision, GradientExchange

from neuroshard_report.quantities import format_ms


def communication_line(wire: WireTypes | None, decided: CommunicationPlan | None, total_ms: float) -> str:
    """Return a line on the types on the wire and their gain."""
    if decided is not None and decided.reason is not None:
        return f"exact: {decided.reason}"
    if wire is None or wire.is_exact:
        return "exact"
    if decided is None or decided.exact_ms is None:
        return f"all-to-all {wire.text}, as asked for; accuracy is not predicted, the trainer's guard watches it"
    chosen = next((each for each in decided.alternatives if each.refusal is None), None)
    codecs = "" if chosen is None or chosen.codec_ms is None else f", of it codecs {format_ms(chosen.codec_ms)}"
    return (
        f"all-to-all {wire.text}: {format_ms(decided.exact_ms)} -> {format_ms(total_ms)} ms{codecs}; accuracy is not "
        "predicted, the trainer's guard watches it"
    )


def gradients_line(exchange: GradientExchange | None, decided: GradientDecision | None) -> str:
    """Return a line on the gradients' exchange of the replicated dense part and its gain."""
    if decided is not None and decided.reason is not None:
        return f"exact: {decided.reason}"
    if exchange is None:
        return "exact"
    if decided is None:
        return f"{exchange.type}, as asked for; accuracy is not predicted"
    chosen = next((each for each in decided.alternatives if each.refusal is None), None)
    if chosen is None or chosen.saved_ms is None or chosen.codec_ms is None:
        return f"{exchange.type}; accuracy is not predicted"
    return (
        f"{exchange.type} saves {format_ms(chosen.saved_ms)} ms, after {format_ms(chosen.codec_ms)} ms of codecs; "
        "accuracy is not predicted"
    )
