"""AUC and normalised entropy."""

from typing import Any

import pytest
import torch
from neuroshard_trainer.metrics import Evaluation


def evaluated(group: Any, logits: list[float], labels: list[float]) -> dict[str, float]:
    """Return the metrics of some samples, taken in two parts."""
    evaluation = Evaluation(group)
    half = len(logits) // 2
    for part in (slice(0, half), slice(half, None), slice(0, 0)):
        evaluation.add(torch.tensor(logits[part]), torch.tensor(labels[part]))
    return evaluation.compute()


def test_a_good_order_has_a_high_auc(group: Any) -> None:
    """The share of pairs in the right order; ties count half."""
    assert evaluated(group, [0.0, 1.0, 2.0, 3.0], [0, 0, 1, 1])["auc"] == 1.0
    assert evaluated(group, [0.0, 2.0, 1.0, 3.0], [0, 0, 1, 1])["auc"] == 0.75
    assert evaluated(group, [1.0, 1.0, 1.0, 1.0], [0, 1, 0, 1])["auc"] == 0.5


def test_knowing_the_mean_has_an_entropy_of_one(group: Any) -> None:
    """Below 1 is better, above is worse."""
    mean = torch.logit(torch.tensor(0.25)).item()
    labels = [1.0, 0.0, 0.0, 0.0]

    assert evaluated(group, [mean] * 4, labels)["normalized_entropy"] == pytest.approx(1.0)
    assert evaluated(group, [2.0, -2.0, -2.0, -2.0], labels)["normalized_entropy"] < 1
    assert evaluated(group, [-2.0, 2.0, 2.0, 2.0], labels)["normalized_entropy"] > 1


@pytest.mark.filterwarnings("ignore:No (negative|positive) samples")
def test_labels_of_one_kind_have_no_metrics(group: Any) -> None:
    """Neither is defined; nothing is made up."""
    assert evaluated(group, [0.0, 1.0], [1, 1]) == {}
