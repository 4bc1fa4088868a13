"""AUC and normalized entropy over the samples of all ranks, in bounded memory."""

import torch
import torch.distributed as dist
from torchrec.metrics.ne import compute_ne, get_ne_states

from neuroshard_trainer.errors import InputError

DIVERGED_REMEDY = (
    "lower spec.training.embeddingLearningRate or denseLearningRate, and check the dense features for outliers"
)
ETA = 1e-12
"""Predictions are kept this far from 0 and 1, as TorchRec's metrics do."""
NUM_BINS = 2**17
"""Bins of the logits, of equal width from -LOGIT_LIMIT to LOGIT_LIMIT; the outer ones take what is beyond."""
LOGIT_LIMIT = 16.0
"""A chance of one in nine million: beyond it, predictions of clicks hardly differ."""
_NE_STATES = ("cross_entropy_sum", "weighted_num_samples", "pos_labels", "neg_labels")


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
        self._sums = torch.zeros(len(_NE_STATES), dtype=torch.float64)
        self._counts = torch.zeros(2, dtype=torch.int64)  # samples, and those of them whose logit is not finite

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in some samples; both of shape (samples,), which may be empty."""
        scores, wanted = logits.detach().double().cpu(), labels.cpu()
        is_finite = scores.isfinite()
        self._counts += torch.tensor([len(scores), len(scores) - int(is_finite.sum())])
        scores, wanted = scores[is_finite], wanted[is_finite]
        self._auc.add(scores, wanted)
        chances = scores.sigmoid()
        states = get_ne_states(wanted.double()[None], chances[None].clone(), torch.ones_like(chances)[None], ETA)
        self._sums += torch.stack([states[name].squeeze(0) for name in _NE_STATES])

    def compute(self) -> dict[str, float]:
        """Return the metrics by name. All ranks must call this, and all get the same answer.

        ``auc_error`` bounds how far ``auc`` is from that of the exact predictions. ``normalized_entropy`` is the cross
        entropy of the predictions over that of the labels' mean: below 1 is better than knowing the mean alone. Metrics
        that the labels leave undefined, as where all are equal, are left out.

        Raises:
            InputError: on all ranks where the logits of one are not finite.
        """
        dist.all_reduce(self._counts, group=self._group)
        count, num_invalid = self._counts.tolist()
        if num_invalid:
            raise InputError(f"{num_invalid} of {count} logits of the evaluation are not finite; {DIVERGED_REMEDY}")
        dist.all_reduce(self._sums, group=self._group)
        dist.all_reduce(self._auc.counts, group=self._group)
        found = self._auc.compute()
        if found is None:
            return {}
        auc, error = found
        cross_entropy, weight, positive, negative = self._sums
        entropy = float(compute_ne(cross_entropy, weight, positive, negative, ETA))
        return {"auc": auc, "auc_error": error, "normalized_entropy": entropy}
