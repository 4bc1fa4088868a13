"""What the terminal says of narrow types."""

from neuroshard_api.documents.communication import CommunicationPlan, WireAlternative, WireType, WireTypes
from neuroshard_api.documents.gradient_exchange import GradientAlternative, GradientDecision, GradientType
from neuroshard_report.communication import communication_line
from neuroshard_report.terminal.communication import narrow_tables
from rich.console import Console, Group

INT8 = WireTypes(forward=WireType.INT8, backward=WireType.FP16)
PRICED = WireAlternative(**INT8.model_dump(), exchange_ms=1.5, codec_ms=0.1, saved_ms=0.87)
REFUSED = WireAlternative(forward=WireType.FP8, refusal="forward: TorchRec has no FP8 codec for CPUs")
REASON = "the all-to-alls take 0.040 ms, 4.0 % of the step"


def shown(decided: CommunicationPlan | None, gradients: GradientDecision | None = None) -> list[str]:
    """Return the lines of the tables."""
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(Group(*narrow_tables(decided, gradients)))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_chosen_types_are_shown_with_what_they_give() -> None:
    """Before and after, the codecs' part, and what nobody predicted."""
    decided = CommunicationPlan(chosen=INT8, exact_ms=3.37, exact_exchange_ms=2.0, alternatives=(PRICED,))

    assert communication_line(INT8, decided, 2.5) == (
        "all-to-all INT8 forward, FP16 backward: 3.37 -> 2.50 ms, of it codecs 0.100; accuracy is not predicted, the "
        "trainer's guard watches it"
    )
    assert shown(decided)[-1].split() == ["INT8", "forward,", "FP16", "backward", "1.50", "0.100", "0.870", "chosen"]


def test_refused_types_are_shown_with_the_reason() -> None:
    """Each alternative has its own, and the decision one."""
    refused = PRICED.model_copy(update={"refusal": "saves 0.010 ms (1.0 %), below 2 %"})
    decided = CommunicationPlan(chosen=WireTypes(), exact_ms=1.0, alternatives=(refused, REFUSED), reason=REASON)

    assert communication_line(None, decided, 1.0) == f"exact: {REASON}"
    lines = shown(decided)
    assert lines[-3].endswith("saves 0.010 ms (1.0 %), below 2 %")
    assert lines[-2].endswith("-  forward: TorchRec has no FP8 codec for CPUs")
    assert lines[-1].strip() == f"not encoded: {REASON}"


def test_types_of_gradients_are_shown_with_price_and_decision() -> None:
    """A row for each, exact ones first; without alternatives there is no table."""
    decided = GradientDecision(
        chosen=GradientType.BF16,
        exact_exposed_ms=3.0,
        alternatives=(
            GradientAlternative(type=GradientType.BF16, exposed_ms=1.5, codec_ms=0.1, saved_ms=1.4),
            GradientAlternative(type=GradientType.THRESHOLD, refusal="keep at most 1.6 %"),
        ),
    )
    header, exact, chosen, refused = shown(None, decided)[1:]

    assert header.split()[:2] == ["gradients", "in"]
    assert exact.split() == ["FP32", "3.00", "0.000", "0.000"]
    assert chosen.split() == ["BF16", "1.50", "0.100", "1.40", "chosen"]
    assert refused.split() == ["Threshold", "-", "-", "-", "keep", "at", "most", "1.6", "%"]
    assert not narrow_tables(None, decided.model_copy(update={"alternatives": ()}))


def test_types_that_were_asked_for_have_no_choice_to_show() -> None:
    """The line says so."""
    assert communication_line(INT8, None, 2.0).startswith("all-to-all INT8 forward, FP16 backward, as asked for")
