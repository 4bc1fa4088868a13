"""Pairs of trainings with and without narrow types, for the terminal."""

from neuroshard_api.documents.accuracy_comparison import AccuracyComparison, AccuracyPair
from rich.console import Group, RenderableType
from rich.text import Text

from neuroshard_report.terminal.tables import TextTable

WITHIN_NOISE = 2
"""Standard errors: a mean change that is smaller is within what seeds differ by."""


def render_accuracy_comparison(found: AccuracyComparison) -> RenderableType:
    """Return one line per pair: the normalized entropy of held-out samples, and how narrow types changed it."""
    said = (
        f"{len(found.pairs)} pairs of {found.steps} steps on {found.world_size} x {found.device}, of equal weights and "
        f"batches: exact, and {_types(found)}"
    )
    columns = ("seed", "entropy exact", "narrow", "change", "AUC exact", "narrow", "guard")
    rows = tuple(map(_row, found.pairs))
    return Group(Text(said), "", TextTable(columns=columns, rows=rows), "", Text(_verdict(found)))


def _types(found: AccuracyComparison) -> str:
    parts = [] if found.wire is None else [f"embeddings in {found.wire.text}"]
    if found.gradients is not None:
        parts.append(f"dense gradients in {found.gradients.type}")
    return ", ".join(parts)


def _row(pair: AccuracyPair) -> tuple[str, ...]:
    aucs = ["" if each.auc is None else f"{each.auc:.4f}" for each in (pair.exact, pair.narrow)]
    return (
        str(pair.seed),
        f"{pair.exact.normalized_entropy:.5f}",
        f"{pair.narrow.normalized_entropy:.5f}",
        f"{100 * pair.change:+.3f} %",
        *aucs,
        "suspended" if pair.suspended else "",
    )


def _verdict(found: AccuracyComparison) -> str:
    """Return, in a sentence, what the pairs say together."""
    error = found.standard_error
    changed = f"narrow types changed the entropy by {100 * found.mean_change:+.3f} %"
    if error is None:
        return f"{changed}; one pair cannot judge: give more seeds"
    said = f"{changed} on the mean, standard error {100 * error:.3f} %"
    if abs(found.mean_change) <= WITHIN_NOISE * error:
        return f"{said}: within the noise of these seeds"
    return f"{said}: {'worse' if found.mean_change > 0 else 'better'} beyond the noise of these seeds"
