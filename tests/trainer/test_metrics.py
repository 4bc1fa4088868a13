"""AUC and normalized entropy."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from neuroshard_api.process.errors import InputError
from neuroshard_trainer.metrics import ETA, Evaluation, Metrics, StreamingAuc


def evaluated(group: Any, logits: list[float], labels: list[float]) -> dict[str, float]:
    """Return the metrics of some samples by name, taken in two parts."""
    return metrics_of(group, logits, labels).by_name


def metrics_of(group: Any, logits: list[float], labels: list[float]) -> Metrics:
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


@pytest.mark.parametrize("logit", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_refused(group: Any, logit: float) -> None:
    """A diverged model has no metrics, and the sentence names how many of its logits are none."""
    with pytest.raises(InputError, match=r"1 of 4 logits of the evaluation are not finite; hint: lower spec\.training"):
        evaluated(group, [0.0, 1.0, logit, 3.0], [0, 0, 1, 1])


@given(
    st.lists(st.tuples(st.floats(-40, 40, width=32), st.booleans()), min_size=1, max_size=60),
    st.sampled_from([1.0, 1e-5, 1e-3]),
)
def test_the_exact_auc_is_within_the_error(samples: list[tuple[float, bool]], scale: float) -> None:
    """Of any predictions: equal ones, ones that share a bin, and ones beyond the outer bins."""
    logits = torch.tensor([scale * logit for logit, _ in samples], dtype=torch.float64)
    labels = torch.tensor([float(label) for _, label in samples])
    streaming = StreamingAuc()
    streaming.add(logits, labels)

    found = streaming.compute()

    if len(set(labels.tolist())) == 1:
        assert found is None
        return
    assert found is not None
    auc, error = found
    positive, negative = logits[labels == 1], logits[labels == 0]
    order = positive[:, None] - negative[None, :]
    exact = float(((order > 0).double() + (order == 0).double() / 2).mean())
    assert abs(auc - exact) <= error + 1e-12
    assert 0 <= error <= 0.5


def test_the_error_is_small_for_usual_predictions() -> None:
    """A million predictions around a click rate of 3 % have an AUC within 0.0001 of the exact one."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(1_000_000, generator=generator) < 0.03).float()
    logits = torch.randn(1_000_000, generator=generator) - 3.5 + labels
    streaming = StreamingAuc()
    streaming.add(logits, labels)

    auc, error = streaming.compute() or (0.0, 1.0)

    negative, positive = (np.sort(logits[labels == label].numpy()) for label in (0, 1))
    below, equal_or_below = (np.searchsorted(negative, positive, side=side) for side in ("left", "right"))
    exact = float((below + equal_or_below).mean()) / 2 / len(negative)
    assert error < 1e-4
    assert abs(auc - exact) <= error


def test_knowing_the_mean_has_an_entropy_of_one(group: Any) -> None:
    """Below 1 is better, above is worse."""
    mean = torch.logit(torch.tensor(0.25)).item()
    labels = [1.0, 0.0, 0.0, 0.0]

    assert evaluated(group, [mean] * 4, labels)["normalized_entropy"] == pytest.approx(1.0)
    assert evaluated(group, [2.0, -2.0, -2.0, -2.0], labels)["normalized_entropy"] < 1
    assert evaluated(group, [-2.0, 2.0, 2.0, 2.0], labels)["normalized_entropy"] > 1


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([0, 0], "all 2 held-out labels are 0"),
        ([1, 1], "all 2 held-out labels are 1"),
        ([], "there are no held-out labels"),
    ],
    ids=["zeros", "ones", "none"],
)
def test_labels_of_one_kind_have_no_auc_and_a_reason(group: Any, labels: list[float], reason: str) -> None:
    """Neither AUC nor normalized entropy is defined, and nothing is made up; a clause names what the labels are."""
    found = metrics_of(group, [0.0, 1.0][: len(labels)], labels)

    assert found.by_name == {}
    assert found.why_no_auc("held-out labels") == reason


def test_an_auc_needs_no_reason(group: Any) -> None:
    """Where labels are of both kinds."""
    assert metrics_of(group, [0.0, 1.0], [0, 1]).why_no_auc() is None


@pytest.mark.parametrize("alone", [True, False], ids=["without a group", "in a group of one"])
def test_calibration_is_the_mean_prediction_over_the_mean_label(group: Any, alone: bool) -> None:  # noqa: FBT001
    """Of a model that predicts 3/4 where half are clicks, 1.5; the loss is the mean cross entropy in nats."""
    found = metrics_of(None if alone else group, [math.log(3)] * 4, [1, 0, 1, 0])

    assert found.calibration == pytest.approx(1.5)
    assert found.loss == pytest.approx(-(math.log(0.75) + math.log(0.25)) / 2)
    assert (found.num_samples, found.num_positive) == (4, 2)
    assert metrics_of(group, [0.0], [0]).calibration is None


@pytest.mark.parametrize("limit", [1.0, 8.0, 60.0])
def test_the_entropy_is_that_of_its_definition(group: Any, limit: float) -> None:
    """Mean log loss over the entropy of the click rate; predictions keep off 0 and 1 as in TorchRec's metrics."""
    generator = torch.Generator().manual_seed(0)
    logits = (2 * limit * torch.rand(200, generator=generator) - limit).tolist()
    labels = (torch.rand(200, generator=generator) < 0.2).float().tolist()
    rate = sum(labels) / len(labels)
    chances = [min(max(1 / (1 + math.exp(-logit)), ETA), 1 - ETA) for logit in logits]
    losses = [math.log(chance if label else 1 - chance) for chance, label in zip(chances, labels, strict=True)]
    expected = sum(losses) / len(losses) / (rate * math.log(rate) + (1 - rate) * math.log(1 - rate))

    assert evaluated(group, logits, labels)["normalized_entropy"] == pytest.approx(expected, rel=1e-4)
