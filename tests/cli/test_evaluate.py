"""Specification of ``neuroshard evaluate`` without a model; tests/trainer/test_evaluate.py has one."""

from io import StringIO
from pathlib import Path
from typing import Any

from neuroshard_api.documents.model_evaluation import ModelEvaluation
from neuroshard_report.terminal.model_evaluation import render_model_evaluation
from rich.console import Console


def test_a_folder_without_an_export_is_refused_before_anything_is_imported(neuroshard: Any, tmp_path: Path) -> None:
    """The sentence names the file that an export has."""
    result = neuroshard("evaluate", tmp_path, "day_0.tsv")

    assert result.code == 2
    assert f"{tmp_path / 'model.json'}: does not exist" in result.err


def test_metrics_have_the_words_of_the_trainer() -> None:
    """One line each; a metric that the labels leave undefined has its reason."""
    common: dict[str, Any] = {
        "step": 488, "plan_sha256": "0" * 64, "tables": "FP32", "data": "day_1.tsv", "data_format": "CriteoTSV",
        "num_samples": 2000, "loss": 0.5,
    }  # fmt: skip
    both = ModelEvaluation(
        **common, num_positive=500, normalized_entropy=0.9, auc=0.75, auc_error=2e-5, calibration=1.25
    )
    zeros = ModelEvaluation(**common, num_positive=0, no_auc="all 2,000 labels are 0")
    console = Console(width=140, record=True, file=StringIO())
    for each in (both, zeros):
        console.print(render_model_evaluation(each))

    text = console.export_text()
    for line in (
        "day_1.tsv (CriteoTSV): 2,000 samples, 500 of them of label 1",
        "normalized_entropy  0.90000, below 1 is better than the mean label",
        "auc                 0.75000, exact within 2e-05",
        "calibration         1.25000, mean prediction over mean label",
        "auc                 none: all 2,000 labels are 0",
        "calibration         none: no label is 1",
    ):
        assert line in text
