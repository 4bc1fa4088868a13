"""AUC and normalised entropy over the samples of all ranks."""

import torch
import torch.distributed as dist
from torchmetrics.classification import BinaryAUROC
from torchrec.metrics.ne import compute_ne, get_ne_states

ETA = 1e-12
"""Predictions are kept this far from 0 and 1, as TorchRec's metrics do."""
_NE_STATES = ("cross_entropy_sum", "weighted_num_samples", "pos_labels", "neg_labels")


class Evaluation:
    """Collects predictions of this rank and computes the metrics of all.

    Args:
        group: of all ranks, for CPU tensors.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._auc = BinaryAUROC(thresholds=None, validate_args=False, process_group=group)
        self._sums = torch.zeros(len(_NE_STATES), dtype=torch.float64)

    def add(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in some samples; both of shape (samples,), which may be empty."""
        chances, wanted = logits.detach().double().sigmoid().cpu(), labels.cpu()
        self._auc.update(chances, wanted.long())
        states = get_ne_states(wanted.double()[None], chances[None].clone(), torch.ones_like(chances)[None], ETA)
        self._sums += torch.stack([states[name].squeeze(0) for name in _NE_STATES])

    def compute(self) -> dict[str, float]:
        """Return the metrics by name. All ranks must call this, and all get the same answer.

        ``normalized_entropy`` is the cross entropy of the predictions over that of the labels' mean: below 1 is better
        than knowing the mean alone. Metrics that the labels leave undefined, as where all are equal, are left out.
        """
        dist.all_reduce(self._sums, group=self._group)
        auc = float(self._auc.compute())
        cross_entropy, count, positive, negative = self._sums
        if not (positive > 0 and negative > 0):
            return {}
        entropy = float(compute_ne(cross_entropy, count, positive, negative, ETA))
        return {"auc": auc, "normalized_entropy": entropy}
