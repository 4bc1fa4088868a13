"""AUC, normalized entropy, and calibration over the samples of all ranks, in bounded memory."""

import math
from dataclasses import dataclass

import torch
import torch.distributed as dist
from neuroshard_api.process.errors import InputError
from torch.nn.functional import binary_cross_entropy_with_logits

DIVERGED_REMEDY = (
    "lower spec.training.embeddingLearningRate or denseLearningRate, and check the dense features for outliers"
)
ETA = 1e-12
"""Distance that predictions keep from 0 and 1 in the cross entropy, as in TorchRec's metrics."""
NUM_BINS = 2**17
"""Bins of the logits, of equal width from -LOGIT_LIMIT to LOGIT_LIMIT; the outer ones take what is beyond."""
LOGIT_LIMIT = 16.0
"""A chance of one in nine million: beyond it, predictions of clicks hardly differ."""
_ENTROPY_LOGIT_LIMIT = math.log((1 - ETA) / ETA)


class StreamingAuc:
    """The area under the ROC curve from histograms of the logits: 2 MiB, whatever the number of samples.

    Pairs of a positive and a negative sample in different bins are ordered as by their exact logits. A pair within one
    bin counts as one half, where the exact count is 0, 1/2 or 1. So the exact AUC differs from this one by at most half
    the share of such pairs, which ``error`` gives: a bound, not an estimate.
    """

    def __init__(self) -> None:
        self.counts = torch.zeros(2, NUM_BINS, dtype=torch.int64)
        """Samples by label and bin."""

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in some samples; both of shape (samples,) on the CPU."""
        scaled = (logits.double() + LOGIT_LIMIT) * (NUM_BINS / (2 * LOGIT_LIMIT))
        bins = scaled.floor().clamp_(0, NUM_BINS - 1).long() + NUM_BINS * labels.long()
        self.counts += torch.bincount(bins, minlength=2 * NUM_BINS).view(2, NUM_BINS)

    def compute(self) -> tuple[float, float] | None:
        """Return the AUC and the bound of its error; None: there are no pairs."""
        negative, positive = self.counts.double()
        num_pairs = float(negative.sum() * positive.sum())
        if not num_pairs:
            return None
        below = negative.cumsum(0) - negative
        within = float((positive * negative).sum()) / 2
        return (float((positive * below).sum()) + within) / num_pairs, within / num_pairs


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """What an evaluation found. Metrics that the labels leave undefined are None, as where all are equal."""

    num_samples: int
    num_positive: int
    """Samples of label 1."""
    loss: float | None
    """Mean cross entropy in nats. None: there are no samples."""
    normalized_entropy: float | None
    """Cross entropy over that of the labels' mean (He et al., "Practical lessons from predicting clicks on ads at
    Facebook", 2014): below 1 is better than knowing the mean alone. None: the labels are of one kind."""
    auc: float | None
    """None: the labels are of one kind."""
    auc_error: float | None
    """Bound of the difference between ``auc`` and the AUC of the exact predictions. None: there is no AUC."""
    calibration: float | None
    """Mean prediction over mean label. None: no label is 1."""

    @property
    def by_name(self) -> dict[str, float]:
        """The metrics that a training shows; what is undefined is left out."""
        found = {"auc": self.auc, "auc_error": self.auc_error, "normalized_entropy": self.normalized_entropy}
        return {name: value for name, value in found.items() if value is not None}

    def why_no_auc(self, labels: str = "labels") -> str | None:
        """Return the reason why there is no AUC, in a clause. None: there is one.

        Args:
            labels: name of the labels.
        """
        if self.auc is not None:
            return None
        if not self.num_samples:
            return f"there are no {labels}"
        return f"all {self.num_samples:,} {labels} are {1 if self.num_positive else 0}"


class Evaluation:
    """Collects predictions of this rank and computes the metrics of all.

    Args:
        group: of all ranks, for CPU tensors. None: this process is alone.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._auc = StreamingAuc()
        self._sums = torch.zeros(3, dtype=torch.float64)  # cross entropies in nats, labels, and predictions
        self._counts = torch.zeros(2, dtype=torch.int64)  # samples, and those of them whose logit is not finite

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in some samples; both of shape (samples,), which may be empty."""
        scores, wanted = logits.detach().double().cpu(), labels.cpu()
        is_finite = scores.isfinite()
        self._counts += torch.tensor([len(scores), len(scores) - int(is_finite.sum())])
        scores, wanted = scores[is_finite], wanted[is_finite]
        self._auc.add(scores, wanted)
        wanted = wanted.double()
        limited = scores.clamp(-_ENTROPY_LOGIT_LIMIT, _ENTROPY_LOGIT_LIMIT)
        cross_entropy = binary_cross_entropy_with_logits(limited, wanted, reduction="sum")
        self._sums += torch.stack((cross_entropy, wanted.sum(), scores.sigmoid().sum()))

    def compute(self) -> Metrics:
        """Return the metrics. All ranks must call this, and all get the same answer.

        Raises:
            InputError: on all ranks where the logits of one are not finite.
        """
        self._add_other_ranks(self._counts)
        count, num_invalid = self._counts.tolist()
        if num_invalid:
            raise InputError(
                f"{num_invalid} of {count} logits of the evaluation are not finite; hint: {DIVERGED_REMEDY}"
            )
        self._add_other_ranks(self._sums)
        self._add_other_ranks(self._auc.counts)
        cross_entropy, positive, predicted = self._sums.tolist()
        auc, error = self._auc.compute() or (None, None)
        return Metrics(
            num_samples=count,
            num_positive=round(positive),
            loss=cross_entropy / count if count else None,
            normalized_entropy=None if auc is None else cross_entropy / _entropy_of_mean(count, positive),
            auc=auc,
            auc_error=error,
            calibration=predicted / positive if positive else None,
        )

    def _add_other_ranks(self, sums: torch.Tensor) -> None:
        if self._group is not None:
            dist.all_reduce(sums, group=self._group)


def _entropy_of_mean(count: int, positive: float) -> float:
    """Return the cross entropy, in nats, of predicting the labels' mean for each of the samples."""
    mean = positive / count
    return -count * (mean * math.log(mean) + (1 - mean) * math.log(1 - mean))
