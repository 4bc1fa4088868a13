"""Training under several plans in turns, for the terminal."""

from collections.abc import Iterator

from neuroshard_api.documents.training_comparison import CONFIDENCE, PlanTimes, TrainingComparison
from neuroshard_api.process.sizes import format_bytes
from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.quantities import format_ms
from neuroshard_report.terminal.tables import TextTable


def render_training_comparison(found: TrainingComparison) -> RenderableType:
    """Return one line per plan: steps per second, the ratio to the first plan, times, and how far its loss differs."""
    reference = next(iter(found.plans))
    rows = tuple(_row(name, times, is_reference=name == reference) for name, times in found.plans.items())
    columns = ("plan", "steps/s", "interval", "speedup", "interval", "step ms", "embedding ms", "loss", "difference")
    said = (
        f"{found.rounds} rounds of {found.steps_per_round} steps under each plan in turns, on {found.world_size} x "
        f"{found.device}; intervals of {100 * CONFIDENCE:.0f} %"
    )
    memory = [Text(sentence) for sentence in _memory(found)]
    return Group(Text(said), "", TextTable(columns=columns, rows=rows), "", *memory, Text(_verdict(found)))


def _row(name: str, times: PlanTimes, *, is_reference: bool) -> tuple[str, ...]:
    speedup = ("1", "") if is_reference else (f"{times.speedup:.3f}", _interval(times.speedup_interval, 3))
    return (
        name,
        f"{times.steps_per_second:.2f}",
        _interval(times.interval, 2),
        *speedup,
        format_ms(_mean(times.step_ms)),
        "" if times.embedding_ms is None else format_ms(_mean(times.embedding_ms)),
        f"{times.final_loss:.4f}",
        "" if is_reference else f"{times.largest_loss_difference:.1g}",
    )


def _memory(found: TrainingComparison) -> Iterator[str]:
    """Yield the memory that the models of all plans need, and its measured part."""
    if found.memory is not None:
        alone = ", ".join(f"{name} {format_bytes(size)}" for name, size in found.memory.plan_bytes.items())
        yield (
            f"memory: predicted {format_bytes(found.memory.total_bytes)} for the models of all plans on device "
            f"{found.memory.device} ({alone}; of {format_bytes(found.memory.capacity_bytes)})"
        )
    if found.peak_memory_bytes is not None:
        yield f"memory: measured {format_bytes(found.peak_memory_bytes)} at most on a device"


def _verdict(found: TrainingComparison) -> str:
    """Return, in a sentence, which plans are faster than the first one beyond the noise of this run."""
    reference, *others = found.plans
    said = []
    for name in others:
        low, high = found.plans[name].speedup_interval
        if low > 1:
            said.append(f"{name} is {100 * (low - 1):.1f} % to {100 * (high - 1):.1f} % faster than {reference}")
        elif high < 1:
            said.append(f"{name} is {100 * (1 - high):.1f} % to {100 * (1 - low):.1f} % slower than {reference}")
        else:
            said.append(f"{name} and {reference} cannot be distinguished; more rounds narrow the interval")
    return "; ".join(said)


def _interval(values: tuple[float, float], digits: int) -> str:
    return f"{values[0]:.{digits}f} to {values[1]:.{digits}f}"


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)
