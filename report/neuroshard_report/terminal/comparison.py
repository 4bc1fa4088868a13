"""Algorithms side by side for the terminal, the best one marked. Formats, compares nothing itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from neuroshard_api.documents.request import PlanRequest
from neuroshard_api.process.sizes import format_bytes
from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.explain.comparison import Comparison, regrets_of
from neuroshard_report.explain.robustness import NUM_DRAWS, Regret
from neuroshard_report.quantities import format_count, format_ms
from neuroshard_report.terminal.tables import TextTable, fact_grid

BEST_MARK = "*"


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """A comparison and the seconds it took on this machine."""

    comparison: Comparison
    seconds: float


def render_comparison(request: PlanRequest, lines: Sequence[Timed]) -> RenderableType:
    """Return one line per algorithm, cheapest by prediction first; those without a plan below, with their reason."""
    found = [timed for timed in lines if timed.comparison.outcome is not None]
    found.sort(key=_predicted_ms)
    topology = request.topology
    facts = [
        ("model", f"{request.tables.name}, {format_count(len(request.tables.tables))} tables"),
        ("devices", f"{format_count(topology.num_devices)} x {topology.device.product}"),
        ("batch", f"{format_count(request.batch_size_per_device)} samples per device, {', '.join(request.optimizers)}"),
    ]
    if found and (outcome := found[0].comparison.outcome) is not None:
        facts.append(("predicted", f"by the cost models ({outcome.predicted.source})"))
        facts.append(("simulated", f"by the device simulator ({outcome.simulated.source}); nothing was measured"))
    columns = (
        "",
        "algorithm",
        "predicted ms",
        "step ms",
        "30 % off",
        "regret",
        "worst",
        "simulated ms",
        "imbalance",
        "peak memory",
        "split",
        "shards",
        "seconds",
    )
    cheapest_simulated_ms = min((_simulated_ms(timed) for timed in found), default=0.0)
    regrets = regrets_of(timed.comparison for timed in found)
    rows = tuple(
        _row(
            timed,
            regrets[timed.comparison.algorithm],
            is_best=index == 0,
            has_least_simulated=_simulated_ms(timed) == cheapest_simulated_ms,
        )
        for index, timed in enumerate(found)
    )
    problems = [
        Text(f"{timed.comparison.algorithm}: {timed.comparison.problem}")
        for timed in lines
        if timed.comparison.outcome is None
    ]
    legend = Text(
        f"{BEST_MARK} is the least; step ms is predicted ms with the dense part, or the host's time where that is "
        "longer (after >: no dense part is counted, and a step takes longer); imbalance is the largest over the mean "
        "compute time of the devices; 30 % off is predicted ms where pooling factors and skews are up to 30 % off, "
        f"median of {NUM_DRAWS} draws; regret and worst are the share above the least in the same draw, median and most"
    )
    table: list[RenderableType] = [TextTable(columns=columns, rows=rows, text_columns=(0, 1)), legend] if rows else []
    return Group(fact_grid(facts), "", *table, *problems)


def _row(timed: Timed, regret: Regret, *, is_best: bool, has_least_simulated: bool) -> tuple[str, ...]:
    outcome = timed.comparison.outcome
    assert outcome is not None
    return (
        BEST_MARK if is_best else "",
        str(timed.comparison.algorithm),
        format_ms(outcome.predicted.total_ms),
        f"{'' if outcome.step.dense_ms is not None else '> '}{format_ms(outcome.step.total_ms)}",
        format_ms(median(outcome.other_traffic_ms)),
        f"{100 * regret.median:.1f} %",
        f"{100 * regret.worst:.1f} %",
        f"{BEST_MARK if has_least_simulated else ''}{format_ms(outcome.simulated.total_ms)}",
        f"{outcome.compute_imbalance:.2f}",
        format_bytes(outcome.peak_memory_bytes),
        str(outcome.num_split_tables),
        str(outcome.num_shards),
        f"{timed.seconds:.2f}",
    )


def _predicted_ms(timed: Timed) -> float:
    assert timed.comparison.outcome is not None
    return timed.comparison.outcome.predicted.total_ms


def _simulated_ms(timed: Timed) -> float:
    assert timed.comparison.outcome is not None
    return timed.comparison.outcome.simulated.total_ms
