"""How many steps a training has, which samples each uses, and what ends with it."""

from dataclasses import dataclass

from neuroshard_api.job.training import Training
from neuroshard_api.process.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """How many steps, and what happens behind which."""

    first_step: int
    """Steps done before."""
    first_position: int
    """Training samples used before, over all epochs."""
    num_steps: int
    """Steps of the whole training, those done before included."""
    global_batch_size: int
    epoch_samples: int

    @classmethod
    def of(
        cls, training: Training, *, epoch_samples: int, global_batch_size: int, step: int = 0, position: int = 0
    ) -> "Schedule":
        """Return the schedule from a step on.

        A batch may begin in one epoch and end in the next; what is left behind the last whole batch is not used.

        Raises:
            DataError: there is less than one batch.
        """
        wanted = training.epochs * epoch_samples
        if wanted < global_batch_size:
            raise DataError(
                f"there are {epoch_samples} training samples and one step takes {global_batch_size}; "
                "hint: lower spec.model.batchSizePerDevice or raise spec.training.epochs"
            )
        num_steps = step + max(0, wanted - position) // global_batch_size
        return cls(
            first_step=step,
            first_position=position,
            num_steps=num_steps if training.max_steps is None else min(num_steps, max(step, training.max_steps)),
            global_batch_size=global_batch_size,
            epoch_samples=epoch_samples,
        )

    def position(self, step: int) -> int:
        """Return the number of training samples used after a step."""
        return self.first_position + (step - self.first_step) * self.global_batch_size

    def ends_epoch(self, step: int) -> bool:
        """Whether the last sample of an epoch is in the step."""
        return self.position(step) // self.epoch_samples > self.position(step - 1) // self.epoch_samples
