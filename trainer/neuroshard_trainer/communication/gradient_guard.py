"""The guard of narrow gradients: what a step's encoding lost, and when gradients travel whole again.

Held-out samples cannot judge gradients before they have trained for long. What can be measured is one step: the mean
that was received, against the mean by an exact all-reduce of what a sound codec had sent (see gradient_codec). They
differ by rounding alone, 0.4 % of the norm at most with BF16 and FP32's own with the others. Underflow, overflow, and
codecs that are wrong show in it. What a sound codec does to learning is measured by pairs of trainings alone.
"""

import math
from dataclasses import dataclass

import torch.distributed as dist
from neuroshard_api.documents.progress import CHECKS_TO_SUSPEND, GuardRecord, GuardState
from neuroshard_api.job.communication import CommunicationGuard

from neuroshard_trainer.communication.gradient_codec import GradientCodec
from neuroshard_trainer.communication.guard import after_action, next_record, resumed_record
from neuroshard_trainer.ranks.agreement import gathered

MAX_DIFFERENCE_PERCENT = 1.0
"""BF16 rounds each value, and each sum of two, by 2^-9 of it."""


@dataclass(slots=True)
class GradientGuard:
    """Watches the codec of one model's gradients. All ranks have one, and call it in the same steps."""

    codec: GradientCodec
    settings: CommunicationGuard
    group: dist.ProcessGroup
    """Of all ranks, for CPU tensors."""
    record: GuardRecord

    @classmethod
    def of(
        cls,
        codec: GradientCodec,
        settings: CommunicationGuard,
        group: dist.ProcessGroup,
        record: GuardRecord | None,
    ) -> "GradientGuard":
        """Return a guard that goes on from a checkpoint's record. None: there is none."""
        return cls(
            codec, settings, group, resumed_record(record, codec.exchange, maximum_percent=MAX_DIFFERENCE_PERCENT)
        )

    def __post_init__(self) -> None:
        self.codec.measures_error = True
        self._obey()

    def is_due(self, step: int) -> bool:
        """Return whether a check follows this step."""
        return step % self.settings.check_every_steps == 0

    def check(self, step: int) -> bool:
        """Check the measurements since the last call, and return whether the exchange changed.

        All ranks must call this.

        Args:
            step: steps done.

        Raises:
            InputError: on all ranks, where the job fails by the guard.
        """
        before = self.record.state
        error = self._error_percent()
        self.codec.measures_error = True
        if before is GuardState.NARROW and error is None:  # gradients travel whole in the first steps
            return False
        found = next_record(self.record, step=step, change_percent=error, maximum_percent=MAX_DIFFERENCE_PERCENT)
        self.record = after_action(
            self.record,
            found,
            self.settings.action,
            failure=lambda: (
                f"step {step}: gradients by {self.codec.exchange.type} differ from the exact ones by "
                f"{error:.3g} %, above {MAX_DIFFERENCE_PERCENT:g} in {CHECKS_TO_SUSPEND} checks in a row; "
                "take another type in spec.experimental.communication.dense"
            ),
        )
        self._obey()
        return self.record.state is not before

    def _error_percent(self) -> float | None:
        """Return the largest error of all ranks. None: none measured one."""
        errors = gathered(self.codec.take_error(), self.group)
        known = [each if math.isfinite(each) else math.inf for each in errors if each is not None]
        return 100 * max(known) if known else None

    def _obey(self) -> None:
        self.codec.is_on = self.record.state is GuardState.NARROW
