"""Losses and metrics of one model, or of the variants that train together, by name.

A variant's numbers are named ``VARIANT/auc``; without a variant they are those of the best one, so that whatever shows
the progress of a model shows that of the best. A variant that diverges trains on with weights that are no numbers: none
of its gradients reaches another one's, and it is left out of metrics from there on.
"""

import logging
import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from neuroshard_api.documents.plan import GivenPlan
from neuroshard_api.process.errors import InputError
from torch.nn.functional import binary_cross_entropy_with_logits

from neuroshard_trainer.metrics import DIVERGED_REMEDY, Evaluation, Metrics

logger = logging.getLogger(__name__)


def mean_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of the samples: a number, or one of each variant where logits have a column for each."""
    if logits.ndim == 1:
        return binary_cross_entropy_with_logits(logits, labels)
    return binary_cross_entropy_with_logits(logits, labels[:, None].expand_as(logits), reduction="none").mean(dim=0)


def summed(losses: torch.Tensor) -> torch.Tensor:
    """Return the number whose gradients are those of each loss: a mean would divide a variant's by their number."""
    return losses.sum() if losses.ndim else losses


class Scores:
    """What is known of each variant.

    Args:
        names: of the variants. Empty: there is one model.
        diverged: step after which a variant was found to have diverged, by its name.
    """

    def __init__(self, names: Sequence[str], diverged: Mapping[str, int]) -> None:
        self._names = tuple(names)
        self.diverged = {name: step for name, step in diverged.items() if name in names}
        self.exploded: set[str] = set()
        """Variants whose losses were found to be large since the start, though finite."""
        self.best: str | None = None
        """The variant of the metrics without a name. None: there are no variants, or no metrics yet."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a step's losses."""
        return (len(self._names),) if self._names else ()

    def losses(self, step: int, means: Sequence[float]) -> dict[str, float]:
        """Return the losses by name. Raises InputError where none of several variants' is finite.

        Args:
            step: steps done.
            means: equal on all ranks; finite where there is one model.
        """
        if not self._names:
            return {"loss": means[0]}
        for name, mean in zip(self._names, means, strict=True):
            if not math.isfinite(mean):
                self._note(name, step, f"the loss is {mean}")
        found = {name: mean for name, mean in zip(self._names, means, strict=True) if name not in self.diverged}
        self._require_one(step, found)
        self.best = min(found, key=lambda name: found[name])
        return {"loss": found[self.best], **{f"{name}/loss": mean for name, mean in found.items()}}

    def evaluations(self, group: dist.ProcessGroup | None) -> list[Evaluation]:
        """Return an evaluation of the model, or of each variant."""
        return [Evaluation(group) for _ in self._names or ("",)]

    def add(self, evaluations: Sequence[Evaluation], logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Take in some samples; logits as of the model, labels of shape (samples,)."""
        for evaluation, own in zip(evaluations, logits.T if self._names else [logits], strict=True):
            evaluation.add(own, labels)

    def metrics(self, step: int, evaluations: Sequence[Evaluation]) -> tuple[dict[str, float], str | None]:
        """Return the metrics by name, and the reason why there is no AUC. All ranks must call this.

        Raises:
            InputError: on all ranks where logits are not finite, of all variants.
        """
        if not self._names:
            alone = evaluations[0].compute()
            return alone.by_name, alone.why_no_auc("held-out labels")
        found: dict[str, Metrics] = {}
        for name, evaluation in zip(self._names, evaluations, strict=True):
            if name in self.diverged:
                continue
            try:
                found[name] = evaluation.compute()
            except InputError as error:
                self._note(name, step, str(error).split("; hint:")[0])
        self._require_one(step, found)
        self.best = min(found, key=lambda name: found[name].normalized_entropy or math.inf)
        named = {f"{name}/{key}": value for name, each in found.items() for key, value in each.by_name.items()}
        return {**found[self.best].by_name, **named}, found[self.best].why_no_auc("held-out labels")

    def _note(self, name: str, step: int, problem: str) -> None:
        if name not in self.diverged:
            self.diverged[name] = step
            logger.warning(
                "step %d: variant %r diverged: %s; the others train on; hint: %s", step, name, problem, DIVERGED_REMEDY
            )

    def _require_one(self, step: int, found: Mapping[str, object]) -> None:
        if not found:
            raise InputError(f"step {step}: all variants have diverged; hint: {DIVERGED_REMEDY}")


def shown(metrics: Mapping[str, float], best: str | None) -> str:
    """Return metrics as a line of the log has them: of variants those of the best one, with its name."""
    text = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items() if "/" not in name)
    return text if best is None else f"{text} ({best})"


def require_plan_for_variants(plan: GivenPlan) -> None:
    """Do nothing if a plan has nothing that variants do not train with. Raises InputError."""
    refused = {
        "has tables on embedding servers": plan.servers is not None,
        "leaves out lists that repeat": plan.deduplication is not None,
        "has groups of devices that each hold a copy": plan.replication is not None,
        "shards or recomputes the dense part": plan.dense is not None,
        "sends pooled embeddings in narrow types": plan.resolved.wire is not None and not plan.resolved.wire.is_exact,
        "sends gradients in a narrow type": plan.resolved.gradients is not None,
    }
    problem = next((what for what, is_so in refused.items() if is_so), None)
    if problem is not None:
        raise InputError(f"the plan {problem}, and spec.variants trains without that; hint: make the plan of this job")
