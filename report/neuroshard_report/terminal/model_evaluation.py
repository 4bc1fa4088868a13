"""Metrics of an exported model on data, for the terminal."""

from neuroshard_api.documents.model_evaluation import ModelEvaluation
from rich.console import RenderableType

from neuroshard_report.terminal.tables import fact_grid


def render_model_evaluation(found: ModelEvaluation) -> RenderableType:
    """Return one line per metric, in the words of the trainer's log, and the reason for each that is undefined."""
    samples = f"{found.num_samples:,} samples, {found.num_positive:,} of them of label 1"
    return fact_grid(
        [
            ("model", f"step {found.step:,}, tables in {found.tables}"),
            ("data", f"{found.data} ({found.data_format}): {samples}"),
            ("loss", f"{found.loss:.5f}"),
            (
                "normalized_entropy",
                _or_reason(found.normalized_entropy, "below 1 is better than the mean label", found),
            ),
            ("auc", _or_reason(found.auc, f"exact within {found.auc_error or 0:.1g}", found)),
            ("calibration", _calibration(found)),
        ]
    )


def _or_reason(value: float | None, note: str, found: ModelEvaluation) -> str:
    return f"none: {found.no_auc}" if value is None else f"{value:.5f}, {note}"


def _calibration(found: ModelEvaluation) -> str:
    if found.calibration is None:
        return "none: no label is 1"
    return f"{found.calibration:.5f}, mean prediction over mean label"
