"""The guard of narrow types: what they do to the loss of held-out samples, and when exchange becomes exact again.

    narrow  --three checks in a row above the maximum-->  suspended  --ten checks later-->  narrow (once)
                                                          suspended for good after the second time

A check is the same batch forward twice, encoded and exact, without an update. Both see equal weights and samples, so
that their difference is what the codec does, and not noise. It counts in either direction: a model adapts to what its
codec does, and is then worse without it. Rank 0 decides from the losses of all ranks, and all obey in the same step.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from neuroshard_api.documents.communication import WireTypes
from neuroshard_api.documents.gradient_exchange import GradientExchange
from neuroshard_api.documents.progress import CHECKS_TO_SUSPEND, GuardRecord, GuardState
from neuroshard_api.job.communication import CommunicationGuard, GuardAction
from neuroshard_api.process.errors import InputError

from neuroshard_trainer.communication.codecs import Codecs

CHECKS_SUSPENDED = 10
"""Checks that are left out before narrow types are tried once again."""
_PERCENT = 100


def next_record(record: GuardRecord, *, step: int, change_percent: float | None, maximum_percent: float) -> GuardRecord:
    """Return the record after a check.

    Args:
        record: before the check.
        step: after which it was made.
        change_percent: of the loss. None: exchange is exact, nothing was measured.
        maximum_percent: of the change.
    """
    if change_percent is None:
        waited = record.checks_suspended + 1
        if waited < CHECKS_SUSPENDED or record.times_suspended > 1:
            return record.model_copy(update={"checks_suspended": waited})
        return record.model_copy(
            update={"state": GuardState.NARROW, "since_step": step, "exceeded_in_a_row": 0, "checks_suspended": 0}
        )
    exceeded = record.exceeded_in_a_row + 1 if change_percent > maximum_percent else 0
    is_over = exceeded >= CHECKS_TO_SUSPEND
    return record.model_copy(
        update={
            "state": GuardState.SUSPENDED if is_over else GuardState.NARROW,
            "since_step": step if is_over else record.since_step,
            "num_checks": record.num_checks + 1,
            "change_percent": change_percent if math.isfinite(change_percent) else None,
            "exceeded_in_a_row": exceeded,
            "checks_suspended": 0,
            "times_suspended": record.times_suspended + is_over,
        }
    )


def after_action(
    before: GuardRecord, found: GuardRecord, action: GuardAction, *, failure: Callable[[], str]
) -> GuardRecord:
    """Return the record of a check as the guard's action has it.

    Args:
        before: record before the check.
        found: record after it, if the action is Exact.
        action: of the guard.
        failure: makes the error of a job that fails by the guard.

    Raises:
        InputError: the job fails by the guard.
    """
    if not (before.state is GuardState.NARROW and found.state is GuardState.SUSPENDED):
        return found
    if action is GuardAction.FAIL:
        raise InputError(failure())
    if action is GuardAction.REPORT:
        update = {"state": GuardState.NARROW, "since_step": before.since_step, "times_suspended": 0}
        return found.model_copy(update=update)
    return found


def resumed_record(
    record: GuardRecord | None, types: WireTypes | GradientExchange, *, maximum_percent: float
) -> GuardRecord:
    """Return the record of a checkpoint, or a new one where that is of other types or another maximum.

    Args:
        record: of the checkpoint. None: there is none.
        types: on the wire.
        maximum_percent: of the change.
    """
    fresh = GuardRecord(types=types, maximum_percent=maximum_percent)
    if record is None or (record.types, record.maximum_percent) != (fresh.types, fresh.maximum_percent):
        return fresh
    return record


@dataclass(slots=True)
class Guard:
    """Watches the codecs of one model. All ranks have one, and call it in the same steps."""

    codecs: Codecs
    settings: CommunicationGuard
    group: dist.ProcessGroup
    """Of all ranks, for CPU tensors."""
    record: GuardRecord

    def __post_init__(self) -> None:
        self._obey()

    def is_due(self, step: int) -> bool:
        """Return whether a check follows this step."""
        return step % self.settings.check_every_steps == 0

    def check(self, step: int, loss: Callable[[], torch.Tensor]) -> bool:
        """Check, and return whether exchange changed. All ranks must call this.

        Args:
            step: steps done.
            loss: sum of this rank's losses of held-out samples, a scalar; always of the same ones.

        Raises:
            InputError: on all ranks, where the job fails by the guard.
        """
        before = self.record.state
        change = self._change_percent(loss) if before is GuardState.NARROW else None
        maximum = float(self.settings.max_entropy_increase_percent)
        found = next_record(self.record, step=step, change_percent=change, maximum_percent=maximum)
        self.record = after_action(
            self.record,
            found,
            self.settings.action,
            failure=lambda: (
                f"step {step}: {self.codecs.types.text} change the held-out loss by {change:.3g} %, above "
                f"spec.experimental.communication.guard.maxEntropyIncreasePercent {maximum:g} in {CHECKS_TO_SUSPEND} "
                "checks in a row; take wider types, or policy Exact"
            ),
        )
        self._obey()
        return self.record.state is not before

    def _change_percent(self, loss: Callable[[], torch.Tensor]) -> float:
        """Return the relative change of the loss of all ranks by the codecs, in percent and without its sign."""
        with self.codecs.apart(on=True):
            narrow = loss()
        with self.codecs.apart(on=False):
            exact = loss()
        sums = torch.tensor([float(narrow), float(exact)], dtype=torch.float64)
        dist.all_reduce(sums, group=self.group)
        change = (sums[0] - sums[1]).abs() / sums[1] * _PERCENT
        dist.broadcast(change, src=0, group=self.group)
        percent = float(change)
        return percent if math.isfinite(percent) else math.inf

    def _obey(self) -> None:
        self.codecs.switch(on=self.record.state is GuardState.NARROW)
