"""AUC and normalized entropy over the samples of all ranks, in bounded memory."""

import math

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


class Evaluation:
    """Collects predictions of this rank and computes the metrics of all.

    Args:
        group: of all ranks, for CPU tensors.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._auc = StreamingAuc()
        self._sums = torch.zeros(2, dtype=torch.float64)  # cross entropies in nats, and labels
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
        self._sums += torch.stack((cross_entropy, wanted.sum()))

    def compute(self) -> dict[str, float]:
        """Return the metrics by name. All ranks must call this, and all get the same answer.

        ``auc_error`` bounds how far ``auc`` is from that of the exact predictions. ``normalized_entropy`` is the cross
        entropy of the predictions over that of the labels' mean (He et al., "Practical lessons from predicting clicks
        on ads at Facebook", 2014): below 1 is better than knowing the mean alone. Metrics that the labels leave
        undefined, as where all are equal, are left out.

        Raises:
            InputError: on all ranks where the logits of one are not finite.
        """
        dist.all_reduce(self._counts, group=self._group)
        count, num_invalid = self._counts.tolist()
        if num_invalid:
            raise InputError(
                f"{num_invalid} of {count} logits of the evaluation are not finite; hint: {DIVERGED_REMEDY}"
            )
        dist.all_reduce(self._sums, group=self._group)
        dist.all_reduce(self._auc.counts, group=self._group)
        found = self._auc.compute()
        if found is None:
            return {}
        auc, error = found
        cross_entropy, positive = self._sums.tolist()
        mean = positive / count
        of_mean = -count * (mean * math.log(mean) + (1 - mean) * math.log(1 - mean))
        return {"auc": auc, "auc_error": error, "normalized_entropy": cross_entropy / of_mean}
